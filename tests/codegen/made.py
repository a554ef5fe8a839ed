"""Compiled functions made of texts, for tests of what may stand in them."""

from __future__ import annotations

import importlib.util
from itertools import count
from pathlib import Path
from typing import Any

from tilesmith.codegen.compiled import NativeFunction

NUMBER = count()

HEAD = """from typing import NamedTuple
from tilesmith.codegen.compiled import Floats, Ints, Singles, compiled

WHOLE, HALF, WORD = 3, 0.5, "word"


class Pair(NamedTuple):
    scale: float
    values: Ints


@compiled
def first(values: Ints, out: Ints) -> int:
    out[0] = values[0]
    return out[0]


@compiled
def nothing(i: int) -> None:
    pass


@compiled
"""


def made(folder: Path, text: str) -> NativeFunction[..., Any]:
    """The compiled function `f` of a text."""
    path = folder / f"made{next(NUMBER)}.py"
    path.write_text(HEAD + text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.f
    assert isinstance(found, NativeFunction)
    return found


def body(*lines: str, head: str = "def f(n: int, x: float, a: Ints, p: Pair) -> int:") -> str:
    return "\n    ".join([head, *lines]) + "\n"
