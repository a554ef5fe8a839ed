"""Types of elements under the names that NKI and numpy give them."""

from typing import Any

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import DTYPES
from tilesmith.families.trainium.nki.notation.errors import NkiError

_ALIASES = {
    "float8_e4m3fn": "float8_e4m3", "tfloat32": "float32", "bool_": "uint8", "bool": "uint8",
    "float64": "float32", "uint32": "int32",
}  # fmt: skip


class DType(str):
    """A type of elements: equal to numpy's of that name, and to its name."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return str(self)

    @property
    def itemsize(self) -> int:
        from tilesmith.search_space.expressions.dtypes import size_of

        return size_of(str(self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, other)
        try:
            return str.__eq__(self, np.dtype(other).name)  # type: ignore[call-overload]
        except TypeError:
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def dtype_of(given: Any) -> DType:
    """What `given` names, a string, a type of numpy's or of NKI's.

    Raises:
        NkiError: the machine has none like it.
    """
    if isinstance(given, DType):
        return given
    name = given if isinstance(given, str) else getattr(given, "__name__", "")
    if not name or name not in (*DTYPES, *_ALIASES):
        try:
            name = np.dtype(given).name
        except TypeError:
            name = str(given)
    name = _ALIASES.get(name, name)
    if name not in DTYPES:
        raise NkiError(f"dtype {given!r} is none of {', '.join(DTYPES)}")
    return DType(name)


def wider(*names: DType) -> DType:
    """The type of a result of several operands: float32 before 16 bits before 8."""
    order = sorted(names, key=lambda n: (n.startswith(("float", "bfloat")), n.itemsize))
    return order[-1]
