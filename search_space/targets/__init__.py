"""The shipped targets of CPUs: a TOML file each, by the file's name (`target_files`)."""
