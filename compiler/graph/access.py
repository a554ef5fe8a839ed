"""Reads ONNX nodes without caring for the opset: arguments that moved from attributes to inputs.

Every function takes the node and a lookup of constants, and returns None where the argument is
computed at run time (so that a caller leaves such a node to the host).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node

Constants = Callable[[str], NDArray[Any] | None]
"""Looks a tensor's constant value up; None if it is not constant."""


def shortest(value: Any) -> float:
    """The shortest decimal that single precision cannot tell from `value`: 0.2, not 0.200000003."""
    return float(str(np.float32(value)))


def integers(node: Node, name: str, position: int, constant: Constants) -> tuple[int, ...] | None:
    """A list of integers: attribute `name`, or the constant input at `position`; () if absent."""
    value = node.attribute(name)
    if value is not None:
        return tuple(int(v) for v in np.atleast_1d(value))
    if not node.input(position):
        return ()
    array = constant(node.input(position))
    return None if array is None else tuple(int(v) for v in array.reshape(-1))


def scalar(
    node: Node, name: str, position: int, constant: Constants, default: float
) -> float | None:
    """A number: attribute `name`, or the constant input at `position`, or `default`."""
    value = node.attribute(name)
    if value is not None:
        return float(value)
    if not node.input(position):
        return default
    array = constant(node.input(position))
    return shortest(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def axes(node: Node, rank: int, constant: Constants, position: int = 1) -> tuple[int, ...] | None:
    """Axes of a reduction, Squeeze or the like, non-negative and sorted; () where none are
    given."""
    listed = integers(node, "axes", position, constant)
    return None if listed is None else tuple(sorted(axis % rank for axis in listed))


def permutation(node: Node, rank: int) -> tuple[int, ...]:
    """The order in which a Transpose puts axes: backwards where none is stated."""
    return tuple(node.attribute("perm") or reversed(range(rank)))


def within(axis: int, rank: int) -> int | None:
    """An axis counted from the front; None if there is none of that number."""
    return axis % rank if -rank <= axis < rank else None


def uniform(constant: Constants, name: str) -> float | None:
    """The value of a float32 constant that holds one number only (of any shape), else None."""
    array = constant(name)
    if array is None or array.size == 0 or array.dtype.kind != "f":
        return None
    repeated = (slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)
    array = array[tuple(repeated)]  # what broadcasting made of it is not looked at again
    first = array.flat[0]
    single = array.size == 1 or bool(np.all(array == first))
    return shortest(first) if single and array.dtype == np.float32 else None


def clip_bounds(node: Node, constant: Constants) -> tuple[float, float] | None:
    """Bounds of a Clip."""
    low = scalar(node, "min", 1, constant, float("-inf"))
    high = scalar(node, "max", 2, constant, float("inf"))
    return None if low is None or high is None else (low, high)


def spatial(node: Node, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    """Return a per-axis attribute such as strides; `default` on all `rank` axes if it is absent."""
    value = node.attribute(name)
    return tuple(value) if value else (default,) * rank


def pads(
    node: Node, extents: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """(before, after) padding of each spatial axis, `auto_pad` resolved.

    Args:
        extents: spatial extents of the input.
        kernel: spatial extents of the window.
    """
    rank = len(extents)
    mode = node.attribute("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        flat = node.attribute("pads") or (0,) * (2 * rank)
        return tuple((flat[i], flat[rank + i]) for i in range(rank))
    if mode == "VALID":
        return ((0, 0),) * rank
    padding: list[tuple[int, int]] = []
    strides, dilations = spatial(node, "strides", rank), spatial(node, "dilations", rank)
    for extent, size, stride, dilation in zip(extents, kernel, strides, dilations, strict=True):
        window = (size - 1) * dilation + 1
        total = max(0, (-(-extent // stride) - 1) * stride + window - extent)
        small = total // 2
        padding.append((small, total - small) if mode == "SAME_UPPER" else (total - small, small))
    return tuple(padding)
