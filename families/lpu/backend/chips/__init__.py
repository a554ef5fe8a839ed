"""A model on several chips: sharded, or a pipeline of stages."""
