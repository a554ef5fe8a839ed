"""Which hardware a user means: `cpu` (this machine), a shipped name, or a TOML file, with settings.

The one place where target names are resolved, for the command line and the Python API alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from search_space.target import FactValue, Target, load_target, target_names

HOST = "cpu"
"""The name of the machine this process runs on."""


def resolve_target(
    target: str | Target, settings: Mapping[str, str | FactValue] | None = None
) -> Target:
    """The target a user named.

    Args:
        target: `cpu`, the name of a shipped target, a path ending in `.toml`, or a `Target`.
        settings: facts to change, by dotted name: `{"sbuf.mib": 48}`.

    Raises:
        TargetError: unknown name, bad file, unknown setting, or a value out of range.
    """
    if isinstance(target, Target):
        found = target
    elif target == HOST:
        from codegen.host import host_target

        found = host_target()
    else:
        found = load_target(target)
    return found.with_settings(settings) if settings else found


def all_targets() -> list[Target]:
    """This machine, then every shipped target."""
    return [resolve_target(name) for name in (HOST, *target_names())]
