"""References and tolerances: right kernels pass, one missing product is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.arena import BumpAllocator
from tilesmith.tuner.measurement.checking import expected, random_inputs
from tilesmith.tuner.measurement.timing import flush

WORKLOADS = [
    "matmul m=33 n=47 k=129 const=b",
    "matmul m=16 n=16 k=16 epilogue=bias,relu",
    "matmul m=8 n=24 k=300 epilogue=exp",
    "matmul m=8 n=24 k=64 epilogue=gelu,residual",
    "matmul m=5 n=7 k=3 batch=4 ta=1",
]


@pytest.mark.parametrize("text", WORKLOADS)
def test_float32_results_pass_and_a_missing_product_fails(text: str, tmp_path: Path) -> None:
    from tilesmith.search_space.workloads import epilogue
    from tilesmith.search_space.workloads.template import template_of

    workload = Workload.parse(text)
    template = template_of("matmul")
    inputs = random_inputs(workload)
    right = expected(workload, inputs, tmp_path)

    def computed(given: dict[str, np.ndarray]) -> np.ndarray:
        value = template.reference(workload, given)
        axis = template.channel_axis(workload)
        return epilogue.reference(workload.epilogue, value, given, axis).astype(np.float32)

    assert right.mismatch(computed(inputs)) == ""
    assert np.isfinite(right.tolerance).all() and np.isfinite(right.reference).all()
    broken = {**inputs, "a": inputs["a"].copy()}
    broken["a"].reshape(-1)[np.argmax(np.abs(broken["a"]))] = 0.0
    assert "elements are wrong" in right.mismatch(computed(broken))
    assert "has shape" in right.mismatch(computed(inputs)[..., :-1])


def test_the_reference_is_computed_once_and_inputs_repeat(tmp_path: Path) -> None:
    workload = Workload.parse(WORKLOADS[0])
    first = expected(workload, random_inputs(workload), tmp_path)
    (stored,) = tmp_path.iterdir()
    stamp = stored.stat().st_mtime_ns
    again = expected(workload, random_inputs(workload), tmp_path)
    np.testing.assert_array_equal(first.reference, again.reference)
    assert stored.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_epilogue_inputs_are_scaled_so_that_activations_do_not_saturate(dtype: str) -> None:
    workload = Workload.parse(f"matmul m=32 n=32 k=1024 dtype={dtype} epilogue=sigmoid")
    a, b = (array.astype(np.float64) for array in random_inputs(workload).values())
    assert np.std(a @ b) == pytest.approx(1.0, rel=0.01)


def test_the_arena_hands_out_aligned_disjoint_arrays_and_grows() -> None:
    arena = BumpAllocator(1 << 21)
    first, second = arena.empty((100, 3), np.dtype(np.float32)), arena.copy(np.arange(7.0))
    first[...] = 5
    assert first.ctypes.data % 256 == second.ctypes.data % 256 == 0
    np.testing.assert_array_equal(second, np.arange(7.0))
    large = arena.empty((3 << 20,), np.dtype(np.uint8))
    large[...] = 1
    assert (first == 5).all()
    arena.reset()
    again = arena.empty((3 << 20,), np.dtype(np.uint8))
    assert again.ctypes.data % (2 << 20) == 0


def test_flushing_leaves_the_data_as_it_is() -> None:
    data = np.arange(100_000.0)
    flush([data, data[:0]])
    np.testing.assert_array_equal(data, np.arange(100_000.0))
