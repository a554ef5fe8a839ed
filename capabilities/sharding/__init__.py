"""A model on many cores: specs, propagation, the best sharding, one program a core, execution."""
