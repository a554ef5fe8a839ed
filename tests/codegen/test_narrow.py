"""Floating types of 8 and 16 bits on every instruction set: each element, each tie, what is no
number; against ml_dtypes and numpy, which round like the standard."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.codegen.test_element_types import default_run
from tests.conformance.test_instruction_sets import KNOWN, skip_unless_runnable, target_of
from tilesmith.codegen.host.machine import cpu_target, host_target
from tilesmith.codegen.llvm.functions.narrow import FORMATS
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import compile_config
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.search_space.expressions.dtypes import NAMES, is_narrow, to_numpy
from tilesmith.search_space.hardware.instruction_set import instruction_set
from tilesmith.search_space.workloads.workload import Workload

NARROW = [name for name in NAMES if is_narrow(name)]
SETS = [*KNOWN, "generic"]


def unsigned(dtype: str) -> np.dtype[Any]:
    return np.dtype(f"u{to_numpy(dtype).itemsize}")


def every(dtype: str) -> NDArray[Any]:
    """Every element of a type."""
    kind = unsigned(dtype)
    return np.arange(int(np.iinfo(kind).max) + 1).astype(kind).view(to_numpy(dtype))


def same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Equal bit by bit, but what is not a number."""
    assert found.dtype == wanted.dtype
    broken = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), broken)
    bits = f"u{found.dtype.itemsize}"
    np.testing.assert_array_equal(found[~broken].view(bits), wanted[~broken].view(bits))


def cast(x: NDArray[Any], source: str, result: str, isa: str) -> NDArray[Any]:
    """A cast on an instruction set; the test is skipped where this machine cannot run it."""
    target = (
        target_of(isa) if isa in KNOWN else cpu_target(isa, isa, host_target().text("isa.triple"))
    )
    skip_unless_runnable(target)
    text = f"elementwise shape={x.size} expression=to_float32(x0) types={source} dtype={result}"
    workload = Workload.parse(text)
    return compile_config(workload, target, default_of(workload, target))({"x0": x})


def hard(dtype: str) -> NDArray[np.float32]:
    """Elements, the points half way between them and their neighbours, any bits at all."""
    wide = every(dtype).astype(np.float32)
    known = np.sort(wide[np.isfinite(wide)])
    ties = ((known[1:].astype(np.float64) + known[:-1]) / 2).astype(np.float32)
    beyond = [np.nextafter(ties, np.float32(sign * np.inf)) for sign in (1, -1)]
    any_bits = np.random.default_rng(0).integers(0, 1 << 32, 20000, dtype=np.uint64)
    numbers = np.float32([65519.9, 65520, 464, 464.1, 61440, 3.4e38, 1e-45, -1e-45, np.inf, 0.0])
    return np.concatenate([wide, ties, *beyond, any_bits.astype(np.uint32).view("f4"), numbers])


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("dtype", NARROW)
def test_every_element_is_read_exactly(dtype: str, isa: str) -> None:
    x = every(dtype)
    same(cast(x, dtype, "float32", isa), x.astype(np.float32))


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("dtype", NARROW)
def test_numbers_are_rounded_to_the_nearest_or_even(dtype: str, isa: str) -> None:
    x = hard(dtype)
    with np.errstate(all="ignore"):
        wanted = x.astype(to_numpy(dtype))
    same(cast(x, "float32", dtype, isa), wanted)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    "text", ["gather shape=16x{n} indices=1", "transpose shape=16x{n} perm=1x0"]
)
def test_bits_are_moved_as_they_are(dtype: str, text: str) -> None:
    """What is not a number keeps its bits, signalling ones too."""
    x = every(dtype).reshape(16, -1)
    names = {"x": x, "indices": np.array([3])}
    found = default_run(
        f"{text.format(n=x.shape[1])} dtype={dtype}", *names.values(), names=" ".join(names)
    )
    wanted = x.T if "transpose" in text else x[[3]]
    np.testing.assert_array_equal(found.view(unsigned(dtype)), wanted.view(unsigned(dtype)))


@settings(max_examples=30)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=40),
    st.sampled_from(NARROW),
)
def test_a_choice_keeps_what_it_chooses(numbers: list[float], dtype: str) -> None:
    """`where` between elements and a number that the type holds, or does not hold."""
    with np.errstate(all="ignore"):
        x = np.array((numbers * 40)[:40], np.float32).astype(to_numpy(dtype))
    flags = np.arange(40) % 3 > 0
    for number in (0.0, 0.1):
        text = f"elementwise shape=40 expression=where(x0,x1,{number}) types=bool,{dtype}"
        found = default_run(f"{text} dtype={dtype}", flags, x)
        same(found, np.where(flags, x, np.float32(number).astype(x.dtype)))


@pytest.mark.parametrize("isa", KNOWN)
def test_halves_are_converted_by_instructions_where_there_are_any(isa: str) -> None:
    chosen, target = instruction_set(isa), target_of(isa)
    text = "elementwise shape=67 expression=exp(x0) dtype=float16"
    workload = Workload.parse(text)
    code = lowered(workload, target, default_of(workload, target))
    assembly = toolchain.emit_assembly(emit_module(code, target).text, target)
    found = re.search(r"\bvcvtph2ps\b|\bfcvtl\b|\bfcvt\b", assembly) is not None
    assert found == ("float16" in chosen.conversions)
    assert "hf2" not in assembly, "no calls of a library"


def test_formats_are_those_of_the_types() -> None:
    for dtype, form in FORMATS.items():
        kind = to_numpy(dtype)
        broken, infinite = (
            np.array([bits], unsigned(dtype)).view(kind).astype(np.float32)[0]
            for bits in (form.broken, form.infinite)
        )
        assert np.isnan(broken) and not np.isfinite(infinite)


def test_one_element_behind_a_row_is_not_written() -> None:
    """The last vector of a row of 33 has one lane: its neighbour stays."""
    text = "attention m=13 n=32 k=16 v=33 dtype=bfloat16"
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s).astype("f4") for s in ((13, 16), (32, 16), (32, 33)))
    narrow = [a.astype(to_numpy("bfloat16"))[None, None] for a in (q, k, v)]
    found = default_run(text, *narrow, names="q k v")[0, 0].astype(np.float32)
    wide = [a[0, 0].astype(np.float64) for a in narrow]
    powers = np.exp(wide[0] @ wide[1].T / 4)
    wanted = powers / powers.sum(axis=1, keepdims=True) @ wide[2]
    np.testing.assert_allclose(found, wanted, atol=0.01)
