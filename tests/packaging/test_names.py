"""What the sources call things: a value has the name of what it is, not of how it came about."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.packaging.test_limits import sources

# Names that say of a value only that there is one, and the folders that have none of them.
EMPTY = {"found", "told", "made"}
BOUND = re.compile(rf"\b({'|'.join(EMPTY)})\b(?!\.|\s+(?!in\b|if\b)\w)")
SOURCES = (
    "capabilities/", "codegen/", "compiler/", "families/", "records/", "search_space/",
    "simulator/", "tilesmith/", "tuner/",
)  # fmt: skip


def values(source: str) -> Iterator[tuple[str, int]]:
    """Name and line of everything a source binds to a value: variables, parameters, attributes,
    functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef) or (
            isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name
        ):
            yield node.name, node.lineno


def test_every_way_to_bind_a_value_is_seen() -> None:
    for source in (
        "{} = 1", "for a, {} in b: ...", "[{0} for {0} in b]", "def f(a, *, {}=1): ...", "a.{} = 1",
        "lambda {}: 1", "with a as {}: ...", "if {} := b: ...", "class A:\n    {}: int",
        "try: ...\nexcept A as {}: ...", "def {}(): ...", "match a:\n    case [1, *{}]: ...",
    ):  # fmt: skip
        assert "told" in dict(values(source.format("told"))), source
        assert BOUND.search(source.format("told")), source
    assert "told" not in dict(values("a(told=told.told())"))


def test_no_value_has_an_empty_name() -> None:
    empty = [
        f"{file}:{line}: {name}"
        for file, source in sources()
        if file.startswith(SOURCES) and BOUND.search(source)  # parsing takes seconds
        for name, line in values(source)
        if name in EMPTY
    ]
    assert empty == []


def public_classes(source: str) -> Iterator[str]:
    """Classes at the top of a module that others may use."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def test_public_classes_are_those_at_the_top_without_underscore() -> None:
    assert list(public_classes("class A:\n    class B: ...\nclass _C: ...\nclass D(A): ...")) == [
        "A",
        "D",
    ]


def test_no_two_public_classes_have_one_name() -> None:
    ours = {file: source for file, source in sources() if file.startswith(SOURCES)}
    lines = {file: set(re.findall(r"^class (\w+)", ours[file], re.MULTILINE)) for file in ours}
    counts = Counter(name for names in lines.values() for name in names)
    homes = defaultdict(list)
    for file in (file for file in ours if any(counts[name] > 1 for name in lines[file])):
        for name in public_classes(ours[file]):
            homes[name].append(file)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
