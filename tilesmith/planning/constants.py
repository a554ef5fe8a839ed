"""The few numbers of an estimate that are fitted: facts as targets have them, in
`constants.toml`."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from tilesmith.search_space.mesh import Mesh
from tilesmith.search_space.target import Target, parse_target


@lru_cache(maxsize=1)
def constants() -> Target:
    """All of them, with sources, trust and allowed ranges."""
    text = (files(__package__) / "constants.toml").read_text()
    return parse_target("serving", text)


def constant(mesh: Mesh, name: str) -> float:
    """One of them; a mesh's own `serving.<name>` comes first."""
    own = f"serving.{name}"
    return mesh.data.number(own) if own in mesh.data else constants().number(name)
