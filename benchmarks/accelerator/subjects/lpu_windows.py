"""Windows of chains put into a better order by CP-SAT, and how far a schedule is from its bound.

The list scheduler takes chains by their longest way to the end. Here, as many chains as a window
has are ordered anew at a time: OR-tools chooses for each a plane of MXM and a start, so that no
plane does two things at once and rows are read after they are written, and minimises when the last
one ends. The order found goes through the list scheduler again, which knows of slices, ports and
streams; the shorter schedule is kept. A window of the whole program is a relaxation of it: what the
solver proves of it is a bound of every schedule.

A chain's start is its (first) product, if it has one. Of chains with products in series, each
begins later than the one before by what their units take, so that for the bound's sake their time
on a plane is counted shorter by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from benchmarks.accelerator.subjects.lpu_bounds import CycleBounds, bounds, lag
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Dataflow, Product, types_of
from tilesmith.families.lpu.codegen.isa.bursts import BurstSchedule
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import predecessors
from tilesmith.families.lpu.codegen.scheduling.rigid import interval_of
from tilesmith.families.lpu.codegen.scheduling.scheduler import SchedulerOptions, schedule
from tilesmith.search_space.support.errors import DependencyError

WINDOW = 64
"""Chains of a window."""

WORK = 5.0
"""Deterministic time of the solver for each window: about so many seconds."""


@dataclass(frozen=True, eq=False)
class Windowed:
    """The shorter of two schedules.

    Attributes:
        schedule: it.
        listed: cycles of the list scheduler's own order.
        windows: how many there were.
        proven: what no schedule is shorter than, by the solver (0: the program is more than one
            window) or by resources and paths.
    """

    schedule: BurstSchedule
    listed: int
    windows: int
    proven: int
    resources: CycleBounds

    @property
    def least(self) -> int:
        return max(self.proven, self.resources.least)

    @property
    def over_bound(self) -> float:
        """Cycles above the bound, as a share of it."""
        return self.schedule.cycles / self.least - 1.0


def scheduled_by_windows(
    flow: Dataflow,
    chip: Chip,
    options: SchedulerOptions | None = None,
    window: int = WINDOW,
    work: float = WORK,
) -> Windowed:
    """Schedule a program, then once more in the order that windows give.

    Raises:
        DependencyError: OR-tools is not installed.
        CodegenError: as `scheduler.schedule`.
    """
    if find_spec("ortools") is None:
        raise DependencyError(
            "ortools is not installed; install it with: pip install 'tilesmith[ortools]'"
        )
    options = options or SchedulerOptions()
    first = schedule(flow, chip, options)
    starts: dict[int, int] = {}
    for chain, cycle in zip(
        first.table["chain"].tolist(), first.table["cycle"].tolist(), strict=True
    ):
        starts[chain] = max(starts.get(chain, 0), cycle)
    order = sorted(range(len(flow.chains)), key=lambda number: (starts.get(number, 0), number))
    before, ranked, proven = predecessors(flow), list[int](), 0
    cuts = [order[at : at + window] for at in range(0, len(order), window)]
    for mine in cuts:
        ordered_chains, bound = _ordered(flow, chip, mine, before, work)
        ranked += ordered_chains
        proven = bound if len(cuts) == 1 else 0
    ranks = [0] * len(order)
    for rank, number in enumerate(ranked):
        ranks[number] = rank
    second = schedule(flow, chip, replace(options, ranks=tuple(ranks)))
    best = min(first, second, key=lambda placed: placed.cycles)
    return Windowed(best, first.cycles, len(cuts), proven, bounds(flow, chip))


def _ordered(
    flow: Dataflow, chip: Chip, mine: Sequence[int], before: list[list[int]], work: float
) -> tuple[list[int], int]:
    """The chains of a window by the starts the solver gives them, and its bound (cycles)."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    spans = {
        number: flow.chains[number].count
        * interval_of(flow.chains[number], types_of(flow.chains[number], flow.tensors), chip)
        for number in mine
    }
    horizon = 2 * sum(spans.values()) + 1000 * len(mine)
    starts = {number: model.new_int_var(0, horizon, f"start {number}") for number in mine}
    end = model.new_int_var(0, horizon, "end")
    planes: list[list[Any]] = [[] for _ in range(4)]
    inside = set(mine)
    for number in mine:
        model.add(end >= starts[number] + spans[number])
        _planes(model, flow, chip, number, (starts[number], spans[number]), planes)
        chain = flow.chains[number]
        for other in inside.intersection(before[number]):
            earlier = flow.chains[other]
            paces = (spans[other] // earlier.count, spans[number] // chain.count)
            model.add(starts[number] >= starts[other] + lag(earlier, chain, paces, chip))
    for intervals in planes:
        model.add_no_overlap(intervals)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = work
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return list(mine), 0
    place = {number: turn for turn, number in enumerate(mine)}
    order = sorted(mine, key=lambda number: (solver.value(starts[number]), place[number]))
    return order, int(solver.best_objective_bound) + chip.tiles + chip.delay("read")


def _planes(
    model: Any,
    flow: Dataflow,
    chip: Chip,
    number: int,
    at: tuple[Any, int],
    planes: list[list[Any]],
) -> None:
    """A chain's products on planes of their own, each for the chain's time."""
    chain, (start, span) = flow.chains[number], at
    types = types_of(chain, flow.tensors)
    products = [step for step in chain.steps if isinstance(step, Product)]
    apart = chip.delay("product") + chip.delay("accumulate") + 2 * chip.mxm_place
    size = max(1, span - apart * (len(products) - 1))
    for turn, step in enumerate(products):
        wide = types[step.moving] == "float16"
        flags = []
        for first in (0, 2) if wide else (0, 1, 2, 3):
            flag = model.new_bool_var(f"plane {number}.{turn}.{first}")
            interval = model.new_optional_fixed_size_interval_var(start, size, flag, "")
            for plane in (first, first + 1) if wide else (first,):
                planes[plane].append(interval)
            flags.append(flag)
        model.add_exactly_one(flags)
