"""Reductions on the host that `onnx.reference` gives another element type than the input's, or
refuses of whole numbers: sums of squares, logarithms of sums (opsets 1 to 18). Means of several
operands, of which it refuses a first one that others broadcast."""

import functools
from collections.abc import Callable

import numpy as np

from tilesmith.compiler.host.operators.call import Array, OperatorCall, Results, host_operator


def _reduction(
    compute: Callable[[Array, tuple[int, ...]], Array],
) -> Callable[[OperatorCall], Results]:
    """An operator that reduces the axes named by an input or an attribute, all if none are."""

    def run(call: OperatorCall) -> Results:
        x = call.inputs[0]
        given = call.input(1) if call.input(1) is not None else call.attributes.get("axes")
        named = () if given is None else np.reshape(given, -1).tolist()
        axes = tuple(int(axis) % max(1, x.ndim) for axis in named)
        if not axes and not call.attributes.get("noop_with_empty_axes", 0):
            axes = tuple(range(x.ndim))
        whole = x.dtype.kind in "iu"
        reduced = compute(x if whole and compute is _squares else x.astype(np.float64), axes)
        if not call.attributes.get("keepdims", 1):
            reduced = np.squeeze(reduced, axes)
        return (np.asarray(reduced).astype(x.dtype),)

    return run


def _squares(x: Array, axes: tuple[int, ...]) -> Array:
    return np.sum(x * x, axis=axes, keepdims=True, dtype=x.dtype)


def _log_of_sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(np.log(np.sum(x, axis=axes, keepdims=True)))


def _log_of_exponentials(x: Array, axes: tuple[int, ...]) -> Array:
    """The largest taken out first, so that none overflows."""
    largest = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0)
    return np.asarray(np.log(np.sum(np.exp(x - shift), axis=axes, keepdims=True)) + shift)


host_operator("ReduceSumSquare")(_reduction(_squares))
host_operator("ReduceLogSum")(_reduction(_log_of_sum))
host_operator("ReduceLogSumExp")(_reduction(_log_of_exponentials))


@host_operator("Mean")
def mean(call: OperatorCall) -> Results:
    """The mean of operands that broadcast, in their type (1, 6, 8, 13)."""
    total = functools.reduce(np.add, call.inputs)
    return (np.asarray(total / len(call.inputs)).astype(total.dtype),)
