"""The kernel is small enough to be read, and stands alone; so does the core.

docs/architecture.md lists the kernel's rooms. The core is all sources but those of families and
capabilities; its front door names what it offers, and no other text of it does.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.packaging.test_imports import Graph, imports, modules

ROOT = Path(__file__).parents[2].resolve()

LIMIT = 20_000
"""Lines of the kernel, those of docstrings included: what one person reads in two weeks."""

APART = ("tilesmith.capabilities", "tilesmith.families")
EDGES = {
    "codegen.llvm.functions.inverses": "how elementary functions are computed",
    "codegen.llvm.functions.vector_math": "how elementary functions are computed",
    "codegen.llvm.intrinsics.ahead": "instructions beyond loads, stores and arithmetic",
    "codegen.llvm.intrinsics.dot_products": "instructions beyond loads, stores and arithmetic",
    "codegen.llvm.intrinsics.selection": "instructions beyond loads, stores and arithmetic",
    "codegen.llvm.intrinsics.tiles": "instructions beyond loads, stores and arithmetic",
    "codegen.llvm.intrinsics.transposes": "instructions beyond loads, stores and arithmetic",
    "codegen.native.programs.driver": "the native call of a kernel that a trial times",
    "codegen.packing.boxes": "weights laid out anew by numpy",
    "codegen.packing.prologues": "weights laid out anew by numpy",
    "search_space.summation.spaces": "spaces that keep to one order of summation",
    "tuner.learning.learning": "which cost model a search learns, from which features",
    "tuner.learning.pace": "corrects latencies where the machine changed its pace",
    "tuner.learning.predictor": "a cost model trained on a search's own trials",
    "tuner.surrogates.cost_model": "the contract of cost models",
    "tuner.surrogates.knob_features": "a configuration as numbers",
}
"""Modules outside that the kernel imports, and what a reader has to know of each."""

FRONT_DOOR = {"tilesmith", "tilesmith.command_line", "tilesmith.torch_backend"}
"""Modules of the core that may name a capability: the Python API, the command line, and what
PyTorch knows us by."""


def _lines() -> str:
    """What `make lines` prints."""
    done = [sys.executable, str(ROOT / "benchmarks" / "lines.py")]
    return subprocess.run(done, capture_output=True, text=True, check=True).stdout


def _rooms() -> list[str]:
    """The folders of the kernel, read here once more: the script is what is tested, too."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = page.partition("```kernel\n")[2].partition("```")[0]
    return [line.split("/ ")[0] for line in block.splitlines()]


def _is_apart(module: str) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in APART)


def _reaches_apart(graph: Graph, starts: Iterable[str]) -> set[str]:
    """Families' and capabilities' modules among those that `starts` import."""
    return {found for start in starts for found in graph[start] if _is_apart(found)}


def test_the_kernel_has_rooms_that_exist_and_at_most_20000_lines() -> None:
    rooms = _rooms()
    assert len(rooms) == len(set(rooms)) > 10
    assert all((ROOT / room / "__init__.py").exists() for room in rooms)
    files = [path for room in rooms for path in (ROOT / room).glob("*.py")]
    lines = sum(len(path.read_bytes().splitlines()) for path in files)
    assert lines <= LIMIT, "docs/architecture.md: leave out a room, or delete lines"
    assert f"Lines: kernel {lines:,}," in _lines()


def test_an_import_of_a_capability_is_seen() -> None:
    graph = {"a": {"b", "tilesmith.capabilities.fleet.jobs"}, "b": {"tilesmith.families_of"}}
    assert _reaches_apart(graph, "a") == {"tilesmith.capabilities.fleet.jobs"}
    assert _reaches_apart(graph, "b") == set()


def test_no_module_of_the_kernel_imports_a_capability_or_a_family() -> None:
    rooms = {ROOT / room for room in _rooms()}
    kernel = {name for name, path in modules().items() if path.resolve().parent in rooms}
    assert len(kernel) > len(rooms)
    assert _reaches_apart(imports(), kernel) == set()


def test_what_else_the_kernel_imports_is_listed() -> None:
    rooms, files = {ROOT / room for room in _rooms()}, modules()
    kernel = {name for name, path in files.items() if path.resolve().parent in rooms}
    code = {name for name, path in files.items() if path.name != "__init__.py"}
    outside = {other for name in kernel for other in imports()[name] if other in code - kernel}
    assert outside == {f"tilesmith.{name}" for name in EDGES}


def test_the_core_names_no_module_of_a_capability_or_a_family_in_a_text() -> None:
    """What is imported by name is imported, too; imports are read in `test_left_out`."""
    named = {}
    for module, path in modules().items():
        if _is_apart(module) or module in FRONT_DOOR:
            continue
        source = path.read_text()
        if not any(f"{name}." in source for name in APART):
            continue
        texts = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
        inside = [
            text
            for text in texts
            if isinstance(text, str) and text.startswith(tuple(f"{name}." for name in APART))
        ]
        named |= {module: inside} if inside else {}
    assert named == {}


def test_the_changelog_keeps_the_lines_that_are_printed() -> None:
    kept = [
        line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if "Lines: kernel" in line
    ]
    assert len(kept) == 1, "one line a version: write over it until the version is out"
    words = kept[0].replace(",", "").partition("Lines: ")[2].split()
    numbers = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    assert list(numbers) == ["kernel", "core", "families", "capabilities", "total"]
    assert numbers.pop("total") == sum(numbers.values())
    assert numbers["kernel"] <= LIMIT
