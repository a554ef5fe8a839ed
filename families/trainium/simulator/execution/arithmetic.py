"""What activations, operations and reductions of instructions compute, in numpy, by their names.

Each function maps arrays in fp32, the operands of an instruction, to its result before it is
rounded; the machine in `functional` reads operands and writes results. Those of special
instructions (`families.trainium.codegen.kernel.special`) take arrays of shape (partitions,
elements). Invariant: every name that instructions know is here.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa import instructions as isa

Array = NDArray[Any]

_erf = np.vectorize(math.erf, otypes=[np.float32])


def _gelu_tanh(x: Array) -> Array:
    cubic: Array = x + 0.044715 * x**3
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * cubic)))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "copy": lambda x: x,
    "exp": np.exp,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": _gelu_tanh,
    "erf": _erf,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "abs": np.abs,
    "log": np.log,
    "softplus": lambda x: np.logaddexp(x, 0),
    "sin": np.sin,
    "reciprocal": lambda x: 1 / x,
    "sign": np.sign,
}

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "bypass": lambda a, b: a,
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "reverse_subtract": lambda a, b: b - a,
    "reverse_divide": lambda a, b: b / a,
    "is_ge": lambda a, b: (a >= b).astype(np.float32),
    "is_gt": lambda a, b: (a > b).astype(np.float32),
    "is_le": lambda a, b: (a <= b).astype(np.float32),
    "is_lt": lambda a, b: (a < b).astype(np.float32),
    "is_equal": lambda a, b: (a == b).astype(np.float32),
}

REDUCERS: dict[str, Callable[..., Array]] = {
    "add": np.sum,
    "max": np.max,
    "min": np.min,
    "multiply": np.prod,
}

assert set(FUNCTIONS) == set(isa.ACTIVATIONS) and set(BINARY) == set(isa.OPERATIONS)
assert set(REDUCERS) == set(isa.REDUCTIONS)


def affine(shape: tuple[int, ...], base: int, channel: int, step: int) -> Array:
    """`base + channel*p + step*f` for every element."""
    rows, columns = np.indices(shape)
    return np.asarray(base + channel * rows + step * columns)


def in_range(shape: tuple[int, ...], low: Array, high: Array, start: int) -> Array:
    """Where `low[p] <= start + f < high[p]`."""
    place = start + np.arange(shape[1])[None]
    return np.asarray((place >= low) & (place < high))


def bn_stats(a: Array) -> Array:
    """(count, mean, count * variance) of even, then of odd elements, shape (P, 6)."""
    columns = []
    for part in (a[:, 0::2], a[:, 1::2]):
        count = part.shape[1]
        mean = part.mean(axis=1) if count else np.zeros(len(a), dtype=np.float32)
        spread = ((part - mean[:, None]) ** 2).sum(axis=1)
        columns += [np.full(len(a), count, dtype=np.float32), mean, spread]
    return np.stack(columns, axis=1)


def bn_aggr(statistics: Array) -> Array:
    """(mean, variance) of everything behind the statistics, shape (P, 2)."""
    count, mean, spread = (statistics[:, i::3] for i in range(3))
    total = count.sum(axis=1)
    whole = (count * mean).sum(axis=1) / total
    variance = (spread + count * (mean - whole[:, None]) ** 2).sum(axis=1) / total
    return np.stack([whole, variance], axis=1)


def max8(a: Array) -> Array:
    """The eight largest of each row, descending."""
    return np.asarray(-np.sort(-a, axis=1)[:, :8])


def find_index8(a: Array, values: Array) -> Array:
    """The first place of each value in its row."""
    return np.asarray((a[:, None, :] == values[:, :, None]).argmax(axis=2))


def match_replace8(a: Array, values: Array, fill: float) -> Array:
    """The rows with the first place of each value replaced, one value after the other."""
    result = a.copy()
    for column in values.T:
        matches = result == column[:, None]
        rows = np.flatnonzero(matches.any(axis=1))
        result[rows, matches[rows].argmax(axis=1)] = fill
    return result


def local_gather(a: Array, index: Array, count: int) -> Array:
    """`count` elements of each row; 16 rows share their indices."""
    groups = index.astype(np.int64).reshape(-1, isa.GATHER_PARTITIONS, index.shape[1])
    flat = groups.transpose(0, 2, 1).reshape(len(groups), -1)[:, :count]
    return np.take_along_axis(a, np.repeat(flat, isa.GATHER_PARTITIONS, axis=0), axis=1)


def shuffle(a: Array, mask: Sequence[int]) -> Array:
    """Partitions of each quarter as `mask` picks them."""
    return a.reshape(-1, isa.QUARTER, a.shape[1])[:, list(mask)].reshape(a.shape)
