"""Sorting: by one operand or several in turn, upwards or downwards, others along; the largest k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilesmith.compiler.stablehlo.attributes import integer
from tilesmith.compiler.stablehlo.builder import Builder, Value
from tilesmith.compiler.stablehlo.rules.elementwise import choose, ordered
from tilesmith.compiler.stablehlo.translator import Translation, Values, rules
from tilesmith.search_space.dtypes import is_floating, to_numpy

_PROBES = ((1, 2), (-3, 2), (0, 5), (-4, -1))
"""Pairs in order; what a comparator says of them tells which way it sorts."""


@dataclass(frozen=True)
class Key:
    """An operand that is compared, and whether smaller ones come first."""

    operand: int
    upwards: bool


@rules.register("stablehlo.sort")
def _sort(translation: Translation, operation: Any, values: Values) -> Values:
    b = translation.builder
    axis = integer(operation, "dimension", -1) % len(values[0].shape)
    keys = _keys(translation, operation, values)
    order: Value | None = None
    for key in reversed(keys):  # the last key first: each later one keeps that order among equals
        column = comparable(b, values[key.operand])
        if order is not None:
            column = _taken(b, column, order, axis)
        places = _places(b, column, axis, key.upwards)
        order = places if order is None else _taken(b, order, places, axis)
    if order is None or values[0].shape[axis] < 2:
        return list(values)
    return [_taken(b, value, order, axis) for value in values]


def _keys(translation: Translation, operation: Any, values: Values) -> list[Key]:
    """The operands that the comparator looks at, in turn; it says so of numbers of our choice."""
    b, outer = translation.builder, translation.known

    def before(number: int, pair: tuple[int, int]) -> bool | None:
        arguments = []
        for operand, value in enumerate(values):
            for side in pair if operand == number else (1, 1):
                dtype = to_numpy(value.dtype)
                plain = abs(side) if value.dtype.startswith("u") else side
                arguments.append(
                    b.constant(np.array(plain > 1 if value.dtype == "bool" else plain, dtype))
                )
        (found,) = translation.region(operation.regions[0], arguments, outer)
        known = b.single(found)
        return None if known is None else bool(known)

    keys = []
    for number, value in enumerate(values):
        signed = not value.dtype.startswith(("u", "bool"))
        pairs = _PROBES if signed else _PROBES[:1]
        answers = {(before(number, p), before(number, (p[1], p[0]))) for p in pairs}
        if answers == {(True, False)} or answers == {(False, True)}:
            keys.append(Key(number, answers == {(True, False)}))
        elif answers != {(False, False)}:
            keys = []
            break
    if not keys:
        raise translation.refuse(
            operation,
            "sorts by a function of its own; the order of one operand, or of several in turn, is "
            "supported",
        )
    return keys


def comparable(b: Builder, value: Value) -> Value:
    """Whole numbers in the order of the value's: NaN is the largest, and zeros are equal."""
    if value.dtype == "bool":
        return b.cast(value, "int32")
    if not is_floating(value.dtype):
        return value
    zero = b.like(0, value)
    plain = choose(b, b.elementwise("Equal", value, zero, dtype="bool"), zero, value)
    wide = b.cast(plain, "float32") if value.dtype != "float64" else plain
    bits = ordered(b, wide)
    largest = b.like(np.iinfo(to_numpy(bits.dtype)).max, bits)
    return choose(b, b.elementwise("IsNaN", wide, dtype="bool"), largest, bits)


def _places(b: Builder, value: Value, axis: int, upwards: bool) -> Value:
    """Where each element of the sorted value was; equal ones keep their order."""
    many = b.constant(np.array([value.shape[axis]], np.int64))
    names = [b.full(value).name, many.name]
    results = [(value.dtype, value.shape), ("int64", value.shape)]
    _, places = b.add_many("TopK", names, results, axis=axis, largest=int(not upwards), sorted=1)
    return places


def _taken(b: Builder, value: Value, places: Value, axis: int) -> Value:
    names = [b.full(value).name, places.name]
    return b.add("GatherElements", names, value.dtype, value.shape, axis=axis)


@rules.register("chlo.top_k")
def top_k(translation: Translation, operation: Any, values: Values) -> Values:
    """The k largest along the last axis, and where they are."""
    return largest(translation.builder, values[0], integer(operation, "k"))


def largest(b: Builder, value: Value, k: int) -> Values:
    """The k largest and their places; as TopK has them where there are none that are no numbers."""
    shape = (*value.shape[:-1], k)
    many = b.constant(np.array([k], np.int64))
    names = [b.full(value).name, many.name]
    found = b.add_many(
        "TopK", names, [(value.dtype, shape), ("int64", shape)], axis=-1, largest=1, sorted=1
    )
    return [found[0], b.cast(found[1], "int32")]
