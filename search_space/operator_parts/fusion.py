"""Epilogues as stages: the compiled side of `epilogue.py`.

`epilogue_stage` turns a workload's epilogue into one stage `out` that reads the producer point by
point, so that a schedule can attach it to the producer's tile.
"""

import math
from collections.abc import Callable

from tilesmith.search_space.expressions.dtypes import computed_in
from tilesmith.search_space.expressions.expression import Expr, ExprLike
from tilesmith.search_space.expressions.scalar import Load, Scalar, call, load
from tilesmith.search_space.scheduling.compute import Stage, Tensor
from tilesmith.search_space.workloads.epilogue import NUMBERS, OperandKind, operand_name
from tilesmith.search_space.workloads.template import Template
from tilesmith.search_space.workloads.workload import Workload


def _gelu_tanh(x: Scalar) -> Scalar:
    cubic = call("multiply", call("multiply", x, x), call("multiply", x, 0.044715))
    inner = call("multiply", call("add", x, cubic), math.sqrt(2 / math.pi))
    return call("multiply", call("multiply", x, 0.5), call("add", call("tanh", inner), 1.0))


def _steps(x: Scalar, per_unit: Scalar, zero: Scalar) -> Scalar:
    """A number as a quantised one before it is cut to its type."""
    return call("add", call("round", call("multiply", x, per_unit)), zero)


def _clip(x: Scalar, low: Scalar | float, high: Scalar | float) -> Scalar:
    return call("minimum", call("maximum", x, low), high)


def _gelu(x: Scalar) -> Scalar:
    error = call("erf", call("multiply", x, 1 / math.sqrt(2)))
    return call("multiply", call("multiply", x, 0.5), call("add", error, 1.0))


_POINTWISE: dict[str, Callable[..., Scalar]] = {
    "bias": lambda x, b: call("add", x, b),
    "scale": lambda x, s: call("multiply", x, s),
    "residual": lambda x, r: call("add", x, r),
    "multiply": lambda x, r: call("multiply", x, r),
    "add_constant": lambda x, c: call("add", x, c),
    "multiply_constant": lambda x, c: call("multiply", x, c),
    "relu": lambda x: call("maximum", x, 0.0),
    "leaky_relu": lambda x, a: call(
        "add", call("maximum", x, 0.0), call("multiply", call("minimum", x, 0.0), a)
    ),
    "clip": _clip,
    "hard_sigmoid": lambda x, a, b: _clip(call("add", call("multiply", x, a), b), 0.0, 1.0),
    "hard_swish": lambda x: call(
        "multiply", x, _clip(call("add", call("multiply", x, 1 / 6), 0.5), 0.0, 1.0)
    ),
    "sigmoid": lambda x: call("sigmoid", x),
    "tanh": lambda x: call("tanh", x),
    "silu": lambda x: call("multiply", x, call("sigmoid", x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "exp": lambda x: call("exp", x),
    "sqrt": lambda x: call("sqrt", x),
    "correction": lambda x, c: call("add", x, c),
    "rescale": lambda x, s: call("multiply", call("to_float32", x), s),
    "residual_uint8": lambda x, r: call("add", x, call("to_float32", r)),
    "fake_quantise": lambda x, lo, hi, s, b: call(
        "add", call("multiply", _clip(call("round", x), lo, hi), s), b
    ),
    "quantise_uint8": lambda x, s, z: call("to_uint8", _steps(x, s, z)),
    "quantise_int8": lambda x, s, z: call("to_int8", _steps(x, s, z)),
}


def pointwise(name: str, value: Scalar, *others: Scalar | float) -> Scalar:
    """A step applied to any scalar, with its numbers or its operand's element."""
    return _POINTWISE[name](value, *others)


def tensors_of(template: Template, workload: Workload) -> tuple[Tensor, ...]:
    """All operands as tensors of their logical shapes, those of the epilogue last."""
    return tuple(
        Tensor(o.name, o.extents, o.dtype, workload.is_constant(o.name))
        for o in template.operands(workload)
    )


def epilogue_tensors(
    template: Template, workload: Workload, full: tuple[ExprLike, ...] | None = None
) -> tuple[Tensor, ...]:
    """The tensors that the epilogue's steps read.

    `full` is the shape of full-size operands where the stages see a view of the output.
    """
    whole = {
        operand_name(step, position)
        for position, step in enumerate(workload.epilogue)
        if step.kind.operand == "full"
    }
    return tuple(
        Tensor(
            o.name,
            full if full is not None and o.name in whole else o.extents,
            o.dtype,
            workload.is_constant(o.name),
        )
        for o in template.operands(workload)
        if o.role == "epilogue"
    )


def epilogue_value(
    template: Template,
    workload: Workload,
    indices: tuple[Expr, ...],
    value: Scalar,
    channel: Expr | None = None,
) -> Scalar:
    """Apply the epilogue's steps to `value`, the output element at logical `indices`.

    `channel` overrides the index of channel operands, where a view hides the channel axis.
    """
    if channel is None:
        channel = indices[template.channel_axis(workload)]
    for position, step in enumerate(workload.epilogue):
        name = operand_name(step, position)
        operands: tuple[Scalar | float, ...] = ()
        if name is not None:
            operands = _elements(name, step.kind.operand, channel, indices)
        value = _POINTWISE[step.name](value, *operands, *step.arguments)
    return value


def _elements(
    name: str, kind: OperandKind, channel: Expr, indices: tuple[Expr, ...]
) -> tuple[Load, ...]:
    """What a step reads of its operand for one element of the output."""
    if kind in NUMBERS:
        return tuple(load(name, place) for place in range(NUMBERS[kind]))
    return (Load(name, (channel,) if kind == "channel" else indices),)


def epilogue_stage(
    template: Template,
    workload: Workload,
    producer: Stage,
    name: str = "out",
    channel: Expr | None = None,
) -> tuple[Stage, ...]:
    """The stage that applies the epilogue to `producer`'s tensor; empty if there is none.

    The producer's axes must be the output's logical axes, in order (or a view of them, with the
    `channel` index given).
    """
    if not workload.epilogue:
        return ()
    element = Load(producer.name, tuple(a.var for a in producer.axes))
    value = epilogue_value(template, workload, element.indices, element, channel)
    return (Stage(name, producer.axes, value, dtype=epilogue_dtype(template, workload)),)


def epilogue_dtype(template: Template, workload: Workload) -> str:
    """Element type of what the epilogue computes: floating values are float32."""
    return computed_in(template.result_dtype(workload))
