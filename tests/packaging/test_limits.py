"""Limits of the sources: files up to 400 lines beside their imports, functions up to 8 parameters.

Loops that are compiled to native code take arrays by name, as many as they need: they are exempt.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.lines import sources as product_sources
from tests.packaging.test_imports import statements

ROOT = Path(__file__).parents[2]

LINES, PARAMETERS = 400, 8
IMPORT = ast.Import | ast.ImportFrom
HEAD = re.compile(r"\bdef \w+\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of every file of Python code in the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in sorted(filter(None, names.split("\0"))):
        if (ROOT / name).exists():
            yield name, (ROOT / name).read_text()


def crowded(source: str) -> Iterator[str]:
    """Functions with too many parameters, as `name(number)`; `self` and `cls` do not count."""
    heads = HEAD.findall(source)
    if len(heads) == source.count("def ") and all(h.count(",") < PARAMETERS for h in heads):
        return  # parsing all sources takes seconds
    for node in statements(source):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any("compiled" in ast.unparse(decorator) for decorator in node.decorator_list):
            continue
        taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        number = len([one for one in taken if one.arg not in ("self", "cls")])
        if number > PARAMETERS:
            yield f"{node.name}({number})"


def test_too_many_parameters_are_counted() -> None:
    nine = ", ".join(f"x{i}" for i in range(9))
    assert list(crowded(f"def f({nine}): ...")) == ["f(9)"]
    assert list(crowded(f"@compiled\ndef f({nine}): ...\nclass A:\n    def g(self): ...")) == []
    assert list(crowded("def f(self, a, b, *, c, d, e, f, g, h, **rest): ...")) == []


def test_no_function_takes_more_than_eight_parameters() -> None:
    found = {name: list(crowded(source)) for name, source in sources()}
    assert {name: functions for name, functions in found.items() if functions} == {}


def size(source: str) -> int:
    """Lines of a source, imports at its top apart: how often they wrap follows from names alone."""
    imports = (node for node in ast.parse(source).body if isinstance(node, IMPORT))
    return len(source.splitlines()) - sum(n.end_lineno - n.lineno + 1 for n in imports)  # type: ignore[operator]


def test_imports_are_not_counted() -> None:
    assert size('"""What."""\nfrom a import (\n    b,\n)\nimport c\nx = b\n') == 2


def test_no_file_is_longer_than_400_lines() -> None:
    long = ((name, source) for name, source in sources() if len(source.splitlines()) > LINES)
    lines = {name: size(source) for name, source in long}
    assert {name: number for name, number in lines.items() if number > LINES} == {}


def test_annotations_of_sources_are_evaluated() -> None:
    """One way for all: what is bound later, or for type checkers alone, is quoted."""
    deferred = "from __future__ import annotations"
    floors = {path.parts[0] for path in product_sources()}
    assert [n for n, s in sources() if n.split("/")[0] in floors and deferred in s] == []
