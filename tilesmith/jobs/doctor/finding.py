"""`Finding`: one thing that was looked at, what it came to, and what to do about it."""

from dataclasses import dataclass
from typing import Literal

State = Literal["fine", "note", "problem"]
"""fine: as it should be | note: it works, but there is something to know | problem: something that
jobs need does not work."""


@dataclass(frozen=True)
class Finding:
    """See the module's docstring.

    Attributes:
        section: what it belongs to: "processor", "noise", ...
        name: of what was looked at.
        state: what it came to.
        value: what was found, as text.
        advice: what to do about it; "" where there is nothing to do.
    """

    section: str
    name: str
    state: State
    value: str
    advice: str = ""
