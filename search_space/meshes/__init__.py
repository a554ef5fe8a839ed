"""`Mesh`, many cores and their links as data, and the registry of meshes: one TOML file each."""
