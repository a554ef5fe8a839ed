"""Element types on CPUs: whole numbers without a sign, and what there is no code for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conformance.template_checks import run
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.workload import Workload

UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


def default_run(text: str, *arrays: NDArray[Any], names: str = "x0 x1") -> NDArray[Any]:
    workload = Workload.parse(text)
    config = default_of(workload, host_target())
    return run(workload, config, dict(zip(names.split(), arrays, strict=False)))


def pair(dtype: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Numbers of which half have the highest bit set; none is zero."""
    most, rng = int(np.iinfo(dtype).max), np.random.default_rng(0)
    kind = to_numpy(dtype)
    return tuple(rng.integers(1, most, 67, dtype=kind, endpoint=True) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("maximum(x0,x1)", np.maximum), ("minimum(x0,x1)", np.minimum),
        ("divide(x0,x1)", np.floor_divide), ("modulo(x0,x1)", np.mod),
        ("absolute(x0)", lambda a, b: a), ("divide(x0,3)", lambda a, b: a // a.dtype.type(3)),
    ],
)  # fmt: skip
def test_whole_numbers_without_a_sign(dtype: str, expression: str, wanted: Any) -> None:
    a, b = pair(dtype)
    found = default_run(f"elementwise shape=67 expression={expression} dtype={dtype}", a, b)
    np.testing.assert_array_equal(found, wanted(a, b))


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_comparisons_and_conversions_without_a_sign(dtype: str) -> None:
    a, b = pair(dtype)
    text = "elementwise shape=67 expression=less(x0,x1) dtype=bool"
    np.testing.assert_array_equal(default_run(f"{text} types={dtype},{dtype}", a, b), a < b)
    text = f"elementwise shape=67 expression=to_float32(x0) types={dtype}"
    np.testing.assert_array_equal(default_run(text, a), a.astype(np.float32))


@pytest.mark.parametrize("axes", [0, 1])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_extremes_without_a_sign(kind: str, axes: int) -> None:
    x = np.random.default_rng(0).integers(0, 256, (37, 41), dtype=np.uint8)
    text = f"reduce shape=37x41 kind={kind} axes={axes} keepdims=0 dtype=uint8"
    np.testing.assert_array_equal(default_run(text, x, names="x"), getattr(x, kind)(axis=axes))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("elementwise shape=5 expression=exp(x0) dtype=float64", "'exp' in dtype=float64"),
        ("matmul m=3 n=4 k=5 dtype=float64", "dtype=float32 beside dtype=float64"),
        ("softmax shape=3x4 dtype=float64", "dtype=float32 beside dtype=float64"),
        ("reduce shape=3x4 epilogue=exp dtype=float64", "'exp' in dtype=float64"),
    ],
)
def test_what_has_no_code_is_refused(text: str, what: str) -> None:
    with pytest.raises(WorkloadError, match=f"no code for {what} on target 'cpu'; use dtype=float"):
        scheduler_of(Workload.parse(text), host_target())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int16", "uint16", "bool"])
def test_any_type_is_moved(dtype: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2, (19, 37 * 16), dtype=np.uint8)
    size = to_numpy(dtype).itemsize
    x = np.ascontiguousarray(bits[:, : 37 * size]).view(to_numpy(dtype))
    found = default_run(
        f"gather shape=19x37 indices=4 dtype={dtype}", x, np.array([0, 18, 3, 3]),
        names="x indices",
    )  # fmt: skip
    np.testing.assert_array_equal(found.view(np.uint8), x[[0, 18, 3, 3]].view(np.uint8))


def test_bytes_with_and_without_a_sign_in_one_kernel() -> None:
    """A row of six is read under a mask, by one function of LLVM's for all bytes."""
    rng = np.random.default_rng(2)
    x, flags = rng.integers(0, 255, (8, 6), dtype=np.uint8), rng.random((8, 6)) > 0.5
    text = "elementwise shape=8x6 expression=where(x1,to_float32(x0),x2) x2=6 "
    row = np.arange(6, dtype=np.float32)
    found = default_run(text + "types=uint8,bool,float32", x, flags, row, names="x0 x1 x2")
    np.testing.assert_array_equal(found, np.where(flags, x, row))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_numbers_become_the_nearest_that_there_is(dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.array([0, 1.9, -1.9, 1e9, -1e9, limits.max, limits.min, np.nan], np.float32)
    found = default_run(
        f"elementwise shape=8 expression=to_{dtype}(x0) types=float32 dtype={dtype}", x
    )
    least = max(limits.min, -1)
    assert found.tolist() == [0, 1, least, limits.max, limits.min, limits.max, limits.min, 0]
    text = f"elementwise shape=8 expression=to_float32(x0) types={dtype}"
    np.testing.assert_array_equal(default_run(text, found), found.astype(np.float32))


@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("result", ["int32", "int64", "uint32", "uint64", "int16", "uint8"])
def test_floats_are_cut_to_the_nearest_whole_number_there_is(source: str, result: str) -> None:
    info = np.iinfo(result)
    ends = [float(end) * factor for end in (info.min, info.max) for factor in (0.99, 1.0, 1.01)]
    special = [0.0, -0.0, 0.5, -0.5, 1.9, -1.9, 1e30, -1e30, np.inf, -np.inf, np.nan, *ends]
    x = np.array([*special, *range(37 - len(special))], source)
    wanted = [
        0 if v != v else info.min if v <= info.min else info.max if v >= info.max else int(v)
        for v in x.astype(np.float64).tolist()
    ]
    text = f"elementwise shape=37 expression=to_{result}(x0) types={source} dtype={result}"
    np.testing.assert_array_equal(default_run(text, x), np.array(wanted, result))
