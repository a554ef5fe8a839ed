"""Rows cut anew: what some kernels wrote, in the rows that another reads.

A view (Reshape, a part of a tensor, parts side by side) moves no byte of the arena, but tensors on
the chip lie in rows, the last dimension across lanes, and another shape means other rows. Each
element of the reader's tensor has a place on both sides, (row, lane); from this map follow the
chains:

    row of the reader = sum over the rows its lanes come from of (lanes moved by SXM, others zero)

One chain moves all rows whose lanes move alike. Heads that become rows ([s, h d] -> [s h, d]) are a
chain a head; on the way back each adds its lanes to those before. Adding zeros is exact.

Rows of few lanes go by steps where that is less work: two rows (or three, five, ..: the least prime
factor of their number) become one, until they fill the lanes, and the same way down again:

    [1536, 6] -> [768, 12] -> .. -> [48, 192] -> [29, 320]      a dozen chains instead of 1536
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isqrt, prod

import numpy as np

from tilesmith.compiler.recipe.program import Place
from tilesmith.families.lpu.codegen.dataflow import LANES, Ints, Rows, VectorTensor
from tilesmith.families.lpu.codegen.selection.graphs.chains import Chains
from tilesmith.families.lpu.codegen.selection.graphs.vectors import Applied, Moved, Stored, Vectors
from tilesmith.search_space.expressions.dtypes import computed_in, is_floating, size_of
from tilesmith.search_space.support.errors import ModelError

MOST_MOVES = 1024
"""Chains that one tensor is cut anew by at most."""

CHAIN = 32
"""Vectors that a chain of its own costs as much as: it has to find units and streams, and waits."""

FEW = 16
"""Chains that are not worth looking for another way."""

BLOCKS = 2
"""Blocks of a tensor that one chain writes at most: each needs slices of its own, 16 if it is
weights of float16."""


@dataclass(frozen=True)
class BoundaryTensor:
    """A tensor of the program that stands in the executable's memory before or after a run.

    Attributes:
        offsets: where each of its elements stands, in elements behind the place; None: one after
            the other.
    """

    tensor: str
    place: Place
    shape: tuple[int, ...]
    dtype: str
    offsets: Ints | None = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        """From its place to behind its last element."""
        elements = prod(self.shape) if self.offsets is None else int(self.offsets.max()) + 1
        return elements * size_of(self.dtype)

    def elements(self) -> Ints:
        """Where each element stands, in elements behind the place."""
        return np.arange(prod(self.shape)) if self.offsets is None else self.offsets

    def numbers(self, offsets: Ints) -> Ints:
        """Which element stands so many elements behind the place; -1: none."""
        if self.offsets is None:
            return np.where((offsets >= 0) & (offsets < prod(self.shape)), offsets, -1)
        numbers = np.full(int(self.offsets.max()) + 1, -1, np.int64)
        numbers[self.offsets] = np.arange(len(self.offsets))
        inside = (offsets >= 0) & (offsets < len(numbers))
        return np.where(inside, numbers[np.where(inside, offsets, 0)], -1)

    def meets(self, other: "BoundaryTensor") -> bool:
        """Whether two tensors of the arena share bytes."""
        first, second = sorted((self, other), key=lambda held: held.place.offset)
        return first.place.offset + first.nbytes > second.place.offset

    def covered(self, others: "Iterable[BoundaryTensor]") -> bool:
        """Whether others have all of its bytes."""
        reached, end = self.place.offset, self.place.offset + self.nbytes
        for other in sorted(others, key=lambda held: held.place.offset):
            if other.place.offset <= reached:
                reached = max(reached, other.place.offset + other.nbytes)
        return reached >= end


def rows_like(held: BoundaryTensor) -> tuple[int, int, str]:
    """What two tensors have alike that lie in the same rows."""
    *lead, last = held.shape
    return (prod(lead), last, held.dtype)


@dataclass(frozen=True, eq=False)
class _Piece:
    """Lanes that one row of the reader takes from one row written: lane l is lane `lanes[l]`.

    Attributes:
        whole: the row written as it is: nothing moves.
    """

    target: int
    source: int
    row: int
    lanes: tuple[int, ...]
    whole: bool


def cut_anew(
    kernel: str,
    chains: Chains,
    written: Iterable[BoundaryTensor],
    wanted: BoundaryTensor,
    tensor: VectorTensor,
) -> None:
    """Chains that bring what was written into the rows of a tensor.

    Args:
        kernel: that reads them.
        chains: those so far; new ones and their tensors are added.
        written: what meets the place wanted, the latest last.
        tensor: of the chains, in the rows of `wanted`.

    Raises:
        ModelError: a part was never written or is of another type, or it takes too many moves.
    """
    way = _way(kernel, tuple(written), wanted, tensor)
    if way.chains > MOST_MOVES:
        raise ModelError(
            f"kernel '{kernel}' reads {tensor.rows} rows that were written in other rows, which "
            f"takes {way.chains} moves of lanes; at most {MOST_MOVES} are made"
        )
    sources = [_widened(chains, source, to) for source, to in zip(written, way.wide, strict=True)]
    ladder = way.narrow
    held, into = wanted, tensor
    if ladder:
        held = _like(wanted, ladder[0], f"{tensor.name}.wide")
        into = _temporary(chains, held)
        held = replace(held, tensor=into.name)
    _in_rows(kernel, chains, sources, held, into)
    for width in ladder[1:]:
        held = _step(chains, held, width)
    if ladder:
        _in_rows(kernel, chains, (held,), wanted, tensor)


@dataclass(frozen=True)
class _Way:
    """How a tensor is cut anew.

    Attributes:
        wide: widths that rows of each source go through before; narrow: those that the rows of the
            result come through, widest first.
        chains, vectors: that all of it takes.
    """

    wide: tuple[tuple[int, ...], ...]
    narrow: tuple[int, ...]
    chains: int
    vectors: int

    @property
    def cost(self) -> int:
        return self.vectors + CHAIN * self.chains


def _way(
    kernel: str, sources: tuple[BoundaryTensor, ...], wanted: BoundaryTensor, tensor: VectorTensor
) -> _Way:
    """The cheapest of: at once, over wider rows on one side, or on both."""
    nothing = tuple(() for _ in sources)
    best = _priced(kernel, (sources, nothing), (wanted, ()), tensor)
    if best.chains <= FEW:
        return best
    wide, narrow = tuple(_widths(source) for source in sources), _widths(wanted)[::-1]
    for before in dict.fromkeys((nothing, wide)):
        for after in dict.fromkeys(((), narrow)):
            if before != nothing or after:
                candidate = _priced(kernel, (sources, before), (wanted, after), tensor)
                best = min(best, candidate, key=lambda way: way.cost)
    return best


def _priced(
    kernel: str,
    sources: tuple[tuple[BoundaryTensor, ...], tuple[tuple[int, ...], ...]],
    wanted: tuple[BoundaryTensor, tuple[int, ...]],
    tensor: VectorTensor,
) -> _Way:
    """What it takes to go from sources over some widths to what is wanted, over others."""
    chains = vectors = 0
    ends: list[BoundaryTensor] = []
    for source, widths in zip(*sources, strict=True):
        ends.append(_like(source, widths[-1], source.tensor) if widths else source)
        steps = (*source.shape[-1:], *widths)
        chains += sum(after // before for before, after in pairwise(steps))
        vectors += sum(prod(source.shape) // before for before in steps[:-1])
    target, widths = wanted
    for after, before in pairwise((*widths, *target.shape[-1:])):
        chains += after // before
        vectors += prod(target.shape) // before
    whole = not widths
    target = target if whole else _like(target, widths[0], target.tensor)
    pieces = _pieces(kernel, ends, target)
    together = _together(tensor) if whole else len(pieces)
    groups = _groups(pieces, together)
    return _Way(sources[1], widths, chains + len(groups), vectors + len(pieces))


def _widths(held: BoundaryTensor) -> tuple[int, ...]:
    """Ever wider rows of a tensor, as long as they have lanes for it."""
    width, widths = held.shape[-1], []
    rows = prod(held.shape) // max(width, 1)
    while (factor := _least_factor(rows)) > 1 and width * factor <= LANES:
        width, rows = width * factor, rows // factor
        widths.append(width)
    return tuple(widths)


def _least_factor(number: int) -> int:
    """The least prime factor of a number; 1 of 1."""
    return next((f for f in range(2, isqrt(max(number, 0)) + 1) if number % f == 0), number)


def _like(held: BoundaryTensor, width: int, name: str) -> BoundaryTensor:
    """The same elements in rows of another width."""
    return replace(held, tensor=name, shape=(prod(held.shape) // width, width))


def _temporary(chains: Chains, held: BoundaryTensor) -> VectorTensor:
    """A tensor for rows that are on their way."""
    return chains.temporary(held.tensor, held.shape[0], held.dtype)


def _widened(chains: Chains, source: BoundaryTensor, widths: tuple[int, ...]) -> BoundaryTensor:
    """A tensor in ever wider rows."""
    for width in widths:
        source = _step(chains, source, width)
    return source


def _step(chains: Chains, source: BoundaryTensor, width: int) -> BoundaryTensor:
    """A tensor in rows of another width, one of which is a multiple of the other."""
    held = _like(source, width, f"{source.tensor}.by{width}")
    recut_tensor = _temporary(chains, held)
    held = replace(held, tensor=recut_tensor.name)
    _in_rows("", chains, (source,), held, recut_tensor)
    return held


def _together(tensor: VectorTensor) -> int:
    """Rows of a tensor whose blocks find slices at once."""
    return BLOCKS * tensor.block or tensor.rows


_Key = tuple[int, bool, int, int, tuple[int, ...], bool]
"""What pieces have in common that are one chain: how many came before in their row, whether more
come, the source, the part of the result, lanes, and whether nothing moves."""


def _groups(pieces: Sequence[_Piece], together: int) -> dict[_Key, list[_Piece]]:
    """Pieces that move alike."""
    levels: dict[int, list[_Piece]] = {}
    for piece in pieces:
        levels.setdefault(piece.target, []).append(piece)
    groups: dict[_Key, list[_Piece]] = {}
    for parts in levels.values():
        for level, piece in enumerate(parts):
            last, part = level == len(parts) - 1, piece.target // max(together, 1)
            key = (level, last, piece.source, part, piece.lanes, piece.whole)
            groups.setdefault(key, []).append(piece)
    return groups


def _in_rows(
    kernel: str,
    chains: Chains,
    sources: Sequence[BoundaryTensor],
    wanted: BoundaryTensor,
    tensor: VectorTensor,
) -> None:
    """Chains that bring sources into the rows wanted, at once."""
    groups = _groups(_pieces(kernel, sources, wanted), _together(tensor))
    most = max((key[0] for key in groups), default=0)
    sums = [chains.temporary(f"{tensor.name}.part", tensor.rows, tensor.dtype) for _ in range(most)]
    for key in sorted(groups, key=lambda key: key[0]):
        level, last, source, *_ = key
        into = tensor.name if last else sums[level].name
        before = sums[level - 1].name if level else ""
        _move(chains, groups[key], sources[source], (into, before), tensor)


def _move(
    chains: Chains,
    pieces: Sequence[_Piece],
    source: BoundaryTensor,
    ends: tuple[str, str],
    tensor: VectorTensor,
) -> None:
    """Pieces that move alike, added to what stands in the rows of the tensor `ends[1]`."""
    into, before = ends
    targets = np.array([piece.target for piece in pieces], np.int64)
    rows = np.array([piece.row for piece in pieces], np.int64)
    value: Vectors = Stored(source.tensor, rows, tensor.dtype)
    if not pieces[0].whole:
        value = Moved("permute", value, pieces[0].lanes)
    if before:
        kind = computed_in(tensor.dtype) if is_floating(tensor.dtype) else "int32"
        function, kind = ("or", "bool") if tensor.dtype == "bool" else ("add", kind)
        value = Applied(function, (Stored(before, targets, tensor.dtype), value), kind)
    chains.write(f"{tensor.name}.moved", value, Rows(into, targets))


def _pieces(kernel: str, sources: Sequence[BoundaryTensor], wanted: BoundaryTensor) -> list[_Piece]:
    """What every row wanted takes from every row written, by rows."""
    target, lane = _places(wanted)
    places = wanted.elements()
    owners, rows, lanes = (np.full(len(target), -1, np.int64) for _ in range(3))
    for number, source in enumerate(sources):
        apart = wanted.place.offset - source.place.offset
        if source.dtype != wanted.dtype or apart % size_of(wanted.dtype):
            raise ModelError(
                f"kernel '{kernel}' reads {wanted.dtype} where {source.dtype} was written"
            )
        elements = source.numbers(places + apart // size_of(wanted.dtype))
        mine = elements >= 0
        row, at = _places(source)
        owners[mine], rows[mine], lanes[mine] = number, row[elements[mine]], at[elements[mine]]
    if (owners < 0).any():
        raise ModelError(f"kernel '{kernel}' reads a part of what was never written")
    used = [_used(source) for source in sources]
    order = np.lexsort((rows, owners, target))
    keys = np.stack([target, owners, rows])[:, order]
    starts = np.flatnonzero(np.r_[True, (np.diff(keys) != 0).any(axis=0)])
    alone = np.bincount(target[order[starts]], minlength=int(target.max()) + 1) == 1
    pieces = []
    for members in np.split(order, starts[1:]):
        first, own = members[0], int(owners[members[0]])
        moved = np.full(LANES, -1, np.int64)
        moved[lane[members]] = lanes[members]
        whole = len(members) == used[own][rows[first]] and np.array_equal(
            lane[members], lanes[members]
        )
        whole &= bool(alone[target[first]]) or len(members) == LANES  # beside it stands anything
        piece = _Piece(int(target[first]), own, int(rows[first]), tuple(moved.tolist()), whole)
        pieces.append(piece)
    return pieces


def _places(held: BoundaryTensor) -> tuple[Ints, Ints]:
    """(row, lane) of every element of a tensor in order."""
    *lead, last = held.shape
    elements = np.arange(prod(held.shape), dtype=np.int64)
    place, at = elements // last, elements % last
    return at // LANES * prod(lead) + place, at % LANES


def _used(held: BoundaryTensor) -> Mapping[int, int]:
    """How many lanes of each row of a tensor hold elements."""
    rows, counts = np.unique(_places(held)[0], return_counts=True)
    return dict(zip(rows.tolist(), counts.tolist(), strict=True))
