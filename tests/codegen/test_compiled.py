"""The compiled subset of Python computes what Python computes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tilesmith.codegen
import tilesmith.compiler.host
import tilesmith.simulator
from tests.codegen.made import body, made
from tilesmith.codegen.compiled import Floats, Ints, NativeFunction, compiled
from tilesmith.codegen.compiled.function import translate
from tilesmith.codegen.host import object_cache


@compiled
def collatz(n: int, seeds: Ints, lengths: Ints, mean: Floats) -> int:
    """Steps to 1 of each seed (at most 50); the number of odd seeds."""
    odd = 0
    total = 0.0
    for i in range(n):
        value = seeds[i]
        if value % 2 == 1 and value > 0:
            odd += 1
        steps = 0
        while value != 1:
            odd_value = value % 2
            value = odd_value * (3 * value + 1) + (1 - odd_value) * (value // 2)
            steps += 1
            if steps >= 50 or value < 0:
                break
        if not steps > 0:
            continue
        lengths[i] = steps
        total += float(steps)
        mean[0] = max(mean[0], total / (i + 1))
    return odd


@compiled
def halves(value: int, scale: float) -> float:
    """Half of a value, scaled."""
    return value / 2 * scale


@compiled
def tally(i: int, values: Ints, total: Floats) -> int:
    """Add half of a value to the total; whether the value is odd. (Its locals are its own.)"""
    value = values[i] - 1
    value += 1
    total[0] += halves(value, 3)
    return value % 2


@compiled
def count_odd(n: int, values: Ints, total: Floats) -> int:
    """How many values are odd."""
    value = 0
    for i in range(n):
        if tally(i, values, total) == 1:
            value += 1
    return value


def test_helpers_are_called_natively_and_in_python():
    values = np.array([1, 4, 7, 10, 11], dtype=np.int64)
    for function in (count_odd, count_odd.python):
        total = np.zeros(1)
        assert function(len(values), values, total) == 3
        assert total[0] == 33 / 2 * 3
    assert set(count_odd.helpers) == {"tally"} and set(tally.helpers) == {"halves"}


@given(st.lists(st.integers(1, 10_000), max_size=20))
@settings(max_examples=30, deadline=None)
def test_native_equals_python(values):
    seeds = np.array(values, dtype=np.int64)
    results = []
    for function in (collatz, collatz.python):
        lengths, mean = np.zeros(len(seeds), dtype=np.int64), np.zeros(1)
        odd = function(len(seeds), seeds, lengths, mean)
        results.append((odd, lengths.tolist(), mean.tolist()))
    assert results[0] == results[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize("step", [1, 2, 7, -1, -2, -5])
@pytest.mark.parametrize("bounds", [(0, 5), (5, 0), (-7, 8), (8, -7), (3, 3)])
def test_ranges_step_as_in_python(folder: Path, step: int, bounds: tuple[int, int]) -> None:
    function = made(folder, body(
        "total = 0", f"for i in range(n, m, {step}):", "    total = total * 3 + i",
        "return total", head="def f(n: int, m: int) -> int:"))  # fmt: skip
    assert function(*bounds) == function.python(*bounds)


class Scaled(NamedTuple):
    scale: float
    values: Ints
    note: str = "not seen"


@dataclass(frozen=True)
class Totals:
    n: int
    sums: Floats
    counts: Ints


LIMIT, STEP = 3, 0.25


@compiled
def add_up(i: int, given: Scaled, totals: Totals) -> None:
    """Add element `i`, scaled, to the sums."""
    if given.values[i] < 0:
        return
    totals.sums[0] += given.values[i] * given.scale
    totals.counts[0] += 1


@compiled
def scaled_sum(given: Scaled, totals: Totals) -> float:
    """The sum of elements that are not negative, scaled, less a quarter for each beyond three."""
    for i in range(totals.n):
        add_up(i, given, totals)
    if totals.counts[0] > LIMIT:
        return float(totals.sums[0] - STEP * (totals.counts[0] - LIMIT))
    return float(totals.sums[0])


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=12), st.floats(-4, 4))
@settings(max_examples=30, deadline=None)
def test_tables_stand_for_their_fields(values: list[int], scale: float) -> None:
    given = Scaled(scale, np.array(values, dtype=np.int64))
    found = []
    for function in (scaled_sum, scaled_sum.python):
        totals = Totals(len(values), np.zeros(1), np.zeros(1, dtype=np.int64))
        found.append((function(given, totals), totals.counts[0]))
    assert found[0] == found[1]


@compiled
def bounded(n: int, values: Ints) -> int:
    """Where the first negative value is; neither side of an `and` is evaluated needlessly."""
    i = 0
    while i < n and values[i] >= 0:
        i += 1
    found = i < n
    if not found or values[i] // (i * 0 + 1) >= 0:
        return -1
    return i


@given(st.lists(st.integers(-2, 9), max_size=6))
@settings(max_examples=30, deadline=None)
def test_conditions_stop_where_python_stops(values: list[int]) -> None:
    array = np.array(values, dtype=np.int64)
    assert bounded(len(values), array) == bounded.python(len(values), array)


@compiled
def store_both(one: Ints, two: Ints) -> int:
    """Set the first elements; the sum of them."""
    one[0] = 1
    two[0] = 2
    return int(one[0] + two[0])


def test_wrong_arguments_are_refused() -> None:
    array = np.zeros(4, dtype=np.int64)
    with pytest.raises(TypeError, match="passed twice"):
        store_both(array, array)
    with pytest.raises(TypeError, match="contiguous arrays of int64"):
        store_both(array, np.zeros(4))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="contiguous"):
        store_both(array, np.zeros(8, dtype=np.int64)[::2])
    with pytest.raises(TypeError, match="2 arguments"):
        store_both(array)  # type: ignore[call-arg]
    assert store_both(array[:1], array[1:]) == 3


def combined(parts: st.SearchStrategy[str], *forms: str) -> st.SearchStrategy[str]:
    filled = st.tuples(st.sampled_from(forms), parts, parts)
    return filled.map(lambda found: "(" + found[0].format(*found[1:]) + ")")


NUMBERS = st.sampled_from(["n", "m", "x", "y", "2", "-3", "0.5", "WHOLE", "HALF"])
CONDITIONS = ("{} < {}", "{} == {}", "{} != {}", "not {} >= {}", "{0} > {1} or {1} <= 1",
              "{0} <= {1} and {0} != 2")  # fmt: skip


def expressions(whole: bool, depth: int) -> st.SearchStrategy[str]:
    """Expressions of ints alone, or of both kinds of numbers."""
    leaves = st.sampled_from(["n", "m", "1", "7", "-3", "WHOLE"]) if whole else NUMBERS
    if depth == 0:
        return leaves
    inner = expressions(whole, depth - 1)
    number = ("{} + {}", "{} - {}", "{} * {}", "min({}, {})", "max({0}, {1}, 1)", "-{0} + {1}")
    if not whole:
        return leaves | combined(inner, *number, "{} / {}", "float({}) - {}")
    conditions = combined(expressions(False, depth - 1), *CONDITIONS).map(lambda text: f"int{text}")
    return leaves | conditions | combined(inner, *number, "{} // {}", "{} % {}", "int({} / {})")


SMALL = st.integers(-40, 40)
REALS = st.floats(-100, 100, allow_nan=False)


@given(expressions(True, 3), expressions(False, 3), SMALL, SMALL, REALS, REALS)
@settings(max_examples=60, deadline=None)
def test_arithmetic_is_pythons(
    folder: Path, whole: str, real: str, n: int, m: int, x: float, y: float
) -> None:
    for text, kind in ((whole, "int"), (real, "float")):
        head = f"def f(n: int, m: int, x: float, y: float) -> {kind}:"
        function = made(folder, body(f"return {text}", head=head))
        try:
            wanted = function.python(n, m, x, y)
        except (ZeroDivisionError, OverflowError, ValueError):
            assume(False)
        assume(abs(wanted) < 2**53)
        assert function(n, m, x, y) == wanted, text


CONDITION = st.builds(
    "{} {} {}".format,
    st.sampled_from("nmk"),
    st.sampled_from(["<", "==", ">="]),
    st.sampled_from(["n", "m", "0", "-7"]),
)


@st.composite
def statements(draw: st.DrawFn, depth: int) -> list[str]:
    """Statements about the ints n, m and k, which stay small; loops end."""
    kinds = ["assign", "add", "if", "for", "while"] if depth else ["assign"]
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind, name = draw(st.sampled_from(kinds)), draw(st.sampled_from("nmk"))
        value = draw(expressions(True, 1))
        inner = [f"    {line}" for line in draw(statements(depth - 1))] if depth else []
        jump = draw(st.sampled_from(["break", "continue", "return m", "pass"]))
        condition = draw(CONDITION)
        match kind:
            case "assign":
                lines.append(f"{name} = ({value}) % 1009 - 500")
            case "add":
                lines.append(f"{name} += {draw(st.integers(-9, 9))}")
            case "if":
                lines += [f"if {condition}:", *inner, "else:", f"    {name} -= 1"]
            case "for":
                stop, step = draw(st.integers(-4, 4)), draw(st.sampled_from([-2, -1, 1, 3]))
                lines += [f"for i{depth} in range({stop * step}, 2, {step}):",
                          f"    k += i{depth} * 3", f"    if {condition}:", f"        {jump}",
                          *inner]  # fmt: skip
            case _:
                lines += [f"w{depth} = 0", f"while w{depth} < 4 and not {condition}:",
                          f"    w{depth} += 1", f"    if {condition}:", f"        {jump}",
                          *inner]  # fmt: skip
    return lines


@given(statements(2), SMALL, SMALL)
@settings(max_examples=30, deadline=None)
def test_statements_do_what_pythons_do(folder: Path, lines: list[str], n: int, m: int) -> None:
    head = "def f(n: int, m: int, x: float, y: float) -> int:"
    function = made(folder, body("k = 1", *lines, "return n + 3 * m + 5 * k", head=head))
    try:
        wanted = function.python(n, m, 0.5, 2.5)
    except (ZeroDivisionError, OverflowError):
        assume(False)
    assert function(n, m, 0.5, 2.5) == wanted, lines


def test_objects_are_kept_and_made_anew_where_they_cannot_be(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = body("return n // 2 + 1", head="def f(n: int) -> int:")
    monkeypatch.setenv(object_cache.ENVIRONMENT, str(tmp_path))
    assert made(folder, text)(-5) == -2
    (kept,) = tmp_path.rglob("*.o")
    content = kept.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(object_cache, "store", pytest.fail)
        assert made(folder, text)(-5) == -2
    kept.write_bytes(content[:-1])
    assert made(folder, text)(-5) == -2
    assert kept.read_bytes() == content


def every_compiled() -> list[NativeFunction[..., Any]]:
    """All compiled functions of the product."""
    found: dict[int, NativeFunction[..., Any]] = {}
    for package in (tilesmith.codegen, tilesmith.simulator, tilesmith.compiler.host):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, NativeFunction):
                    found[id(value)] = value
    return list(found.values())


def test_all_compiled_functions_are_in_the_subset() -> None:
    functions: list[Callable[..., Any]] = list(every_compiled())
    assert len(functions) > 10
    for function in functions:
        assert isinstance(function, NativeFunction)
        translate(function)
