"""A family of targets is a room on every floor, and nothing outside knows its name.

Read from the sources: outside the rooms no text is a family's name, and nothing is imported from
inside one. What stands in the two lists is why it may. A loom (`tests/families/loom`) is what this
buys.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.packaging.test_imports import FLOORS, imports, modules

FAMILIES = frozenset(
    {"cpu", *(f.name for f in FLOORS["tilesmith.families"].iterdir() if f.is_dir())}
) - {"kit", "__pycache__"}
MODULES = modules()

CPU_ROOMS = (
    "tilesmith.codegen.llvm", "tilesmith.codegen.native",
    "tilesmith.capabilities.c_library", "tilesmith.tuner.measurement.native_backend",
)  # fmt: skip
"""The CPU's rooms that are named after what is in them: its code generator, its run time, libraries
for other programs, and what a worker process measures with."""

NAMES = {
    "tilesmith.search_space.hardware.target": "the *target* that is this machine is `cpu`",
    "tilesmith.codegen.host.machine": "makes that target, and others of its family",
    "tilesmith.jobs.measures.peers": "ONNX Runtime's name of a device",
}
"""Who may write a family's name, and why."""

IMPORTS: dict[tuple[str, str], str] = {}
"""Who (a module, or a package and all in it) may import what of a family, and why."""


def room(module: str) -> str:
    """The family whose room a module is in; "" if it is in none."""
    if any(_inside(module, room) for room in CPU_ROOMS):
        return "cpu"
    return next((part for part in module.split(".") if part in FAMILIES), "")


def _inside(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


OUTSIDE = sorted(module for module in MODULES if not room(module))


def named(source: str) -> Iterator[str]:
    """Families whose name is a text of a source, documentation apart."""
    if not re.search(rf"""["']({"|".join(FAMILIES)})\.?["']""", source):
        return  # parsing all sources takes seconds
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = {f for f in FAMILIES if node.value in (f, f"{f}.")}
            yield from sorted(found)


def test_there_are_rooms_and_texts_are_found() -> None:
    assert {"cpu", "lpu", "systolic", "trainium"} == FAMILIES
    assert room("tilesmith.families.trainium.simulator.timelines.trace") == "trainium"
    assert (
        room("tilesmith.codegen.native.programs.driver")
        == room("tilesmith.codegen.llvm.expressions.values")
        == "cpu"
    )
    assert not room("tilesmith.simulator.dispatch") and len(OUTSIDE) > 200
    source = 'def f(target):\n    "cpu"\n    return target.family != \'trainium\' or ["x", "cpu"]\n'
    assert sorted(named(source)) == ["cpu", "cpu", "trainium"]


def test_nothing_outside_a_family_knows_it() -> None:
    names, inside = [], []
    for module in OUTSIDE:
        if module not in NAMES:
            names += [(module, name) for name in named(MODULES[module].read_text())]
        inside += [
            (module, found)
            for found in imports()[module]
            if room(found)
            and not any(_inside(module, who) and _inside(found, what) for who, what in IMPORTS)
        ]
    assert not names, "asked for by name outside its rooms"
    assert not inside, "imported from a family's room"


def test_every_exception_is_needed() -> None:
    for module in NAMES:
        assert list(named(MODULES[module].read_text())), f"{module} names no family any more"
    for who, what in IMPORTS:
        importers = [module for module in OUTSIDE if _inside(module, who)]
        found = (f for m in importers for f in imports()[m])
        assert any(_inside(f, what) for f in found), f"{who} does not import {what} any more"
