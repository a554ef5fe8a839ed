"""Data movement: copies of boxes, a vector at a time.

Slices, concatenations and padding copy boxes of tensors. Two things make them fast whatever
the shape: axes that are copied whole merge with their neighbour into longer runs, and the innermost
run is cut into vectors, several of them unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.search_space.ir.expression import var
from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace


@dataclass(frozen=True)
class Span:
    """What is done along one axis: `size` elements from `start` on, `step` apart, out of `extent`.

    A start below zero or an end behind the extent means padding.
    """

    extent: int
    start: int
    size: int
    step: int = 1

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.size == self.extent and self.step == 1


def merge(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Merge each axis that is copied whole into the one before it, and drop axes of one element."""
    found: list[Span] = []
    for span in spans:
        last = found[-1] if found else None
        if last is not None and span.whole and last.step == 1:
            t = span.extent
            found[-1] = Span(last.extent * t, last.start * t, last.size * t)
        else:
            found.append(span)
    kept = [s for s in found if not (s.whole and s.extent == 1)]
    return tuple(kept) or (Span(1, 0, 1),)


def vectors_of(extent: int, lanes: int) -> int:
    """Vectors along a run."""
    return -(-extent // lanes)


def copy_space(extent: int, lanes: int) -> SearchSpace:
    """How many vectors of the innermost run (of `extent` elements) are unrolled."""
    counts = [u for u in (1, 2, 4, 8) if u <= vectors_of(extent, lanes)]
    return SearchSpace((Subspace((("algorithm", "copy"),), (tile("unroll", counts),)),))


def copy_default(extent: int, lanes: int) -> Config:
    """Four vectors, or as many as there are."""
    counts = [u for u in (1, 2, 4) if u <= vectors_of(extent, lanes)]
    return Config.of(algorithm="copy", unroll=max(counts))


def copy_schedule(compute: ComputeDefinition, lanes: int) -> Schedule:
    """Every stage: innermost axis in vectors, `unroll` of them at a time, the rest parallel."""
    schedule = Schedule(compute)
    for stage in compute.stages:
        *outer, inner = (a.name for a in stage.axes)
        schedule = schedule.split(stage.name, inner, lanes, "vector", "lane")
        schedule = schedule.split(stage.name, "vector", var("unroll"), "step", "part")
        schedule = schedule.vectorize(stage.name, "lane").unroll(stage.name, "part")
        schedule = schedule.parallel(stage.name, *outer, "step")
    return schedule
