"""A room is small enough to be looked over: it holds at most 15 modules, and says what it holds.

A registry may hold more: each of its files adds one thing of one kind, and is looked for by name.
Folders of tests have a file for each subject, which pytest looks for.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.packaging.test_imports import FLOORS, ROOT

MOST = 15

SCRIPT = r'^if __name__ == "__main__":'

REGISTRIES = {
    "benchmarks": ("a file is a script that answers one question by measuring", SCRIPT),
    "benchmarks/accelerator": ("the same about simulated accelerators", SCRIPT),
    "capabilities/stablehlo/rules": (
        "a file adds the operations of StableHLO of one kind (`scans`: what its loops become)",
        r"rules\.register|@\w*formula|^def scanned\(",
    ),
    "compiler/decompositions": (
        "a file adds one family of ONNX operators that are others put together",
        r"@\w+\.register",
    ),
    "compiler/host/operators": (
        "a file adds a group of ONNX operators in numpy (`call`: what they are given)",
        r"\(call: OperatorCall|\(OpRun\):|^class OperatorCall:",
    ),
    "compiler/passes": ("a file adds one change of a graph", r"class \w+\(\w*Pass\)"),
    "search_space/operators": ("a file adds one operator", r"@templates\.register"),
    "search_space/schedules/cpu": (
        "a file adds one scheduler; `machine.py` the family itself",
        r"@schedules\(|families\.register",
    ),
}
"""Folders that may hold more modules: why, and a pattern that each of their files has."""


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def _folders() -> list[Path]:
    """Every folder of the product's sources and of the benchmarks, by its real path."""
    tops = [floor.resolve() for floor in FLOORS.values()] + [ROOT / "benchmarks"]
    inside = (path.parent for top in tops for path in top.rglob("*.py"))
    return sorted({path for path in inside if path.resolve() == path})


def test_no_room_but_a_registry_holds_more_than_15_modules() -> None:
    counted = {path.relative_to(ROOT).as_posix(): len(_modules(path)) for path in _folders()}
    assert len(counted) > 100
    assert {name for name, count in counted.items() if count > MOST} == set(REGISTRIES)


@pytest.mark.parametrize("folder", REGISTRIES)
def test_each_file_of_a_large_registry_adds_something_of_its_kind(folder: str) -> None:
    reason, pattern = REGISTRIES[folder]
    assert reason
    others = [
        path.name
        for path in _modules(ROOT / folder)
        if not re.search(pattern, path.read_text(), re.MULTILINE)
    ]
    assert others == [], f"{folder}: {reason}; these do not"


def test_every_package_has_its_sentence() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    house = page.partition("```house\n")[2].partition("```")[0]
    sentences = dict(line.split("/ ", 1) for line in house.splitlines())
    inits = (init for top in FLOORS.values() for init in top.resolve().rglob("__init__.py"))
    for package in (init.parent for init in inits):
        if package.resolve() == package and package != ROOT:
            assert sentences[package.relative_to(ROOT).as_posix()].strip(), package
