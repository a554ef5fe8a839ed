"""The smallest arena there is, by constraint programming, with a proof of how small one can be.

First fit (`memory.plan_arena`) usually needs no more than what is alive at once, and then nothing
can be won. Where it needs more, every interval becomes a rectangle, its life fixed and its offset
open; CP-SAT of OR-tools (`AddNoOverlap2D`) looks for offsets that need less, and proves a bound:
dynamic storage allocation is NP-hard (Garey and Johnson, SR2), but models have a few hundred
intervals. Before: the heuristic's offsets, which the solver starts from. After: an arena that is
never larger.

Invariants: equal intervals give equal offsets (one solver thread, a fixed seed, and a limit in the
solver's own unit of work, not in seconds); `ArenaFound.least` is a bound no arrangement can beat.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilesmith.compiler.recipe.memory import (
    ALIGNMENT,
    Arena,
    Interval,
    aligned,
    peak_alive,
    plan_arena,
)

WORK = 20.0
"""Limit of a search in CP-SAT's deterministic time, about so many seconds of a processor."""


@dataclass(frozen=True)
class ArenaFound:
    """One arena, and what was known of it.

    Attributes:
        nbytes: of the arena that was chosen.
        heuristic: what first fit needs.
        least: what every arrangement needs, in bytes.
    """

    nbytes: int
    heuristic: int
    least: int

    @property
    def proven(self) -> bool:
        """Whether no smaller arena exists."""
        return self.nbytes == self.least

    @property
    def gap(self) -> float:
        """By how much of the bound the arena may be too large: 0 where it is optimal."""
        return self.nbytes / self.least - 1.0 if self.least else 0.0


@dataclass
class OptimalMemory:
    """Arranges arenas, and remembers what came of each: a model has one, and one for the bodies of
    each of its loops and branches.

    Attributes:
        work: limit of each search (`WORK`).
        arenas: what came of each arena, in the order they were asked for.
    """

    work: float = WORK
    arenas: list[ArenaFound] = field(default_factory=list)

    def __call__(self, intervals: Sequence[Interval]) -> Arena:
        heuristic = plan_arena(intervals)
        least = peak_alive(intervals)
        chosen = heuristic
        if heuristic.nbytes > least:
            chosen, least = _searched(intervals, heuristic, least, self.work)
        self.arenas.append(ArenaFound(chosen.nbytes, heuristic.nbytes, least))
        return chosen

    @property
    def largest(self) -> ArenaFound:
        """What came of the largest arena, a model's own."""
        return max(self.arenas, key=lambda arena: arena.nbytes, default=ArenaFound(0, 0, 0))


def _searched(
    intervals: Sequence[Interval], start: Arena, least: int, work: float
) -> tuple[Arena, int]:
    """The best arena found from `start` on, and the bound proven (bytes)."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    top = model.new_int_var(least // ALIGNMENT, start.nbytes // ALIGNMENT, "top")
    lives: list[Any] = []
    places: list[Any] = []
    offsets: dict[str, Any] = {}
    for interval in intervals:
        size = aligned(interval.nbytes) // ALIGNMENT
        if not size:
            continue
        offset = model.new_int_var(0, start.nbytes // ALIGNMENT - size, interval.name)
        life = interval.last - interval.first + 1
        lives.append(model.new_fixed_size_interval_var(interval.first, life, ""))
        places.append(model.new_fixed_size_interval_var(offset, size, ""))
        model.add(top >= offset + size)
        model.add_hint(offset, start.offsets[interval.name] // ALIGNMENT)
        offsets[interval.name] = offset
    model.add_no_overlap_2d(lives, places)
    model.add_hint(top, start.nbytes // ALIGNMENT)
    model.minimize(top)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work
    status = solver.solve(model)
    bound = max(least, math.ceil(solver.best_objective_bound - 1e-6) * ALIGNMENT)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start, bound
    nbytes = int(solver.objective_value) * ALIGNMENT
    if nbytes >= start.nbytes:
        return start, min(bound, start.nbytes)
    placed = {name: int(solver.value(offset)) * ALIGNMENT for name, offset in offsets.items()}
    return Arena({i.name: placed.get(i.name, 0) for i in intervals}, nbytes), min(bound, nbytes)
