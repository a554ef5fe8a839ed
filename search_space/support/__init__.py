"""What every floor uses and that knows nothing of tensors: errors and their wording, registries,
extensions, files.
"""
