"""Used by schedulers of several operators: the machine, blocks of pixels, functions of VXM."""
