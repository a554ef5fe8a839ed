"""The few numbers of an estimate that are fitted, as facts like a target's: `constants.toml`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files

from tilesmith.capabilities.planning.deployment import Deployment
from tilesmith.search_space.hardware.target import FactValue, Target, parse_target
from tilesmith.search_space.meshes.mesh import Mesh

_PREFIX = "serving."


@lru_cache(maxsize=1)
def constants() -> Target:
    """All of them, with sources, trust and allowed ranges."""
    text = (files(__package__) / "constants.toml").read_text()
    return parse_target("serving", text)


def constant(deployment: Deployment, name: str) -> float:
    """One of them; a deployment's come first, then its mesh's own, `serving.<name>`."""
    if deployment.constants is not None:
        return deployment.constants.number(name)
    own, data = f"{_PREFIX}{name}", deployment.mesh.data
    return data.number(own) if own in data else constants().number(name)


def with_serving_settings(mesh: Mesh, settings: Mapping[str, str | FactValue]) -> Mesh:
    """A mesh with facts changed (what `--set` does), those of `serving.` included.

    Raises:
        TargetError: unknown name, a value of another type, or one out of range.
    """
    if not settings:
        return mesh
    facts = {f"{_PREFIX}{name}": fact for name, fact in constants().facts}
    data = mesh.data
    own = Target.of(data.name, data.family, {**facts, **dict(data.facts)}, data.doc)
    return replace(mesh, data=own).with_settings(settings)
