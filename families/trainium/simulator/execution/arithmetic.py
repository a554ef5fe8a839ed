"""What activations, operations and reductions of instructions compute, in numpy, by their names.

Each function maps arrays in fp32, the operands of an instruction, to its result before it is
rounded; the machine in `functional` reads operands and writes results. Invariant: every name that
instructions know is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.instructions import ACTIVATIONS, OPERATIONS, REDUCTIONS

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

assert set(FUNCTIONS) == set(ACTIVATIONS) and set(BINARY) == set(OPERATIONS)
assert set(REDUCERS) == set(REDUCTIONS)
