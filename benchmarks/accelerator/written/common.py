"""What the families share: sizes of a tile, rows in blocks of 128, transposes, constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilesmith.families.trainium.codegen.isa.instructions import Space
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel

P = 128
BANK = 512


def blocks(*views: HbmView) -> Iterator[tuple[HbmView, ...]]:
    """128 rows of each view after the other."""
    for start in range(0, views[0].shape[0], P):
        yield tuple(view[start : start + P] for view in views)


def pieces(total: int, size: int) -> Iterator[slice]:
    """`total` elements in pieces of `size`, the last one cut."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def row_in_all(kernel: Kernel, view: HbmView, name: str) -> Tile:
    """A vector in HBM, in every partition."""
    tile = kernel.sbuf((P, view.shape[0]), view.dtype, name=name)
    kernel.load(tile, view.broadcast(P))
    return tile


def across_heads(tile: Tile, heads: int) -> Tile:
    """A [P, n] tile read as [P, heads, n]: the same for every head."""
    return tile.broadcast(heads).permute(2, 1)


class Transposer:
    """Transposes on the tensor engine, up to four 128 x 128 tiles into a PSUM bank before it is
    copied out; engines take turns copying.
    """

    def __init__(
        self,
        kernel: Kernel,
        dtype: str = "float32",
        engines: tuple[str, ...] = ("vector", "scalar"),
    ) -> None:
        self.kernel, self.engines, self.turn = kernel, engines, 0
        self.places = kernel.buffers(2, (P, BANK), dtype, name="turned", space=Space.PSUM)

    def __call__(self, out: Tile, data: Tile) -> None:
        """`out[F, P] = data[P, F].T`, in SBUF."""
        rows, columns = data.shape
        place = self.places.next()[:columns, :rows]
        self.kernel.transpose(place, data)
        self._copy(out, place)

    def strip(self, out: Tile, rows: Tile) -> None:
        """`out[:, i] = rows[:, 128 i : 128 (i + 1)].T` for every i."""
        self.each(out, [rows[:, i * P : (i + 1) * P] for i in range(out.shape[1])])

    def each(self, out: Tile, tiles: Sequence[Tile]) -> None:
        """`out[:, i] = tiles[i].T`, all 128 x 128."""
        for part in pieces(len(tiles), BANK // P):
            place = self.places.next().split(1, BANK // P, P)
            for i, tile in enumerate(tiles[part]):
                self.kernel.transpose(place[:, i], tile)
            self._copy(out[:, part], place[:, : part.stop - part.start])

    def _copy(self, out: Tile, place: Tile) -> None:
        self.kernel.copy(out, place, engine=self.engines[self.turn % len(self.engines)])
        self.turn += 1


def weights(kernel: Kernel, view: HbmView, name: str) -> list[Tile]:
    """A [K, N] weight in SBUF, 128 of its rows in each tile."""
    tiles = []
    for i, (part,) in enumerate(blocks(view)):
        tiles.append(kernel.sbuf(part.shape, view.dtype, name=f"{name}{i}"))
        kernel.load(tiles[-1], part)
    return tiles
