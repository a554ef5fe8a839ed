"""The shipped meshes: a TOML file each, registered by the file's name."""

from importlib import resources

from tilesmith.search_space.mesh import mesh_files

for _file in resources.files(__name__).iterdir():
    if _file.name.endswith(".toml"):
        mesh_files.register(_file.name.removesuffix(".toml"))(_file)
