"""No circles: no module, and no room (a package), imports itself by way of others.

Imports are read from the sources, those inside functions and for type checkers alone included.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]

Graph = Mapping[str, set[str]]


FLOORS = {"tilesmith": ROOT / "tilesmith"} | {
    f"tilesmith.{link.name}": link.resolve()
    for link in (ROOT / "tilesmith").iterdir()
    if link.is_symlink()
}


def modules() -> dict[str, Path]:
    """The file of every module, by its dotted name; packages by their own."""
    found = {}
    for floor, folder in FLOORS.items():
        for path in folder.rglob("*.py"):
            name = ".".join((floor, *path.relative_to(folder).with_suffix("").parts))
            found[name.removesuffix(".__init__")] = path
    return found


def statements(source: str) -> Iterator[ast.AST]:
    """Every statement of a source, those inside others too; expressions are not looked into."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        yield node
        for inside in ("body", "orelse", "handlers", "finalbody", "cases"):
            waiting += getattr(node, inside, ())


def imported(source: str, known: Mapping[str, Path]) -> Iterator[str]:
    """Modules of ours that a source imports, wherever in it."""
    for node in statements(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if found := next((name for name in (whole, node.module) if name in known), None):
                    yield found


@cache
def imports() -> Graph:
    """Which of our modules each module imports, itself apart."""
    known = modules()
    return {name: {*imported(p.read_text(), known)} - {name} for name, p in known.items()}


def rooms(graph: Graph) -> dict[str, set[str]]:
    """The same between packages; the loose modules of a floor are one of them."""
    known, between = modules(), {}

    def room(module: str) -> str:
        return module if known[module].name == "__init__.py" else module.rpartition(".")[0]

    for module, others in graph.items():
        between.setdefault(room(module), set()).update(map(room, others))
    return {mine: others - {mine} for mine, others in between.items()}


def circle(graph: Graph) -> str:
    """One circle, e.g. 'a -> b -> a'; '' if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


def test_a_circle_is_found_and_told() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == ""
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in ("b -> c -> b", "c -> b -> c")


def test_imports_inside_functions_count() -> None:
    known = dict.fromkeys(("a", "a.b", "c"), ROOT)
    source = "import c\ndef f():\n    from a import b, x\n    import json\n"
    assert set(imported(source, known)) == {"a", "a.b", "c"}
    assert "tilesmith.search_space.ir.program" in imports()["tilesmith.codegen.llvm.module"]


def test_no_module_imports_itself_through_others() -> None:
    assert circle(imports()) == ""


def test_no_room_imports_itself_through_others() -> None:
    assert circle(rooms(imports())) == ""
