"""Scatters: reading their dimension numbers, and how what is there and what is written become one.

Windows that would lie outside are not written at all.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from tilesmith.capabilities.stablehlo.arithmetic import RealValue
from tilesmith.capabilities.stablehlo.bindings import stablehlo
from tilesmith.capabilities.stablehlo.bodies import looped
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, Shape, TensorValue
from tilesmith.capabilities.stablehlo.pairs import Complex, flat, packed
from tilesmith.capabilities.stablehlo.rules.indexing import (
    Windows,
    batched,
    clamped,
    components,
    read,
    write,
)
from tilesmith.capabilities.stablehlo.rules.reductions import ReductionBody
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules

_JOINED = {"sum": "add", "product": "mul", "max": "max", "min": "min"}


@rules.register("stablehlo.scatter")
def _scatter(translation: Translation, operation: Any, values: Values) -> Values:
    b, many = translation.builder, len(values) // 2
    given, indices, updates = values[:many], values[many], values[many + 1 :]
    if 0 in (*updates[0].shape, *given[0].shape):
        return list(given)
    body = ReductionBody(translation, operation)
    kind = "none" if body.replaces() else body.kind(given[0].dtype) if many == 1 else None
    kind = {"and": "min", "or": "max"}.get(kind or "", kind)
    written = _Written.of(b, operation, given[0].shape, indices, updates[0].shape)
    if kind is None or (kind != "none" and isinstance(given[0], Complex)):
        return packed(written.joined(flat(given), flat(updates), body, given), given)
    reduction = _JOINED.get(kind, kind)
    results = [
        written.write(v, u, reduction) for v, u in zip(flat(given), flat(updates), strict=True)
    ]
    return packed(results, given)


@dataclass(frozen=True)
class _Written:
    """Where a scatter writes.

    Attributes:
        windows: where; those that are not inside as near as they can be.
        inside: by window, whether it is written at all; None: every one.
        unique: whether no element is in two windows.
        within: axes of updates that lie in windows.
    """

    b: GraphBuilder
    shape: Shape
    windows: Windows
    inside: TensorValue | None
    unique: bool
    within: Shape

    @staticmethod
    def of(
        b: GraphBuilder, operation: Any, shape: Shape, indices: TensorValue, updates: Shape
    ) -> "_Written":
        """Of tensors and updates of such shapes."""
        attributes = operation.attributes
        axes = stablehlo().ScatterDimensionNumbers(attributes["scatter_dimension_numbers"])
        vector = int(axes.index_vector_dim)
        batch = tuple(extent for axis, extent in enumerate(indices.shape) if axis != vector)
        shared = tuple(axes.input_batching_dims)
        gone = {*axes.inserted_window_dims, *shared}
        within = tuple(axes.update_window_dims)
        extents = iter(updates[axis] for axis in within)
        sizes = tuple(1 if axis in gone else next(extents) for axis in range(len(shape)))
        vectors = components(b, indices, vector)
        starts = dict(zip(axes.scattered_dims_to_operand_dims, vectors, strict=True))
        counts = batched(b, tuple(axes.scatter_indices_batching_dims), vector, indices.shape)
        inside = _inside(b, shape, starts, sizes, batch)
        starts = {a: clamped(b, start, shape[a] - sizes[a]) for a, start in starts.items()}
        starts.update(zip(shared, counts, strict=True))
        stated = "unique_indices" in attributes and bool(attributes["unique_indices"].value)
        unique = stated or math.prod(batch) == 1
        return _Written(b, shape, Windows(batch, starts, sizes), inside, unique, within)

    def moved(self, update: TensorValue) -> TensorValue:
        """[batch, sizes] of an update."""
        outside = [axis for axis in range(len(update.shape)) if axis not in self.within]
        turned = self.b.transpose(update, (*outside, *self.within))
        return self.b.reshape(turned, (*self.windows.batch, *self.windows.sizes))

    def write(self, value: TensorValue, update: TensorValue, reduction: str) -> TensorValue:
        b, inside = self.b, self.inside
        if value.dtype == "bool":
            there, given = (b.cast(each, "int32") for each in (value, update))
            return b.cast(self.write(there, given, reduction), "bool")
        if inside is not None:
            lead = self.windows.covered(self.shape)
            whole = (*self.windows.batch, *self.windows.sizes[:lead])
            inside = b.broadcast(inside, whole, tuple(range(len(self.windows.batch))))
        return write(b, value, self.moved(update), self.windows, reduction, inside)

    def joined(
        self,
        values: list[TensorValue],
        updates: list[TensorValue],
        body: ReductionBody,
        like: Values,
    ) -> list[TensorValue]:
        """What is there and what is written joined by a function: all windows at once where none
        lie over each other, else one after the other."""
        b, windows = self.b, self.windows
        if self.unique:
            return self._at_once(values, updates, body, like)
        many = math.prod(windows.batch)
        listed = [b.reshape(b.full(self.moved(each)), (many, *windows.sizes)) for each in updates]
        starts = {axis: b.reshape(b.full(replace(start, shape=windows.batch)), (many,))
                  for axis, start in windows.starts.items()}  # fmt: skip
        inside = None if self.inside is None else b.reshape(b.full(self.inside), (many,))

        def turn(
            number: TensorValue, go_on: TensorValue, carried: list[TensorValue]
        ) -> tuple[TensorValue, Values]:
            def own(table: TensorValue) -> TensorValue:
                names = [table.name, number.name]
                return b.add("Gather", names, table.dtype, table.shape[1:], axis=0)

            one = replace(
                self,
                windows=Windows((), {axis: own(s) for axis, s in starts.items()}, windows.sizes),
                inside=None if inside is None else own(inside),
                within=tuple(range(len(windows.sizes))),
            )
            return go_on, one._at_once(carried, [own(each) for each in listed], body, like)

        given = [b.full(value) for value in values]
        return list(looped(b, many, None, given, turn))

    def _at_once(
        self,
        values: list[TensorValue],
        updates: list[TensorValue],
        body: ReductionBody,
        like: Values,
    ) -> list[TensorValue]:
        b, windows = self.b, self.windows
        there = [read(b, value, windows) for value in values]
        combined = body.of_parts(like)(there, [self.moved(each) for each in updates])
        shape = (*windows.batch, *windows.sizes)
        arranged = replace(self, within=tuple(range(len(windows.batch), len(shape))))
        return [
            arranged.write(value, replace(new, shape=shape), "none")
            for value, new in zip(values, combined, strict=True)
        ]


def _inside(
    b: GraphBuilder, shape: Shape, starts: dict[int, TensorValue], sizes: Shape, batch: Shape
) -> TensorValue | None:
    """Whether each window lies inside; None where every one does."""
    inside: RealValue | None = None
    for axis, start in starts.items():
        tables = (turns.table(b, start) for turns in reversed(b.turns))
        known = next((table for table in tables if table is not None), b.known(start))
        most = shape[axis] - sizes[axis]
        if known is not None and known.min() >= 0 and known.max() <= most:
            continue
        place = RealValue(b, start)
        both = (place >= 0) & (place <= most)
        inside = both if inside is None else inside & both
    return None if inside is None else replace(inside.value, shape=batch)
