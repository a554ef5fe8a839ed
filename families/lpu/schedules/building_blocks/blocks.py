"""Images in rows of lanes: blocks of pixels beside each other, channels innermost.

A row holds `rows` x `columns` neighbouring pixels with all their channels, if that is at most 320
lanes, or one pixel in as many rows as its channels need:

    1 x 1    NHWC          n, y, x                          c
    2 x 1    NHW2hC        n, y // 2, x                     (y % 2) c
    2 x 2    NHW2h2wC      n, y // 2, x // 2                (y % 2) (x % 2) c

Blocks fill lanes where channels are few. They are never wider than tall, so that no two of these
layouts order the same elements in memory alike, for rows would differ.
"""

from dataclasses import dataclass

from tilesmith.families.lpu.schedules.building_blocks.machine import LANES

SIDES = ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4), (8, 8))
"""Blocks of pixels that there are layouts for, (rows, columns)."""


@dataclass(frozen=True)
class PixelBlock:
    """Pixels of a row of lanes."""

    rows: int
    columns: int

    @property
    def pixels(self) -> int:
        return self.rows * self.columns

    @property
    def layout(self) -> str:
        """The name of the layout, as `Layout.parse` reads it."""
        rows = f"{self.rows}h" if self.rows > 1 else ""
        columns = f"{self.columns}w" if self.columns > 1 else ""
        return f"NHW{rows}{columns}C"

    @classmethod
    def of(cls, layout: str) -> "PixelBlock":
        """The block of a layout."""
        return next(b for b in (cls(*sides) for sides in SIDES) if b.layout == layout)


def blocks_of(channels: int, height: int, width: int) -> list[PixelBlock]:
    """Blocks that an image can be kept in, small ones first."""
    return [
        PixelBlock(rows, columns)
        for rows, columns in SIDES
        if rows * columns == 1
        or (height % rows == 0 and width % columns == 0 and rows * columns * channels <= LANES)
    ]
