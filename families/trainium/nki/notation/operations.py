"""What NKI calls an operation, an activation or a reduction, and what the instruction set does."""

from typing import Any

from tilesmith.families.trainium.codegen.isa.instructions import ACTIVATIONS, OPERATIONS
from tilesmith.families.trainium.nki.notation.errors import NkiError

_BINARY = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide",
    "maximum": "max", "minimum": "min", "max": "max", "min": "min", "amax": "max", "amin": "min",
    "power": "pow", "pow": "pow", "greater_equal": "is_ge", "greater": "is_gt", "sum": "add",
    "less_equal": "is_le", "less": "is_lt", "equal": "is_equal", "prod": "multiply",
    "logical_and": "multiply", "logical_or": "max", "bypass": "bypass", "true_divide": "divide",
}  # fmt: skip
_REVERSED = {
    "subtract": "reverse_subtract", "divide": "reverse_divide", "is_ge": "is_le", "is_gt": "is_lt",
    "is_le": "is_ge", "is_lt": "is_gt",
}  # fmt: skip
_FUNCTIONS = {
    "gelu_apprx_tanh": "gelu_tanh", "absolute": "abs", "identity": "copy", "abs": "abs",
    "negative": "copy",
}  # fmt: skip


def _name(given: Any) -> str:
    name = getattr(given, "short", None) or getattr(given, "__name__", None) or str(given)
    return str(name).rpartition(".")[2]


def operation(given: Any, reverse: bool = False) -> str:
    """The operation of the instruction set for `nl.add`, `np.add`, ...

    Raises:
        NkiError: there is none, or none that takes its operands the other way round.
    """
    name = _BINARY.get(_name(given))
    if name is None:
        raise NkiError(f"'{_name(given)}' is no operation of engines; {', '.join(_BINARY)} are")
    if not reverse or name in ("add", "multiply", "max", "min", "is_equal"):
        return name
    if name not in _REVERSED:
        raise NkiError(f"'{name}' has no form with its operands the other way round")
    return _REVERSED[name]


def activation_of(given: Any) -> str:
    """The function of the scalar engine for `nl.exp`, `np.tanh`, ...

    Raises:
        NkiError: it has none of that name.
    """
    name = _FUNCTIONS.get(_name(given), _name(given))
    if name not in ACTIVATIONS:
        raise NkiError(
            f"'{_name(given)}' is no function of the scalar engine; {', '.join(ACTIVATIONS)} are"
        )
    return name


assert set(_BINARY.values()) <= set(OPERATIONS)
