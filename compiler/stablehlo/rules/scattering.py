"""Scatters: reading their dimension numbers, and how what is there and what is written become one.

Windows that would lie outside are not written at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilesmith.compiler.stablehlo.bindings import stablehlo
from tilesmith.compiler.stablehlo.builder import Builder, Shape, Value
from tilesmith.compiler.stablehlo.rules.indexing import Windows, batched, components, write
from tilesmith.compiler.stablehlo.rules.reductions import Body
from tilesmith.compiler.stablehlo.translator import Translation, Values, rules

_JOINED = {"sum": "add", "product": "mul", "max": "max", "min": "min"}


@rules.register("stablehlo.scatter")
def _scatter(translation: Translation, operation: Any, values: Values) -> Values:
    if len(values) != 3:
        raise translation.refuse(operation, "scatters into several tensors at once; one is allowed")
    b, (value, indices, updates) = translation.builder, values
    reduction = _reduction(translation, operation, value.dtype)
    if 0 in (*updates.shape, *value.shape):
        return [value]
    if value.dtype == "bool":
        numbers = (b.cast(value, "int32"), indices, b.cast(updates, "int32"))
        return [b.cast(_scattered(b, operation, numbers, reduction), "bool")]
    return [_scattered(b, operation, (value, indices, updates), reduction)]


def _reduction(translation: Translation, operation: Any, dtype: str) -> str:
    """How written and new elements become one."""
    body = Body(translation, operation)
    kind = body.kind(dtype)
    kind = {"and": "min", "or": "max"}.get(kind or "", kind)
    if kind is not None:
        return _JOINED[kind]
    (block,) = operation.regions[0].blocks
    (*_, end) = block.operations
    if list(end.operands) == [block.arguments[1]]:
        return "none"
    raise translation.refuse(
        operation,
        "joins what is there and what is written by a function; replacing, adding, multiplying, "
        "and the larger or smaller of both are supported",
    )


def _scattered(
    b: Builder, operation: Any, values: tuple[Value, Value, Value], reduction: str
) -> Value:
    value, indices, updates = values
    axes = stablehlo().ScatterDimensionNumbers(operation.attributes["scatter_dimension_numbers"])
    vector = int(axes.index_vector_dim)
    batch = tuple(extent for axis, extent in enumerate(indices.shape) if axis != vector)
    shared = tuple(axes.input_batching_dims)
    gone = {*axes.inserted_window_dims, *shared}
    within = tuple(axes.update_window_dims)
    extents = iter(updates.shape[axis] for axis in within)
    sizes = tuple(1 if axis in gone else next(extents) for axis in range(len(value.shape)))
    parts = components(b, indices, vector)
    starts = dict(zip(axes.scattered_dims_to_operand_dims, parts, strict=True))
    counts = batched(b, tuple(axes.scatter_indices_batching_dims), vector, indices.shape)
    inside = _inside(b, value.shape, starts, sizes, batch)
    starts.update(zip(shared, counts, strict=True))
    windows = Windows(batch, starts, sizes)
    outside = [axis for axis in range(len(updates.shape)) if axis not in within]
    moved = b.reshape(b.transpose(updates, (*outside, *within)), (*batch, *sizes))
    if inside is not None:
        lead = windows.covered(value.shape)
        whole = (*batch, *sizes[:lead])
        inside = b.broadcast(inside, whole, tuple(range(len(batch))))
    return write(b, value, moved, windows, reduction, inside)


def _inside(
    b: Builder, shape: Shape, starts: dict[int, Value], sizes: Shape, batch: Shape
) -> Value | None:
    """Whether each window lies inside; None where every one does."""
    found: Value | None = None
    for axis, start in starts.items():
        tables = (turns.table(b, start) for turns in reversed(b.turns))
        known = next((table for table in tables if table is not None), b.known(start))
        most = shape[axis] - sizes[axis]
        if known is not None and known.min() >= 0 and known.max() <= most:
            continue
        low = b.elementwise("GreaterOrEqual", start, b.like(0, start), dtype="bool")
        high = b.elementwise("LessOrEqual", start, b.like(most, start), dtype="bool")
        both = b.elementwise("And", low, high)
        found = both if found is None else b.elementwise("And", found, both)
    return None if found is None else replace(found, shape=batch)
