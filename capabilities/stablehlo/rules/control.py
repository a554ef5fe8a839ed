"""Functions, identities, and what is computed by turns: calls, conditions, loops."""

import re
from typing import Any

from tilesmith.capabilities.stablehlo.attributes import place_of, text
from tilesmith.capabilities.stablehlo.rules.sorting import largest
from tilesmith.capabilities.stablehlo.translator import Rule, Translation, Values, rule_of, rules
from tilesmith.search_space.support.errors import ModelError

_IDENTITIES = (
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
    "LayoutConstraint", "MoveToHost", "MoveToDevice", "xla.sdy.FuncResultSharding",
)  # fmt: skip
"""Custom calls that say where values lie, and change none."""

_FUNCTIONS = frozenset(
    f"chlo.{name}"
    for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "erf_inv",
                 "erfc", "sinh", "square", "tan")
)  # fmt: skip
"""Operations that artifacts write as custom calls or as composites of that name, CHLO's or MHLO's.
"""

_LAPACK = re.compile(r"lapack_[sd](\w+)_ffi")
"""Routines of real numbers; a rule is registered under their names without the number's letter."""


@rules.register("func.call")
def _call(translation: Translation, operation: Any, values: Values) -> Values:
    return translation.call(text(operation, "callee").lstrip("@"), values, place_of(operation))


def _function(name: str, operation: Any, values: Values) -> Rule | None:
    """The rule of a function that is written as a call; None for other calls."""
    name = name.replace("mhlo.", "chlo.")
    return rule_of(name, operation, values) if name in _FUNCTIONS else None


@rules.register("stablehlo.composite")
def _composite(translation: Translation, operation: Any, values: Values) -> Values:
    if text(operation, "name") == "chlo.top_k":
        k = int(operation.attributes["composite_attributes"]["k"].value)
        return largest(translation.builder, values[0], k)
    own = _function(text(operation, "name"), operation, values)
    if own is not None:
        return own(translation, operation, values)
    name = text(operation, "decomposition").lstrip("@")
    return translation.call(name, values, place_of(operation))


@rules.register("stablehlo.custom_call")
def _custom_call(translation: Translation, operation: Any, values: Values) -> Values:
    target = text(operation, "call_target_name")
    if target in _IDENTITIES:
        return list(values)
    if target == "shape_assertion":
        _check_assertion(translation, operation, values)
        return []
    routine = _LAPACK.fullmatch(target)
    own = rules.find(f"lapack.{routine[1]}") if routine else _function(target, operation, values)
    if own is not None:
        return own(translation, operation, values)
    raise translation.refuse(
        operation,
        f"calls '{target}', a library of JAX's; compute it outside of the function, or write it in "
        "operations of jax.lax",
    )


def _check_assertion(translation: Translation, operation: Any, values: Values) -> None:
    """Refuse shapes that an exported function says it is not for."""
    b = translation.builder
    holds = b.single(values[0])
    if holds is None or bool(holds):
        return
    message = text(operation, "error_message")
    for number, value in enumerate(values[1:]):
        message = message.replace(f"{{{number}}}", str(b.single(value)))
    raise ModelError(f"the shapes given do not fit '{translation.name}': {message[:400]}")


@rules.register("stablehlo.optimization_barrier")
def _identity(translation: Translation, operation: Any, values: Values) -> Values:
    return list(values)


for _name in ("sdy.sharding_constraint", "sdy.reshard"):
    rules.register(_name)(_identity)
