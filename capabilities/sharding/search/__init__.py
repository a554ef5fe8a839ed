"""The optimal sharding, by integer programming."""
