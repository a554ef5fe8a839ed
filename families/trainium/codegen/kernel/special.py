"""Instructions beside plain arithmetic: selection, search, statistics, indices, moves on chip.

Semantics and costs are those of the NKI instruction reference 2.26, by the names it gives them:
`affine_select`, `iota`, `local_gather` on gpsimd; `tensor_copy_predicated`, `select_reduce`,
`range_select` (Trainium2 and later), `tensor_scalar_reduce`, `bn_stats`, `bn_aggr`, `max8`,
`nc_find_index8`, `nc_match_replace8`, `nc_stream_shuffle` on the vector engine. The reference gives
no cost for `select_reduce`; it is charged as any instruction of two inputs.
"""

from collections.abc import Sequence

from tilesmith.families.trainium.codegen.isa.instructions import QUARTER, SHUFFLE_DIGITS, Opcode
from tilesmith.families.trainium.codegen.isa.lines import KernelError
from tilesmith.families.trainium.codegen.isa.memory import Tile
from tilesmith.families.trainium.codegen.isa.numbers import all_whole
from tilesmith.families.trainium.codegen.kernel.emitter import (
    Scalar,
    fill_of,
    immediate,
    operation,
    reduction,
    tile_or_none,
)
from tilesmith.families.trainium.codegen.kernel.repetition import Repetition


class SpecialInstructions(Repetition):
    """See the module's docstring; `[P, n]` is a tile of P partitions with n elements each."""

    # -- selection ----------------------------------------------------------------------------
    def select(self, out: Tile, a: Tile, base: int, channel: int, step: int, fill: float) -> None:
        """`out[p, f] = a[p, f] if base + channel*p + step*f >= 0 else fill` (masks, on gpsimd)."""
        _one_free_axis(out, "select")
        self._emit(
            Opcode.SELECT, "gpsimd", out, a, function=base, function2=channel,
            accumulate=step, immediates=(fill_of(out, fill), 0.0, 0.0),
        )  # fmt: skip

    def copy_predicated(self, out: Tile, a: Tile, predicate: Tile) -> None:
        """`out = a` where `predicate` is not 0; elsewhere `out` keeps what it holds."""
        self._emit(Opcode.COPY_PREDICATED, "vector", out, a, predicate, out)

    def select_reduce(
        self, out: Tile, a: Tile, predicate: Tile, fill: float, maxima: Tile | None = None
    ) -> None:
        """`out = a` where `predicate` is not 0, else `fill`; `maxima[P, 1]`: of each row of it."""
        self._emit(
            Opcode.SELECT_REDUCE, "vector", out, a, predicate, None, maxima,
            immediates=(fill_of(out, fill), 0.0, 0.0),
        )  # fmt: skip

    def range_select(
        self, out: Tile, a: Tile, low: Tile, high: Tile, fill: float, start: int = 0,
        maxima: Tile | None = None,
    ) -> None:  # fmt: skip
        """`out[p, f] = a[p, f] if low[p] <= start + f < high[p] else fill`; bounds are [P, 1]."""
        self._emit(
            Opcode.RANGE_SELECT, "vector", out, a, low, high, maxima, function=start,
            immediates=(fill_of(out, fill), 0.0, 0.0),
        )  # fmt: skip

    # -- statistics and search ----------------------------------------------------------------
    def tensor_scalar_reduce(
        self, out: Tile, a: Tile, op: str, s: Scalar, reduce: str, reduced: Tile
    ) -> None:
        """`out = a op s`; `reduced[P, 1]`: each row of it by add, multiply, max or min."""
        self._emit(
            Opcode.TENSOR_SCALAR_REDUCE, "vector", out, a, tile_or_none(s), None, reduced,
            function=operation(op), function2=reduction(reduce),
            immediates=(immediate(s), 0.0, 0.0),
        )  # fmt: skip

    def bn_stats(self, out: Tile, a: Tile) -> None:
        """`out[P, 6]`: count, mean and count * variance of the even, then the odd elements."""
        self._emit(Opcode.BN_STATS, "vector", out, a)

    def bn_aggr(self, out: Tile, statistics: Tile) -> None:
        """`out[P, 2]`: mean and variance of all elements behind one or more `bn_stats`."""
        self._emit(Opcode.BN_AGGR, "vector", out, statistics)

    def max8(self, out: Tile, a: Tile) -> None:
        """`out[P, 8]`: the eight largest elements, descending."""
        self._emit(Opcode.MAX8, "vector", out, a)

    def find_index8(self, out: Tile, a: Tile, values: Tile) -> None:
        """`out[P, 8]`: where in `a` each of `values[P, 8]` stands first (which it must)."""
        self._emit(Opcode.FIND_INDEX8, "vector", out, a, values)

    def match_replace8(self, out: Tile, a: Tile, values: Tile, fill: float) -> None:
        """`out = a`, one after the other the first place of each of `values[P, 8]` made `fill`."""
        self._emit(
            Opcode.MATCH_REPLACE8, "vector", out, a, values, immediates=(fill_of(out, fill), 0.0,
            0.0)
        )  # fmt: skip

    # -- indices and moves --------------------------------------------------------------------
    def iota(self, out: Tile, base: int, channel: int, step: int) -> None:
        """`out[p, f] = base + channel*p + step*f`."""
        _one_free_axis(out, "iota")
        self._emit(
            Opcode.IOTA, "gpsimd", out, function=base, function2=channel, accumulate=step
        )  # fmt: skip

    def local_gather(self, out: Tile, a: Tile, index: Tile) -> None:
        """`out[p, i] = a[p, index i]`; the 16 partitions around p share their indices, which
        `index[P, n / 16]` holds partition by partition first: i stands at [i % 16, i / 16].
        """
        self._emit(Opcode.LOCAL_GATHER, "gpsimd", out, a, index)

    def shuffle(self, out: Tile, a: Tile, mask: Sequence[int]) -> None:
        """`out[32 q + i] = a[32 q + mask[i]]` in every quarter q of the partitions.

        With all of `mask` alike it spreads one partition over its quarter.
        """
        mask = all_whole(mask, "a shuffle's mask")
        if len(mask) != QUARTER or not all(0 <= m < QUARTER for m in mask):
            raise KernelError(
                f"a shuffle's mask has {QUARTER} entries from 0 to {QUARTER - 1}, not {mask}"
            )
        starts = range(0, QUARTER, SHUFFLE_DIGITS)
        digits = [mask[start : start + SHUFFLE_DIGITS] for start in starts]
        codes = [sum(m * QUARTER**place for place, m in enumerate(part)) for part in digits]
        self._emit(
            Opcode.SHUFFLE, "vector", out, a, function=codes[0], function2=codes[1],
            accumulate=codes[2],
        )  # fmt: skip


def _one_free_axis(tile: Tile, what: str) -> None:
    if isinstance(tile, Tile) and len(tile.dims) != 1:
        raise KernelError(f"{what} writes a tile of one free axis, not {len(tile.dims)}")
