"""Small values: registries, measurements, dtypes, programs and compute definitions."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tilesmith.search_space.expressions.dtypes import NAMES, check_dtype, size_of, to_numpy
from tilesmith.search_space.expressions.expression import const, var
from tilesmith.search_space.expressions.scalar import (
    Const,
    Select,
    call,
    load,
    loads,
    operations,
    substitute,
)
from tilesmith.search_space.ir.program import (
    Block,
    If,
    Loop,
    Sequence,
    blocks,
    children,
    sequence,
    simplify_if,
    walk,
)
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import (
    InputError,
    TilesmithError,
    VerificationError,
    WorkloadError,
)
from tilesmith.search_space.support.registry import Registry


def test_a_file_in_the_folder_is_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "toy_entries"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from tilesmith.search_space.support.registry import Registry\n"
        "entries = Registry('toy', 'toy_entries')\n"
    )
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(
            f"from toy_entries import entries\nentries.register('{name}')('{name}!')\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    entries: Registry[str] = __import__("toy_entries").entries
    assert list(entries) == ["one", "two"]
    assert entries["two"] == "two!"
    assert "one" in entries and "three" not in entries
    with pytest.raises(InputError, match="unknown toy 'three'; one of one, two is expected"):
        entries["three"]
    with pytest.raises(InputError, match="the toy name 'one' is taken by builtins"):
        entries.register("one")("another")
    for name in [n for n in sys.modules if n.startswith("toy_entries")]:
        del sys.modules[name]


def test_measurements_have_samples_or_a_reason() -> None:
    good = MeasureResult("ok", "hardware", (3e-3, 1e-3, 2e-3))
    assert good.ok and good.latency == 2e-3
    bad = MeasureResult("timeout", "hardware", message="ran for 10 s")
    assert not bad.ok and bad.latency is None
    with pytest.raises(AssertionError):
        MeasureResult("ok", "hardware")
    with pytest.raises(AssertionError):
        MeasureResult("fine", "hardware", (1.0,))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_dtypes_have_sizes(name: str) -> None:
    assert size_of(name) == to_numpy(name).itemsize == np.zeros(1, to_numpy(name)).nbytes


def test_unknown_dtypes_are_named() -> None:
    with pytest.raises(WorkloadError, match="unknown dtype 'float31'"):
        check_dtype("float31")


def test_errors_know_their_exit_code() -> None:
    assert (WorkloadError.exit_code, VerificationError.exit_code) == (2, 1)
    assert issubclass(WorkloadError, TilesmithError)


def test_sequences_flatten_and_conditions_decide() -> None:
    a, b = Block("s", "x", (), Const(1.0)), Block("s", "y", (), Const(2.0))
    assert sequence(a) is a
    assert sequence(a, None, Sequence((b, a))) == Sequence((a, b, a))
    i = var("i")
    assert simplify_if((const(0), const(3)), a, b) is a
    assert simplify_if((const(-1), i), a, b) is b
    assert simplify_if((const(-1),), a, None) == Sequence(())
    assert simplify_if((const(2), i), a, b) == If((i,), a, b)
    tree = Loop("i", const(2), "serial", If((i,), a, b))
    assert [type(s).__name__ for s in walk(tree)] == ["Loop", "If", "Block", "Block"]
    assert list(blocks(tree)) == [a, b]
    assert children(If((i,), a)) == (a,)


def test_scalars_are_walked_and_rewritten() -> None:
    i = var("i")
    value = Select((i,), call("add", load("x", i), 1), call("exp", load("y", i + 1)))
    assert [found.buffer for found in loads(value)] == ["x", "y"]
    assert operations(value) == 1
    moved = substitute(value, {"i": var("j") * 2})
    assert str(moved) == "((x[j*2] + 1) if j*2 >= 0 else exp(y[j*2 + 1]))"
    with pytest.raises(AssertionError):
        call("add", load("x", i))


def test_compute_definitions_are_in_order() -> None:
    i = axis("i", 4)
    p = Stage("p", (i,), load("x", i.var))
    q = Stage("q", (i,), load("p", i.var))
    good = ComputeDefinition("c", (Tensor("x", (4,), constant=True),), (p, q))
    assert good.output is q and good.stage("p") is p
    assert good.is_constant("q")
    assert [str(e) for e in good.tensor_shape("x")] == ["4"]
    with pytest.raises(AssertionError, match="before they exist"):
        ComputeDefinition("c", (Tensor("x", (4,)),), (q, p))
    with pytest.raises(AssertionError, match="two tensors named p"):
        ComputeDefinition("c", (Tensor("x", (4,)),), (p, p))
