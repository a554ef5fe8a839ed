"""`Facts`: a skeleton's numbers for a batch of configurations, as numpy arrays.

Every expression of the skeleton is evaluated once for the whole batch. Tails need no peeling: an
extent `min(f, n - f*t)` is evaluated with each of its outer variables at zero and at its last
value; the short instances (their mean is `short`) occur as often as those last values meet.

All arrays have the batch as their last axis (n). Two batches of skeletons with one signature can be
joined (`Facts.join`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.expression import Atom, Expr
from tilesmith.simulator.cpu.skeleton import Access, BlockSite, LoopSite, Skeleton

Floats = NDArray[np.float64]


class _Evaluator:
    """Evaluates expressions over numpy arrays, each distinct sub-expression once."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self._known: dict[Expr | Atom, Any] = {}

    def __call__(self, expression: Expr) -> Any:
        """Its value: an integer or an int64 array of shape (n,)."""
        constant = expression.constant
        if constant is not None:
            return constant
        value = self._known.get(expression)
        if value is None:
            value = self._known[expression] = self._sum(expression)
        return value

    def _sum(self, expression: Expr) -> Any:
        total: Any = 0
        for monomial, factor in expression.terms:
            product: Any = factor
            for atom in monomial:
                product = product * self._atom(atom)
            total = total + product
        return total

    def _atom(self, atom: Atom) -> Any:
        if atom.kind == "var":
            return self.values[atom.name]
        value = self._known.get(atom)
        if value is None:
            assert atom.left is not None and atom.right is not None
            left, right = self(atom.left), self(atom.right)
            value = self._known[atom] = _OPERATIONS[atom.kind](left, right)
        return value


_OPERATIONS: dict[str, Any] = {
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "min": np.minimum,
    "max": np.maximum,
    "element": lambda index, _: index * 0,  # any place will do
}


@dataclass(frozen=True)
class Facts:
    """See the module's docstring. L loops, A accesses of all blocks in order, P path positions.

    Attributes:
        trips: mean iterations of each loop, (L, n).
        full, short: iterations of each loop in most and in the last of its instances, (L, n).
        chance: probability that an instance is the short one, (L, n); 0 where they are equal.
        strides: bytes one step of each loop of an access's path moves, absolute, (A, P, n).
        counts: iterations of the loops of each access's path that a random iteration finds itself
            among (long instances count for more than short ones), 1 beyond its end, (A, P, n).
        longest: iterations of their full instances, (A, P, n).
        offset: byte address at the first iteration, (A, n).
        taken: probability that each block runs, (blocks, n).
        slices: iterations of the parallel loops at the root around each block, (blocks, n).
        capacity: elements of each buffer, (buffers, n).
    """

    trips: Floats
    full: Floats
    short: Floats
    chance: Floats
    strides: Floats
    counts: Floats
    longest: Floats
    offset: Floats
    taken: Floats
    slices: Floats
    capacity: Floats

    def take(self, start: int, stop: int) -> "Facts":
        """The configurations from `start` to `stop`."""
        return Facts(*(getattr(self, item.name)[..., start:stop] for item in fields(Facts)))

    @staticmethod
    def join(parts: "Sequence[Facts]") -> "Facts":
        """One batch of several, in order."""
        if len(parts) == 1:
            return parts[0]
        return Facts(
            *(
                np.concatenate([getattr(part, item.name) for part in parts], axis=-1)
                for item in fields(Facts)
            )
        )


def evaluate(skeleton: Skeleton, tiles: Mapping[str, NDArray[np.int64]], count: int) -> Facts:
    """The facts of `count` configurations whose tile sizes are `tiles` (arrays of shape (n,))."""
    first = _Evaluator(tiles)
    last = _Evaluator(tiles)
    trips, full, short, chance = _extents(skeleton, first, last, count)
    accesses = [(block, access) for block in skeleton.blocks for access in block.accesses]
    strides = np.zeros((*skeleton.paths.shape, count))
    offset = np.zeros((len(accesses), count))
    tops = [np.maximum(trips[i] - 1, 1) for i in range(len(trips))]
    among = ((1.0 - chance) * full**2 + chance * short**2) / np.maximum(trips, 1e-9)
    beyond = np.ones((1, count))
    for row, (block, access) in enumerate(accesses):
        if not access.register:
            offset[row] = first(access.address)
        for place, loop in enumerate(block.path):
            if access.moves[place]:
                strides[row, place] = _stride(skeleton, first, last, access, place, loop, tops)
    return Facts(
        trips,
        full,
        short,
        chance,
        np.abs(strides),
        np.concatenate([among, beyond])[skeleton.paths],
        np.concatenate([full, beyond])[skeleton.paths],
        offset,
        _taken(skeleton, first, last, count),
        _slices(skeleton, trips, count),
        _capacities(skeleton, first, count),
    )


def _extents(
    skeleton: Skeleton, first: _Evaluator, last: _Evaluator, count: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """(mean, full, short, chance of short) of every loop; sets the loop variables on the way."""
    corners = _Corners(skeleton, first, count)
    extents: list[Floats] = []
    tops: list[Any] = []
    alike: dict[tuple[tuple[int, ...], Expr], int] = {}  # loops of a stage's blocks often are
    places = []
    for loop in skeleton.loops:
        place = alike.setdefault((loop.parents, loop.extent), len(extents))
        if place == len(extents):
            high = np.maximum(first(loop.extent), 0)
            low = np.minimum(np.maximum(last(loop.extent), 0), high)
            extents.append(_extent(corners, loop, high, count))
            tops.append(np.maximum(low - 1, 0))
        places.append(place)
        last.values[loop.variable] = tops[place]
    table = np.array(extents).reshape(len(extents), 4, count)[places]
    trips, full, short, chance = table.swapaxes(0, 1)
    return trips, full, short, chance


def _extent(corners: "_Corners", loop: LoopSite, high: Any, count: int) -> Floats:
    """(mean, full, short, chance of short) of one loop, (4, n), `high` being the full extent."""
    extent = np.zeros((4, count))
    extent[:3] = high
    if loop.parents:
        values, weights = corners.instances(loop.parents, loop.extent)
        values = np.minimum(np.maximum(values, 0), high)
        trips = (weights * values).sum(axis=0)
        chance = (weights * (values < high)).sum(axis=0)
        missing = (high - trips) / np.maximum(chance, 1e-12)
        extent[0], extent[2], extent[3] = trips, high - np.where(chance > 0, missing, 0.0), chance
    return extent


class _Corners:
    """Extents with each of some loops at its last iteration or at one before it.

    All 2^k corners of k loops are evaluated as one batch, arrays of shape (2^k, n).
    """

    def __init__(self, skeleton: Skeleton, first: _Evaluator, count: int) -> None:
        for loop in skeleton.loops:
            first.values[loop.variable] = 0
        self._loops = skeleton.loops
        self._first = first
        self._count = count
        self._known: dict[tuple[int, ...], tuple[_Evaluator, Floats]] = {}

    def instances(self, parents: tuple[int, ...], extent: Expr) -> tuple[Floats, Floats]:
        """(values of an extent, share of its instances), (corners, n), given its outer loops."""
        known = self._known.get(parents)
        if known is None:
            known = self._known[parents] = self._corners(parents)
        evaluator, shares = known
        return np.broadcast_to(evaluator(extent), shares.shape).astype(np.float64), shares

    def _corners(self, parents: tuple[int, ...]) -> tuple[_Evaluator, Floats]:
        """Evaluator of all corners, and how often each occurs."""
        corners = _Evaluator(self._first.values)
        times = np.ones((1 << len(parents), self._count))
        numbers = np.arange(len(times))[:, None]
        for place, parent in enumerate(parents):
            loop = self._loops[parent]
            top = np.maximum(corners(loop.extent) - 1, 0)
            at_end = (numbers >> place & 1).astype(np.bool_)
            times = times * np.where(at_end, 1.0, top)
            corners.values[loop.variable] = np.where(at_end, top, 0)
        return corners, times / np.maximum(times.sum(axis=0), 1.0)


def _stride(
    skeleton: Skeleton,
    first: _Evaluator,
    last: _Evaluator,
    access: Access,
    place: int,
    loop: int,
    tops: Sequence[Floats],
) -> Any:
    """Bytes one step of a loop moves an access: exact where affine, else the mean over the loop."""
    factor = access.coefficients[place]
    if factor is not None:
        return first(factor)
    variable = skeleton.loops[loop].variable
    moved = _Evaluator(first.values)
    moved.values[variable] = last.values[variable]
    return (moved(access.address) - first(access.address)) / tops[loop]


def _taken(skeleton: Skeleton, first: _Evaluator, last: _Evaluator, count: int) -> Floats:
    """Probability of each block's guards, taken as independent of each other."""
    chances = np.ones((len(skeleton.blocks), count))
    for row, block in enumerate(skeleton.blocks):
        for guard in block.guards:
            chance = np.ones(count)
            for condition in guard.conditions:
                chance = chance * _chance(skeleton, first, last, block, condition)
            chances[row] *= 1.0 - chance if guard.negated else chance
    return chances


def _chance(
    skeleton: Skeleton, first: _Evaluator, last: _Evaluator, block: BlockSite, condition: Expr
) -> Any:
    """Share of a block's iterations where `condition` >= 0, its values taken as evenly spread."""
    base = np.asarray(first(condition), dtype=np.float64)
    low, high, step = base, base, np.full(base.shape, np.inf)
    names = condition.variables()
    for loop in block.path:
        variable = skeleton.loops[loop].variable
        if variable not in names:
            continue
        moved = _Evaluator(first.values)
        moved.values[variable] = last.values[variable]
        change = np.asarray(moved(condition), dtype=np.float64) - base
        top = np.maximum(np.asarray(last.values[variable], dtype=np.float64), 1.0)
        low, high = low + np.minimum(change, 0), high + np.maximum(change, 0)
        step = np.where(change != 0, np.minimum(step, np.abs(change) / top), step)
    step = np.where(np.isfinite(step), np.maximum(step, 1e-9), 1.0)
    return np.clip((high + step) / (high - low + step), 0.0, 1.0) * (high >= 0)


def _slices(skeleton: Skeleton, trips: Floats, count: int) -> Floats:
    """Iterations that threads share for each block: its leading parallel loops together."""
    iterations = np.ones((len(skeleton.blocks), count))
    for row, block in enumerate(skeleton.blocks):
        for loop in block.serial:
            if not skeleton.loops[loop].parallel:
                break
            iterations[row] *= trips[loop]
    return iterations


def _capacities(skeleton: Skeleton, first: _Evaluator, count: int) -> Floats:
    capacities = np.ones((len(skeleton.buffers), count))
    for row, buffer in enumerate(skeleton.buffers):
        for extent in buffer.shape:
            capacities[row] *= first(extent)
    return capacities
