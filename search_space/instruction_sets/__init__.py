"""The shipped instruction sets: a TOML file each, registered by the file's name."""

from importlib import resources

from tilesmith.search_space.instruction_set import instruction_set_files

for _file in resources.files(__name__).iterdir():
    if _file.name.endswith(".toml"):
        instruction_set_files.register(_file.name.removesuffix(".toml"))(_file)
