"""Planning: what serving a model on a mesh of chips costs, before there is either."""
