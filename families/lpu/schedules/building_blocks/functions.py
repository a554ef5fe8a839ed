"""Functions that VXM computes, in float32 and int32; why it does not compute others.

The others are put together of VXM's own (`families.lpu.codegen.selection.graphs.expressions`),
which are few: there is no shift of bits, powers are those of one number that is not whole, sines
are of float32 alone (angles of many turns are nothing in float16), and whole numbers are neither
divided nor wrapped around in fewer than 32 bits.
"""

from tilesmith.families.lpu.schedules.building_blocks.machine import DTYPES, WIDE
from tilesmith.search_space.expressions import scalar
from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition

WHOLE = frozenset({"add", "subtract", "multiply", "maximum", "minimum", "negate", "absolute"})
"""Arithmetic of whole numbers of 32 bits."""

CONVERTED = frozenset({"to_bool", "to_float32", "to_int32", "to_int8", "to_uint8"})

FLOATING = WHOLE | {
    "divide", "exp", "tanh", "reciprocal", "sqrt", "sigmoid", "round", "floor", "ceil", "erf",
    "log", "power",
}  # fmt: skip
"""Arithmetic of floating numbers."""

TURNS = frozenset({"sin", "cos"})
"""Functions of angles."""

COMPUTED = FLOATING | TURNS | CONVERTED | scalar.FLAGS | {"where"}


def not_computed(compute: ComputeDefinition, target: Target) -> str | None:
    """Why VXM cannot compute something."""
    for stage in compute.stages:
        reason = _refused(stage.value, compute)
        if reason is not None:
            return f"{reason} of operator '{compute.name}' has no instruction on '{target.name}'"
        if stage.reducer == "product":
            return f"a product over elements of '{compute.name}' has none on '{target.name}'"
    for name in (*(t.name for t in compute.inputs), *(s.name for s in compute.stages)):
        if compute.dtype(name) not in DTYPES:
            return (
                f"operator '{compute.name}' has no rows of {compute.dtype(name)} on target "
                f"'{target.name}'; one of {', '.join(DTYPES)} is expected"
            )
    return None


def _refused(value: scalar.Scalar, compute: ComputeDefinition) -> str | None:
    """What of an expression has no instruction."""
    match value:
        case scalar.Select(_, then, otherwise):
            return _refused(then, compute) or _refused(otherwise, compute)
        case scalar.Call(name, arguments):
            inside = next(filter(None, (_refused(a, compute) for a in arguments)), None)
            if inside is not None:
                return inside
            if name not in COMPUTED:
                return f"'{name}'"
            if name == "power" and not _broken(arguments[1]):
                return "'power' with an exponent that is whole or not known"
            if name in TURNS and not _wide(arguments[0], compute):
                return f"'{name}' of anything but float32"
            kinds = {kind for a in arguments if (kind := kind_of(a, compute))}
            whole = set() if any(map(is_floating, kinds)) else kinds - {"bool"}
            if name in FLOATING and whole and (name not in WHOLE or whole - {"int32"}):
                return f"'{name}' of {min(whole)}"
            if name in ("to_int8", "to_uint8") and whole - {name[3:]}:
                return f"'{name}' of {min(whole)}"
    return None


def _broken(exponent: scalar.Scalar) -> bool:
    """Whether an exponent is a number that is not whole."""
    return isinstance(exponent, scalar.Const) and exponent.value != round(exponent.value)


def _wide(angle: scalar.Scalar, compute: ComputeDefinition) -> bool:
    """Whether an angle is computed of float32 alone."""
    return all(compute.dtype(load.buffer) == WIDE for load in scalar.loads(angle))


def kind_of(value: scalar.Scalar, compute: ComputeDefinition) -> str | None:
    """The element type of an expression; None of a number."""
    match value:
        case scalar.Load(buffer):
            return compute.dtype(buffer)
        case scalar.Index():
            return "int32"
        case scalar.Select(_, then, otherwise):
            return kind_of(then, compute) or kind_of(otherwise, compute)
        case scalar.Call(name, _) if name in scalar.CONVERSIONS:
            return scalar.CONVERSIONS[name]
        case scalar.Call(name, _) if name in scalar.FLAGS:
            return "bool"
        case scalar.Call(name, arguments):
            kinds = [kind_of(a, compute) for a in arguments[1 if name == "where" else 0 :]]
            kinds_known = [kind for kind in kinds if kind]
            return next(
                (k for k in kinds_known if is_floating(k)), kinds_known[0] if kinds_known else None
            )
        case scalar.Const():
            return None
