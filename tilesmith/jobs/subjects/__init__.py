"""What users name: models, operators, targets, meshes, data."""
