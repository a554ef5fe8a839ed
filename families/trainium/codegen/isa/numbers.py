"""Numbers that a kernel's author gives: whole ones are whole, and none is out of its range."""

import operator
from collections.abc import Iterable

from tilesmith.families.trainium.codegen.isa.lines import KernelError

LARGEST = 2**62
"""What an instruction's field holds at most."""


def whole(value: object, what: str, least: int = -LARGEST, most: int = LARGEST) -> int:
    """A whole number from `least` to `most`; `what` names it in errors.

    Raises:
        KernelError: it is something else, or out of range.
    """
    try:
        integer = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise KernelError(
            f"{what} is a whole number, not {value!r} of type {type(value).__name__}"
        ) from None
    if not least <= integer <= most:
        allowed = f"at least {least}" if most == LARGEST else f"{least} to {most}"
        raise KernelError(f"{what} is {integer}; {allowed} is expected")
    return integer


def all_whole(values: object, what: str, least: int = -LARGEST, most: int = LARGEST) -> list[int]:
    """Several of them.

    Raises:
        KernelError: `values` is no sequence of them.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise KernelError(f"{what}: a sequence of whole numbers is expected, not {values!r}")
    return [whole(value, f"{what}, entry {at},", least, most) for at, value in enumerate(values)]
