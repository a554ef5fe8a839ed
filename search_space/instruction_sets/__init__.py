"""The shipped instruction sets: a TOML file each, by the file's name (`instruction_set_files`)."""
