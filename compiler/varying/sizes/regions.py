"""Which sizes a model is looked at: regions that share a variant, points inside them.

A size of one is a region of its own: axes of one element broadcast, are squeezed away and make
copies into views, so that a model is another one there. Everything else is one region until a
check finds that the model differs inside (`regions_cut`).

Points are primes where the range has enough of them: two extents that happen to agree at one point
(a sequence as long as there are heads) do not agree at the next.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from tilesmith.compiler.varying.sizes.fitting import Point
from tilesmith.search_space.expressions.sizes import Size

Region = tuple[Size, ...]
"""A range of every size of a model."""

POINTS = 5
"""Points that a variant's formulas are found from."""

_MOST_REGIONS = 8

_FAR = 64
"""How many times the least size the greatest may be before two schedules are better than one."""

_ORDERS = ((0, 1, 2, 3, 4), (1, 3, 0, 4, 2), (2, 0, 4, 1, 3), (3, 4, 1, 2, 0))
"""Which of its values each size has at each point, so that no two sizes move together."""


def first_regions(sizes: Sequence[Size], *, tuned: bool = False) -> list[Region]:
    """Where to begin: sizes of one apart from others.

    Args:
        tuned: whether schedules come from records; then long ranges are several regions, each with
            the schedules of its own middle.
    """
    pieces: list[list[Size]] = []
    count = 1
    for size in sizes:
        own = [size]
        if size.low == 1 < size.high and 2 * count <= _MOST_REGIONS:
            own = [replace(size, high=1), replace(size, low=2)]
        if tuned and (len(own) + 1) * count <= _MOST_REGIONS:
            own[-1:] = _halves(own[-1])
        count *= len(own)
        pieces.append(own)
    return [tuple(chosen) for chosen in product(*pieces)]


def _halves(size: Size) -> list[Size]:
    """A range, or two where its ends are far apart: they meet in its geometric middle."""
    if size.high <= _FAR * size.low:
        return [size]
    between = round(math.sqrt(size.low * size.high))
    return [replace(size, high=between), replace(size, low=between + 1)]


def middle(size: Size) -> int:
    """The size that a range is looked at first: its geometric middle, of what is not tiny."""
    low = min(max(size.low, 8), size.high)
    return round(math.sqrt(low * size.high))


def points_in(region: Region) -> list[dict[str, int]]:
    """Points to find formulas from, the first in the middle; one where nothing varies."""
    if all(size.low == size.high for size in region):
        return [{size.name: size.low for size in region}]
    taken: set[int] = set()
    values: dict[str, list[int]] = {}
    for size in region:
        extents = [size.low] * POINTS if size.low == size.high else _values(size, taken)
        taken.update(extents)
        values[size.name] = extents
    return [
        {
            size.name: values[size.name][_ORDERS[place % len(_ORDERS)][step]]
            for place, size in enumerate(region)
        }
        for step in range(POINTS)
    ]


def typical(region: Region) -> dict[str, int]:
    """The sizes inside a region that schedules are chosen for."""
    first = points_in(region)[0]
    return {size.name: min(max(first[size.name], size.low), size.high) for size in region}


def _values(size: Size, taken: set[int]) -> list[int]:
    """Values around the middle: primes in the range first, other numbers, then primes above it."""
    center = middle(size)
    primes = sorted(_primes(size.low, size.high), key=lambda v: abs(math.log(v / center)))
    numbers = [v for v in primes if v not in taken and v > 4][:POINTS]
    if len(numbers) < POINTS:
        inside = range(size.low, min(size.high, size.low + 64) + 1)
        numbers += [v for v in inside if v not in taken and v not in numbers][
            : POINTS - len(numbers)
        ]
    above = max(size.high, 4)
    while len(numbers) < POINTS:
        above = next(_primes(above + 1, 2 * above + 2))  # there is one (Bertrand)
        if above not in taken:
            numbers.append(above)
    return numbers


def _primes(low: int, high: int) -> Iterator[int]:
    """Primes of a range; of a wide one those around its geometric middle."""
    if high - low > 4096:
        center = round(math.sqrt(max(low, 8) * high))
        low, high = max(low, center - 1024), min(high, center + 1024)
    for value in range(max(2, low), high + 1):
        if all(value % divisor for divisor in range(2, math.isqrt(value) + 1)):
            yield value


def checked_points(region: Region) -> list[dict[str, int]]:
    """Points where a model is most likely to be another one: ends, powers of two and neighbours,
    neighbouring numbers, all sizes at once and apart."""
    lists = [_telling(size) for size in region]
    longest = max(map(len, lists), default=0)
    points = [
        {s.name: v[(step * (2 * i + 1)) % len(v)] for i, (s, v) in
         enumerate(zip(region, lists, strict=True))}
        for step in range(longest)
    ]  # fmt: skip
    points.append({size.name: size.high for size in region})
    return list({tuple(point.items()): point for point in points}.values())


def _telling(size: Size) -> list[int]:
    if size.low == size.high:
        return [size.low]
    wanted = {size.low, size.low + 1, size.low + 2, size.high - 1, size.high, middle(size)}
    power = 4
    while power <= size.high:
        wanted |= {power, power - 1, power + 1} if power in (16, 64, 256, 1024) else {power}
        power *= 2
    return sorted(value for value in wanted if size.low <= value <= size.high)


def neighbours(region: Region, point: Point, name: str, count: int) -> list[Point]:
    """The point with `count` numbers around its own for one of its sizes, one after another."""
    size = next(size for size in region if size.name == name)
    low = max(size.low, min(point[name], size.high - count) - count // 2)
    return [{**point, name: value} for value in range(low, low + count)]


def regions_cut(region: Region, name: str, below: int) -> tuple[Region, Region]:
    """The parts of a region where a size is less than `below`, and where it is not."""
    low = tuple(replace(s, high=below - 1) if s.name == name else s for s in region)
    high = tuple(replace(s, low=below) if s.name == name else s for s in region)
    return low, high
