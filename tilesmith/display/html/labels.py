"""Places for labels in a chart, so that none lies on another or on a dot.

Positions and sizes are in the chart's own units; text is measured as 10-pixel sans-serif is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_LETTER, _LINE = 5.6, 11.0
_STEPS = 14
"""How many lines away a label may stand from what it names."""


@dataclass(frozen=True)
class Box:
    """A rectangle, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether the two have a point in common."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def holds(self, other: Box) -> bool:
        """Whether the other lies in it."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.top <= other.top and other.bottom <= self.bottom


@dataclass
class Labels:
    """Labels of one chart; they stay within `room`."""

    room: Box
    taken: list[Box] = field(default_factory=list)

    def keep_off(self, x: float, y: float, radius: float) -> None:
        """No label is to lie on this dot."""
        self.taken.append(Box(x - radius, y - radius, x + radius, y + radius))

    def place(
        self, text: str, x: float, y: float, aside: float = 8.0
    ) -> tuple[float, float] | None:
        """Left end and baseline of a label for a point: beside it, as near as may be; None where
        there is no room."""
        wide = _LETTER * len(text)
        for step in range(_STEPS):
            for down in (step, -step) if step else (0,):
                for left in (x + aside, x - aside - wide):
                    top = y - _LINE / 2 + down * _LINE
                    box = Box(left, top, left + wide, top + _LINE)
                    if self.room.holds(box) and not any(map(box.meets, self.taken)):
                        self.taken.append(box)
                        return left, box.bottom - 2.5
        return None
