"""Pad on the host, in numpy: `onnx.reference` refuses to cut off what negative pads do."""

from collections.abc import Sequence

import numpy as np

from tilesmith.compiler.host.operators.call import OperatorCall, Results, host_operator


@host_operator("Pad")
def pad(call: OperatorCall) -> Results:
    """x with elements put before and behind its axes; negative pads cut off, before any are put.

    `pads` lists what goes before each of `axes`, then what goes behind each (ONNX Pad; an attribute
    before opset 11, `paddings` in the first).
    """
    x = call.inputs[0]
    before, after = _sides(call, x.ndim)
    mode = str(call.attributes.get("mode", "constant"))
    cut = tuple(
        slice(max(0, -b), n - max(0, -a)) for n, b, a in zip(x.shape, before, after, strict=True)
    )
    widths = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    if mode == "constant":
        value = call.input(2) if call.opset >= 11 else call.attributes.get("value", 0)
        filled = 0 if value is None else np.asarray(value).reshape(-1)[0]
        return (np.pad(x[cut], widths, constant_values=filled),)
    return (np.pad(x[cut], widths, mode=mode),)  # type: ignore[call-overload]


def _sides(call: OperatorCall, rank: int) -> tuple[list[int], list[int]]:
    flat: Sequence[int] = call.attributes.get("pads") or call.attributes.get("paddings") or ()
    if call.opset >= 11:
        flat = [int(n) for n in call.arrays[1]]
    axes = range(rank) if call.input(3) is None else [int(axis) for axis in call.input(3)]
    if len(flat) != 2 * len(axes):
        raise ValueError(f"{len(flat)} pads are given for {len(axes)} axes")
    before, after = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = flat[position], flat[len(axes) + position]
    return before, after
