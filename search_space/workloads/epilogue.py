"""Epilogues: what is done to an operator's result on its way out, fused into its last store.

A step is a name and up to a few numbers, written `name` or `name:1.5:6`. Steps that need a tensor
(`bias`, `scale`, `residual`, `multiply`) add an operand to the workload, named after the step and
its position: `bias0`, `residual1`, ... The formulas live in one table, used both to build the
scalar expression that is compiled and, in numpy, the reference that it is checked against.

Operand shapes: `bias` and `scale` have one element for each channel of the output (its channel axis
is the template's to say); `residual` and `multiply` have the output's shape and layout.

Requantisation is an epilogue too: integer products are sums in int32, to which `correction` adds a
number for each channel; `rescale` makes them float32; `quantise_*` makes bytes of a floating value,
by a pair of numbers (1/scale, zero point). All those numbers are operands, so that layers that
differ in nothing else are one workload. `fake_quantise` is what a value is that was quantised and
dequantised on its way, by four numbers: least and greatest, and scale and shift behind. What a
value's element type is after each step is a function of the epilogue (`dtypes`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.support.suggestions import unknown
from tilesmith.search_space.workloads.error_function import erf

OperandKind = Literal["none", "channel", "full", "pair", "four"]

NUMBERS = {"pair": 2, "four": 4}
"""Kinds of operands that are a few numbers, and how many."""


@dataclass(frozen=True)
class StepKind:
    """What a step name means.

    Attributes:
        operand: the tensor it takes beside the running value; a "pair" and "four" are numbers.
        arguments: default values of its numbers.
        formula: reference in numpy: (value, operand or None, *numbers) -> value.
        dtype: of the operand; "" means the running value's.
        takes: what the running value must be: "int32", "float" (any), or "" for either.
        gives: dtype of the value after it; "" means as before.
    """

    operand: OperandKind
    arguments: tuple[float, ...]
    formula: Callable[..., Any]
    dtype: str = ""
    takes: Literal["", "int32", "float"] = ""
    gives: str = ""


def _quantised(dtype: type[np.integer[Any]]) -> Callable[..., Any]:
    """saturate(round to even(x p[0]) + p[1]); what is not a number becomes 0."""

    def formula(x: Any, p: Any) -> Any:
        numbers = np.nan_to_num(np.rint(x * p[0]) + p[1], nan=0.0)
        return np.clip(numbers, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)

    return formula


def _through_bytes(x: Any, p: Any) -> Any:
    """clip(round to even(x), p[0], p[1]) p[2] + p[3]."""
    return np.clip(np.rint(x), p[0], p[1]) * p[2] + p[3]


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


STEPS: dict[str, StepKind] = {
    "bias": StepKind("channel", (), lambda x, b: x + b),
    "scale": StepKind("channel", (), lambda x, s: x * s),
    "residual": StepKind("full", (), lambda x, r: x + r),
    "multiply": StepKind("full", (), lambda x, r: x * r),
    "add_constant": StepKind("none", (0.0,), lambda x, _, c: x + c),
    "multiply_constant": StepKind("none", (1.0,), lambda x, _, c: x * c),
    "relu": StepKind("none", (), lambda x, _: np.maximum(x, 0.0)),
    "leaky_relu": StepKind("none", (0.01,), lambda x, _, a: np.where(x >= 0, x, a * x)),
    "clip": StepKind("none", (0.0, 6.0), lambda x, _, lo, hi: np.clip(x, lo, hi)),
    "hard_sigmoid": StepKind("none", (0.2, 0.5), lambda x, _, a, b: np.clip(a * x + b, 0.0, 1.0)),
    "hard_swish": StepKind("none", (), lambda x, _: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)),
    "sigmoid": StepKind("none", (), lambda x, _: _sigmoid(x)),
    "tanh": StepKind("none", (), lambda x, _: np.tanh(x)),
    "silu": StepKind("none", (), lambda x, _: x * _sigmoid(x)),
    "gelu": StepKind("none", (), lambda x, _: 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))),
    "gelu_tanh": StepKind(
        "none",
        (),
        lambda x, _: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "exp": StepKind("none", (), lambda x, _: np.exp(x)),
    "sqrt": StepKind("none", (), lambda x, _: np.sqrt(x)),
    "correction": StepKind("channel", (), lambda x, c: x + c, "int32", "int32"),
    "rescale": StepKind(
        "channel", (), lambda x, s: x.astype(s.dtype) * s, "float32", "int32", "float32"
    ),
    "residual_uint8": StepKind("full", (), lambda x, r: x + r.astype(x.dtype), "uint8", "float"),
    "fake_quantise": StepKind("four", (), _through_bytes, "float32", "float"),
    "quantise_uint8": StepKind("pair", (), _quantised(np.uint8), "float32", "float", "uint8"),
    "quantise_int8": StepKind("pair", (), _quantised(np.int8), "float32", "float", "int8"),
}

_LAST = frozenset(kind.gives for kind in STEPS.values()) - {"", "float32"}
"""Element types that no step takes."""


@dataclass(frozen=True)
class EpilogueStep:
    """One fused step: `EpilogueStep("clip", (0.0, 6.0))`, written `clip:0:6`."""

    name: str
    arguments: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in STEPS:
            raise unknown("epilogue step", self.name, STEPS, WorkloadError)
        defaults = STEPS[self.name].arguments
        if not self.arguments:
            object.__setattr__(self, "arguments", defaults)
        if len(self.arguments) != len(defaults):
            raise WorkloadError(f"epilogue step '{self.name}' takes {len(defaults)} numbers")
        # As a key prints them: nine digits tell any two float32 apart.
        object.__setattr__(self, "arguments", tuple(float(f"{a:.9g}") for a in self.arguments))

    @classmethod
    def parse(cls, text: str) -> "EpilogueStep":
        name, *numbers = text.split(":")
        try:
            return cls(name, tuple(float(number) for number in numbers))
        except ValueError as error:
            raise WorkloadError(f"epilogue step '{text}' has a part that is no number") from error

    @property
    def kind(self) -> StepKind:
        return STEPS[self.name]

    def __str__(self) -> str:
        if self.arguments == self.kind.arguments:
            return self.name
        return ":".join((self.name, *(f"{a:.9g}" for a in self.arguments)))


def operand_name(step: EpilogueStep, position: int) -> str | None:
    """The operand a step at `position` of its epilogue reads (`bias0`), or None."""
    return None if step.kind.operand == "none" else f"{step.name}{position}"


def dtypes(start: str, epilogue: tuple[EpilogueStep, ...]) -> tuple[str, ...]:
    """Element types of the running value: before each step, and after the last one.

    A floating value is named by what it is stored in, whatever it is computed in.

    Args:
        start: of the operator's result without epilogue.

    Raises:
        WorkloadError: a step takes no value of that type.
    """
    types = [start]
    for step in epilogue:
        before, kind = types[-1], step.kind
        wanted = {"int32": before == "int32", "float": is_floating(before), "": True}[kind.takes]
        if not wanted or (before in _LAST and len(types) > 1):
            raise WorkloadError(
                f"epilogue step '{step}' takes {_TAKES[kind.takes]}, not the {before} that stands "
                f"before it in '{','.join(map(str, epilogue))}'"
            )
        types.append(kind.gives or before)
    return tuple(types)


_TAKES = {
    "int32": "sums of integer products (int32)",
    "float": "floating values (integer products need 'rescale' first)",
    "": "what is not quantised yet",
}


def reference(
    epilogue: tuple[EpilogueStep, ...],
    value: NDArray[Any],
    operands: dict[str, NDArray[Any]],
    channel_axis: int,
) -> NDArray[Any]:
    """Apply an epilogue in numpy.

    Args:
        value: the operator's result, any shape, logical layout.
        operands: epilogue operands by name; channel operands have shape (channels,).
        channel_axis: the axis of `value` that channel operands run along.
    """
    for position, step in enumerate(epilogue):
        name = operand_name(step, position)
        operand = operands[name] if name else None
        if operand is not None and step.kind.operand == "channel":
            shape = [1] * value.ndim
            shape[channel_axis] = -1
            operand = operand.reshape(shape)
        value = step.kind.formula(value, operand, *step.arguments)
    return value
