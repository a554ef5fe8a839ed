"""Is a kernel's output right? Random inputs, a reference in numpy, and a tolerance with a reason.

The reference is computed once for each workload, in float64 on the inputs as rounded to the
workload's dtype, and kept in a file, so that a renewed worker need not compute it again. An
element may differ by

    rtol x accumulated + eps(dtype) x |reference|

where `accumulated` is the same operator on the absolute values of its inputs: for a sum of
products exactly the magnitude that rounding errors are relative to, whatever cancels in the
result. `rtol` is 5e-5 for float32 accumulation: 40 times what Winograd F(4x4,3x3) needs (about
1e-6 of the accumulated magnitude), and far below one missing product of a sum. An epilogue carries
the tolerance along by its slope, evaluated at both ends of the interval.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy
from tilesmith.search_space.workloads import epilogue
from tilesmith.search_space.workloads.template import Operand, template_of
from tilesmith.search_space.workloads.workload import Workload

_RTOL = 5e-5
"""Of sums in float32."""
_LARGE_INTEGER = 8
"""Integer inputs are drawn below this, so that indices into small axes stay legal."""


@dataclass(frozen=True)
class Expected:
    """What a workload should compute on its random inputs.

    Attributes:
        reference: right output, float64, logical layout.
        tolerance: allowed absolute difference of each element.
    """

    reference: NDArray[np.float64]
    tolerance: NDArray[np.float64]

    def mismatch(self, output: NDArray[Any]) -> str:
        """Empty if `output` (logical layout) is right, else a sentence that says how it is not."""
        if output.shape != self.reference.shape:
            return f"output has shape {output.shape}, not {self.reference.shape}"
        difference = np.abs(output.astype(np.float64) - self.reference)
        both = np.isnan(self.reference) & np.isnan(output.astype(np.float64))
        same = both | (output.astype(np.float64) == self.reference)
        bad = ~same & ~(difference <= self.tolerance)
        if not bad.any():
            return ""
        worst = np.unravel_index(
            int(np.argmax(np.where(bad, np.nan_to_num(difference, nan=np.inf), -1))), bad.shape
        )
        place = tuple(int(i) for i in worst)
        return (
            f"{int(bad.sum())} of {bad.size} elements are wrong; at {place} it computed "
            f"{float(output[worst]):.6g} where {float(self.reference[worst]):.6g} is right"
        )


def random_inputs(workload: Workload) -> dict[str, NDArray[Any]]:
    """Inputs and epilogue operands by name, logical layouts; the same for equal workloads.

    Floats are standard normal; where an epilogue follows, the first input is scaled so that the
    operator's result has a standard deviation of about one, where activations are not saturated.
    """
    template = template_of(workload.operator)
    rng = np.random.default_rng(int(workload.digest, 16))
    inputs = {operand.name: _random(operand, rng) for operand in template.operands(workload)}
    first = template.inputs(workload)[0]
    if workload.epilogue and is_floating(first.dtype):
        with np.errstate(all="ignore"):
            spread = float(np.std(template.reference(workload, _single(inputs)), dtype=np.float64))
        if np.isfinite(spread) and spread > 1.0:
            inputs[first.name] = (inputs[first.name] / spread).astype(to_numpy(first.dtype))
    return inputs


def expected(workload: Workload, inputs: Mapping[str, NDArray[Any]], folder: Path) -> Expected:
    """Reference and tolerance, from `folder` if they are there, else computed and put there."""
    path = folder / f"{workload.digest}.npz"
    if path.exists():
        with np.load(path) as stored:
            return Expected(stored["reference"], stored["tolerance"])
    computed = _computed(workload, inputs)
    partial = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(partial, reference=computed.reference, tolerance=computed.tolerance)
    partial.replace(path)
    return computed


def _computed(workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> Expected:
    template = template_of(workload.operator)
    wide = _wide(inputs)
    with np.errstate(all="ignore"):
        value = np.asarray(template.reference(workload, wide), np.float64)
        absolute = {name: np.abs(array) for name, array in wide.items()}
        accumulated = np.abs(np.asarray(template.reference(workload, _single(absolute))))
        accumulated = accumulated.astype(np.float64)
        bound = _RTOL * np.maximum(np.nan_to_num(accumulated), np.abs(np.nan_to_num(value)))
        result, tolerance = value, bound
        if workload.epilogue:
            axis = template.channel_axis(workload)
            low, result, high = (
                epilogue.reference(workload.epilogue, moved, wide, axis)
                for moved in (value - bound, value, value + bound)
            )
            slope = np.maximum(np.abs(high - result), np.abs(low - result))
            tolerance = np.nan_to_num(slope) + _RTOL * (1.0 + np.abs(result))
    dtype = to_numpy(template.output(workload).dtype)
    if dtype.kind in "iub":
        return Expected(result, np.zeros(result.shape))
    rounding = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    return Expected(result, tolerance + rounding * np.abs(np.nan_to_num(result)) + 1e-30)


def _wide(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Floats as float64; integers as they are."""
    return {
        name: array if array.dtype.kind in "iub" else array.astype(np.float64)
        for name, array in inputs.items()
    }


def _single(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Floats as float32, for magnitudes: half the time and memory of doubles."""
    return {
        name: array if array.dtype.kind in "iub" else array.astype(np.float32)
        for name, array in arrays.items()
    }


def _random(operand: Operand, rng: np.random.Generator) -> NDArray[Any]:
    dtype = to_numpy(operand.dtype)
    if dtype.kind in "iu":
        return rng.integers(0, _LARGE_INTEGER, operand.shape).astype(dtype)
    if dtype.kind == "b":
        return rng.random(operand.shape) < 0.5
    drawn = np.float64 if dtype == np.float64 else np.float32
    return rng.standard_normal(operand.shape, drawn).astype(dtype, copy=False)
