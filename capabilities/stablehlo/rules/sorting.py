"""Sorting: by one operand or several in turn, upwards or downwards, others along, or by any
function; the largest k."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilesmith.capabilities.stablehlo.arithmetic import RealValue, choose, is_nan, where
from tilesmith.capabilities.stablehlo.attributes import integer
from tilesmith.capabilities.stablehlo.bodies import looped
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, TensorValue
from tilesmith.capabilities.stablehlo.pairs import flat, packed
from tilesmith.capabilities.stablehlo.rules.elementwise import ordered
from tilesmith.capabilities.stablehlo.rules.shapes import concatenate, count, cut
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules
from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy

_PROBES = ((1, 2), (-3, 2), (0, 5), (-4, -1))
"""Pairs in order; what a comparator says of them tells which way it sorts."""


_PLAIN = frozenset(
    f"stablehlo.{name}"
    for name in ("compare", "select", "and", "or", "not", "constant", "real", "imag", "return")
)
"""Operations of comparators that look at their operands and compute nothing of them."""


class Comparator:
    """A function that says of two tuples of elements, or of whole tensors, which comes first.

    Attributes:
        columns: what is sorted; complex values as their parts.
    """

    def __init__(self, translation: Translation, operation: Any, values: Values) -> None:
        self.builder = translation.builder
        self.columns = flat(values)
        self._translation, self._outer, self._like = translation, translation.known, values
        self._region = operation.regions[0]

    def __call__(self, first: Values, second: Values) -> TensorValue:
        sides = (packed(side, self._like) for side in (first, second))
        arguments = [value for pair in zip(*sides, strict=True) for value in pair]
        (said,) = self._translation.region(self._region, arguments, self._outer)
        return said

    def is_plain(self) -> bool:
        (block,) = self._region.blocks
        return all(operation.operation.name in _PLAIN for operation in block.operations)

    def probed(self, number: int, pair: tuple[int, int]) -> bool | None:
        """What it says of two numbers of a column, all others equal."""
        b = self.builder
        sides: tuple[list[TensorValue], list[TensorValue]] = ([], [])
        for column, value in enumerate(self.columns):
            for side, given in zip(sides, pair if column == number else (1, 1), strict=True):
                plain = abs(given) if value.dtype.startswith("u") else given
                stated = plain > 1 if value.dtype == "bool" else plain
                side.append(b.constant(np.array(stated, to_numpy(value.dtype))))
        known = b.single(self(*sides))
        return None if known is None else bool(known)


@dataclass(frozen=True)
class Key:
    """An operand that is compared, and whether smaller ones come first."""

    operand: int
    upwards: bool


@rules.register("stablehlo.sort")
def _sort(translation: Translation, operation: Any, values: Values) -> Values:
    axis = integer(operation, "dimension", -1) % len(values[0].shape)
    if values[0].shape[axis] < 2 or 0 in values[0].shape:
        return list(values)
    comparator = Comparator(translation, operation, values)
    keys = _keys(comparator)
    ordered = network(comparator, axis) if keys is None else _by_keys(comparator, keys, axis)
    return packed(ordered, values)


def _by_keys(comparator: Comparator, keys: list[Key], axis: int) -> list[TensorValue]:
    b, values = comparator.builder, comparator.columns
    order: TensorValue | None = None
    for key in reversed(keys):  # the last key first: each later one keeps that order among equals
        column = comparable(b, values[key.operand])
        if order is not None:
            column = _taken(b, column, order, axis)
        places = _places(b, column, axis, key.upwards)
        order = places if order is None else _taken(b, order, places, axis)
    assert order is not None
    return [_taken(b, value, order, axis) for value in values]


def _keys(comparator: Comparator) -> list[Key] | None:
    """The operands that the comparator looks at, in turn; it says so of numbers of our choice.

    None where it computes anything of them, or orders them in no such way.
    """
    if not comparator.is_plain():
        return None
    keys = []
    for number, value in enumerate(comparator.columns):
        signed = not value.dtype.startswith(("u", "bool"))
        pairs = _PROBES if signed else _PROBES[:1]
        answers = {
            (comparator.probed(number, p), comparator.probed(number, (p[1], p[0]))) for p in pairs
        }
        if answers == {(True, False)} or answers == {(False, True)}:
            keys.append(Key(number, answers == {(True, False)}))
        elif answers != {(False, False)}:
            return None
    return keys or None


def comparable(b: GraphBuilder, value: TensorValue) -> TensorValue:
    """Whole numbers in the order of the value's: NaN is the largest, and zeros are equal."""
    if value.dtype == "bool":
        return b.cast(value, "int32")
    if not is_floating(value.dtype):
        return value
    x = RealValue(b, value)
    plain = where(x.equals(0), 0, x)
    wide = plain.cast("float32") if value.dtype != "float64" else plain
    bits = ordered(wide)
    return where(is_nan(wide), int(np.iinfo(to_numpy(bits.dtype)).max), bits).value


def _places(b: GraphBuilder, value: TensorValue, axis: int, upwards: bool) -> TensorValue:
    """Where each element of the sorted value was; equal ones keep their order."""
    return _top(b, value, value.shape[axis], axis, largest=not upwards)[1]


def _top(
    b: GraphBuilder, value: TensorValue, k: int, axis: int, largest: bool = True
) -> tuple[TensorValue, ...]:
    """The first k in order along an axis, and their places."""
    shape = list(value.shape)
    shape[axis] = k
    names = [b.full(value).name, b.constant(np.array([k], np.int64)).name]
    results = [(value.dtype, tuple(shape)), ("int64", tuple(shape))]
    return b.add_many("TopK", names, results, axis=axis, largest=int(largest), sorted=1)


def _taken(b: GraphBuilder, value: TensorValue, places: TensorValue, axis: int) -> TensorValue:
    names = [b.full(value).name, places.name]
    return b.add("GatherElements", names, value.dtype, value.shape, axis=axis)


# -- by any function ----------------------------------------------------------------------------
def network(comparator: Comparator, axis: int) -> list[TensorValue]:
    """Columns sorted by Batcher's bitonic network, one stage of it a turn of a loop.

    Each element carries its place, which decides between equals, so that they keep their order;
    rows are filled up to a power of two with elements whose places are behind all others.
    """
    b, shape = comparator.builder, comparator.columns[0].shape
    extent = shape[axis]
    size = 1 << (extent - 1).bit_length()
    order = (*(a for a in range(len(shape)) if a != axis), axis)
    rows = (math.prod(shape) // extent, size)
    columns = []
    for value in comparator.columns:
        moved = b.reshape(b.transpose(b.full(value), order), (rows[0], extent))
        rest = replace(b.like(0, moved), shape=(rows[0], size - extent))
        columns.append(b.full(concatenate(b, [moved, rest], 1)))
    places = b.full(replace(count(b, size, "int64"), shape=rows))
    turns = [(1 << k, 1 << j) for k in range(1, size.bit_length()) for j in reversed(range(k))]
    tables = [b.constant(np.array(table, np.int64)) for table in zip(*turns, strict=True)]

    def turn(
        number: TensorValue, go_on: TensorValue, carried: list[TensorValue]
    ) -> tuple[TensorValue, Values]:
        block, stride = (
            b.add("Gather", [table.name, number.name], "int64", (), axis=0) for table in tables
        )
        return go_on, _stage(comparator, extent, carried, block, stride)

    ordered = looped(b, len(turns), None, [*columns, places], turn)[:-1]
    back = tuple(order.index(a) for a in range(len(shape)))
    turned = tuple(shape[a] for a in order)
    cuts = (cut(b, value, (0, 0), (rows[0], extent)) for value in ordered)
    return [b.transpose(b.reshape(value, turned), back) for value in cuts]


def _stage(
    comparator: Comparator,
    extent: int,
    carried: list[TensorValue],
    block: TensorValue,
    stride: TensorValue,
) -> list[TensorValue]:
    """Each element and the one whose place differs in the bit `stride`, put in order: upwards
    where the bit `block` of the place is 0, downwards elsewhere."""
    b, size = comparator.builder, carried[0].shape[1]
    here = RealValue(b, count(b, size, "int64"))
    lacks_stride, lacks_block = ((here & RealValue(b, bit)).equals(0) for bit in (stride, block))
    partner = b.full((here ^ RealValue(b, stride)).value)
    others = [b.add("Gather", [v.name, partner.name], v.dtype, v.shape, axis=1) for v in carried]
    places, their_places = RealValue(b, carried[-1]), RealValue(b, others[-1])
    earlier = places < their_places
    before = RealValue(b, comparator(carried[:-1], others[:-1]))
    behind = RealValue(b, comparator(others[:-1], carried[:-1]))
    first = before | (~behind & earlier)
    if size > extent:
        first = where((places < extent) & (their_places < extent), first, earlier)
    stays = first.equals(lacks_stride.equals(lacks_block)).value
    return [choose(b, stays, mine, other) for mine, other in zip(carried, others, strict=True)]


@rules.register("chlo.top_k")
def top_k(translation: Translation, operation: Any, values: Values) -> Values:
    """The k largest along the last axis, and where they are."""
    return largest(translation.builder, values[0], integer(operation, "k"))


def largest(b: GraphBuilder, value: TensorValue, k: int) -> Values:
    """The k largest and their places; as TopK has them where there are none that are no numbers."""
    numbers, places = _top(b, value, k, -1)
    return [numbers, b.cast(places, "int32")]
