"""What the sources call things: a value has the name of what it is, not of how it came about."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.packaging.test_limits import sources

# Names that say of a value only that there is one, and the folders that are free of them.
EMPTY = {"found", "told", "made"}
FREE = ("compiler/",)


def values(source: str) -> Iterator[tuple[str, int]]:
    """Name and line of everything a source binds to a value: variables, parameters, attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node.lineno


def test_every_way_to_bind_a_value_is_seen() -> None:
    for source in (
        "{} = 1", "for a, {} in b: ...", "[{0} for {0} in b]", "def f(a, *, {}=1): ...", "a.{} = 1",
        "lambda {}: 1", "with a as {}: ...", "if {} := b: ...", "class A:\n    {}: int",
        "try: ...\nexcept A as {}: ...", "match a:\n    case [1, *{}]: ...",
    ):  # fmt: skip
        assert "told" in dict(values(source.format("told"))), source
    assert "told" not in dict(values("def told(): ...\na(told=told.told())"))


def test_no_value_has_an_empty_name() -> None:
    empty = [
        f"{file}:{line}: {name}"
        for file, source in sources()
        if file.startswith(FREE)
        for name, line in values(source)
        if name in EMPTY
    ]
    assert empty == []
