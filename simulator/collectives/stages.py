"""From a kind of collective and a group of cores to plans: stages, each with its algorithms.

A group is regular if it has, on every level, the same members in every cell it reaches: it then is
one span of lanes after another, level by level, and goes hierarchically; the cores of a chip behind
one switch are one span. If all cores of its chips take part, a ring of chips is another plan. Any
other group is one lane over the outermost level that it spans.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilesmith.search_space.meshes.mesh import CollectiveKind, Level, Mesh
from tilesmith.simulator.collectives.algorithms import (
    ALGORITHMS,
    KANGARING,
    SINGLE_STEP,
    Step,
    Steps,
    applies,
    kangaring,
    single_step,
)
from tilesmith.simulator.collectives.transfers import Lanes, Transfers, Ways


@dataclass(frozen=True)
class CollectiveStage:
    """Part of a collective: the steps it may take, by the name of the algorithm.

    Args:
        level: the outermost level it goes over, for its name.
    """

    level: str
    alternatives: dict[str, Steps]


@dataclass(frozen=True)
class LaneSpan:
    """The lanes of a group on one level, or on several that are taken together."""

    level: Level
    lanes: Lanes
    together: bool = False

    @property
    def members(self) -> int:
        return len(self.lanes[0]) * (len(self.lanes) if self.together else 1)

    def alternatives(self, share: float, reduces: bool) -> dict[str, Steps]:
        """The algorithms of a gather, or of a sum that is scattered."""
        if self.together:
            return {KANGARING: kangaring(self.level, self.lanes, share, reduces)}
        return {
            name: algorithm(self.level, self.lanes, share, reduces)
            for name, algorithm in ALGORITHMS.items()
            if applies(name, len(self.lanes[0]))
        }


def plans_of(
    mesh: Mesh, kind: CollectiveKind, group: tuple[int, ...]
) -> list[list[CollectiveStage]]:
    """The plans of a collective, each a list of stages in their order."""
    if kind == "send":
        level = _widest(mesh, group)
        ways = Ways(np.array(group[:1]), np.array(group[1:]))
        step = Step(level.name, Transfers(ways, 1.0))
        return [[CollectiveStage(level.name, {"direct": (step,)})]]
    spans = spans_of(mesh, group)
    if kind == "all_to_all":
        return [[_exchanged(span) for span in reversed(spans)]]
    build = {"all_reduce": _all_reduced, "all_gather": _gathered, "reduce_scatter": _summed}[kind]
    return [build(plan) for plan in (spans, _with_kangaring(mesh, spans)) if plan]


def spans_of(mesh: Mesh, group: tuple[int, ...]) -> list[LaneSpan]:
    """The levels a group spans, from the inside out, with its lanes on each."""
    flat = [LaneSpan(_widest(mesh, group), Lanes([group]))]
    spans: list[LaneSpan] = []
    below = 1
    for level in _levels(mesh):
        lanes: defaultdict[int, list[int]] = defaultdict(list)
        for core in group:
            lanes[core // level.cores * level.cores + core % below].append(core)
        below, sizes = level.cores, {len(lane) for lane in lanes.values()}
        if len(sizes) > 1:
            return flat
        if sizes != {1}:
            spans.append(LaneSpan(level, Lanes(tuple(sorted(lane)) for lane in lanes.values())))
    return spans if math.prod(span.members for span in spans) == len(group) else flat


def plan_spans(mesh: Mesh, group: tuple[int, ...], together: bool) -> list[LaneSpan]:
    """The spans of the hierarchical plan, or of that whose chips stand in a ring `together`."""
    spans = spans_of(mesh, group)
    return _with_kangaring(mesh, spans) if together else spans


def _levels(mesh: Mesh) -> list[Level]:
    """The levels, those inside a chip as one if they are switches."""
    inner = [level for level in mesh.levels if level.cores <= mesh.cores_per_chip]
    if len(inner) > 1 and all(level.topology == "switch" for level in inner):
        return list(mesh.levels[len(inner) - 1 :])
    return list(mesh.levels)


def _widest(mesh: Mesh, group: tuple[int, ...]) -> Level:
    return next(
        level
        for level in reversed(mesh.levels)
        if len({core // level.inside for core in group}) > 1
    )


def _with_kangaring(mesh: Mesh, spans: list[LaneSpan]) -> list[LaneSpan]:
    """The spans with those of chips and between chips as one; nothing if that cannot be."""
    if len(spans) < 2 or mesh.cores_per_chip == 1:
        return []
    inner, outer = spans[:2]
    whole = inner.level.cores == inner.members == mesh.cores_per_chip
    if not whole or outer.level.inside != mesh.cores_per_chip:
        return []
    return [LaneSpan(outer.level, outer.lanes, together=True), *spans[2:]]


def _shares(spans: Sequence[LaneSpan]) -> list[float]:
    """The share of the tensor that is left before each span sums, from the inside out."""
    shares, share = [], 1.0
    for span in spans:
        shares.append(share)
        share /= span.members
    return shares


def _gathered(spans: list[LaneSpan]) -> list[CollectiveStage]:
    return [
        CollectiveStage(span.level.name, span.alternatives(share, False))
        for span, share in reversed([*zip(spans, _shares(spans), strict=True)])
    ]


def _summed(spans: list[LaneSpan]) -> list[CollectiveStage]:
    return [
        CollectiveStage(span.level.name, span.alternatives(share, True))
        for span, share in zip(spans, _shares(spans), strict=True)
    ]


def _all_reduced(spans: list[LaneSpan]) -> list[CollectiveStage]:
    """Sums inside, on the outermost level sums and gathers or all at once, gathers inside."""
    *sums, last = _summed(spans)
    first, *gathers = _gathered(spans)
    both = {name: (*steps, *first.alternatives[name]) for name, steps in last.alternatives.items()}
    outer = spans[-1]
    if not outer.together:
        both[SINGLE_STEP] = single_step(outer.level, outer.lanes, _shares(spans)[-1])
    return [*sums, CollectiveStage(last.level, both), *gathers]


def _exchanged(span: LaneSpan) -> CollectiveStage:
    """Everybody's p-th part to everybody: level by level, all that goes there in one step."""
    return CollectiveStage(
        span.level.name, {"mesh": ALGORITHMS["mesh"](span.level, span.lanes, 1.0, False)}
    )
