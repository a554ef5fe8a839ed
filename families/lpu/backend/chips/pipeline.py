"""A model's kernels over several LPU-like chips: a pipeline of stages, each on a chip of its own.

Kernels stay in their order; a stage is a run of them, placed and scheduled as a program of its own,
with only its own weights resident. What one stage makes and a later one reads goes from chip to
chip, through those between, over the links of two neighbours, while the next inference is computed:

    period  = the largest of all stages' cycles and all transfers' cycles
    latency = all stages and all transfers, one after the other

Cuts are chosen by dynamic programming over all contiguous ones. A run that has not been scheduled
counts the closed form of its kernels' chains, as far as that was right for the runs that have been;
the runs of the best cut are scheduled, and their cycles taken instead, until the best cut is one
whose runs are all scheduled, or for so many rounds. Only what is chosen in the end is scheduled as
well as a whole model is.

Steps on the host between kernels are their stage's, that of the kernel before: its chip waits for
them, and its cycles hold their time. Those before the first kernel and behind the last are the
host's own part of the pipeline.

Invariants: every kernel is in one stage; more chips never make the period longer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from tilesmith.compiler.recipe.program import HostStep, KernelStep, Recipe
from tilesmith.families.kit.simulation.host_costs import host_time
from tilesmith.families.lpu.backend.programs.entrance import entering, leaving
from tilesmith.families.lpu.backend.programs.program import (
    TRIES,
    ChipProgram,
    codes_of,
    joined_of,
    linked,
)
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import LANES, Chain
from tilesmith.families.lpu.codegen.scheduling.scheduler import SchedulerOptions
from tilesmith.families.lpu.simulator.analytical import estimate
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import ModelError
from tilesmith.simulator.telling import tell

ROUNDS = 6
"""Times that the runs of a best cut are scheduled before the best of those that are known is
taken."""


@dataclass(frozen=True, eq=False)
class ChipStage:
    """What one chip does of each inference.

    Attributes:
        programs: between which the host has steps.
        weights: bytes of MEM that constants take there.
        sent: cycles that what goes on to the next chip occupies the links; 0 of the last.
        host: cycles of the chip's clock that it waits for steps on the host.
        waits: names of those steps.
    """

    programs: tuple[ChipProgram, ...]
    weights: int
    sent: int
    host: int = 0
    waits: tuple[str, ...] = ()

    @property
    def cycles(self) -> int:
        return _cycles(self.programs) + self.host

    @property
    def kernels(self) -> tuple[KernelStep, ...]:
        return tuple(step for program in self.programs for step in program.steps)


@dataclass(frozen=True, eq=False)
class ChipPipeline:
    """A model over chips. Times in cycles of a chip's clock.

    Attributes:
        flight: from a send to its receive, for each transfer.
    """

    stages: tuple[ChipStage, ...]
    ghz: float
    flight: int

    @property
    def period(self) -> int:
        """Between two results."""
        return max(max(stage.cycles, stage.sent) for stage in self.stages)

    @property
    def latency(self) -> int:
        """From an input to its result."""
        busy = sum(stage.cycles + stage.sent for stage in self.stages)
        return busy + self.flight * (len(self.stages) - 1)

    @property
    def per_second(self) -> float:
        """Inferences a second."""
        return self.ghz * 1e9 / self.period


def best_cuts(
    kernels: int, most: int, cost: Callable[[int, int], float]
) -> tuple[float, tuple[int, ...]]:
    """Where to cut a row of kernels into at most so many runs, the costliest as cheap as can be.

    Args:
        cost: of kernels [first, end); infinite if no chip can hold them.

    Returns:
        The costliest run's cost, and the end of every run; as few runs as that cost allows. The
        cost is infinite, and the ends mean nothing, if there is no way.
    """
    costs = [[cost(first, end) for first in range(end)] for end in range(kernels + 1)]
    best: list[tuple[float, tuple[int, ...]]] = [(math.inf, ())] * (kernels + 1)
    best[0] = (0.0, ())
    cheapest = best[kernels]
    for _ in range(most):
        following: list[tuple[float, tuple[int, ...]]] = [(math.inf, ())]
        for end in range(1, kernels + 1):
            choices = [
                (max(best[first][0], costs[end][first]), (*best[first][1], end))
                for first in range(end)
                if best[first][0] < math.inf
            ]
            following.append(min(choices, default=(math.inf, ())))
        best = following
        cheapest = min(cheapest, best[kernels], key=lambda one: one[0])
    return cheapest


@dataclass
class _Life:
    """A tensor of the arena: its bytes, byte planes of vectors, who makes and last reads it."""

    first: int
    end: int
    vectors: int
    written: int
    read: int


class Cutter:
    """Cuts one compiled model for any number of chips; what it schedules it keeps.

    Args:
        target: the chip that stages are for; the recipe's if None. None has to hold the whole.
        links: between two neighbours.

    Raises:
        ModelError: the model has no kernels.
    """

    def __init__(self, recipe: Recipe, target: Target | None = None, links: int = 1) -> None:
        steps, hosts = _run_of(recipe)
        self.recipe, self.links = recipe, links
        self.target = target or recipe.target
        self.chip = Chip.of(self.target)
        ends = sorted(hosts)
        head = steps[: ends[0] + 1] if ends else steps
        self._first = entering(recipe, head)
        self._last = leaving(recipe, steps[ends[-1] + 1 :] if ends else steps)
        if ends and len(self._first) == len(head):
            self._first = ()  # the host goes on from there: a program of its own
        self.kernels = steps[len(self._first) : len(steps) - len(self._last)]
        self._hosts = {number - len(self._first): those for number, those in hosts.items()}
        self._weights = _weights(recipe, self.kernels)
        self._live = _live(recipe, self.kernels)
        self._scheduled: dict[tuple[int, int], tuple[ChipProgram, ...] | None] = {}
        self._fitting: dict[tuple[int, int], bool] = {}
        self._found: list[ChipPipeline] = []
        self._refused = ""

    @cached_property
    def _estimated(self) -> list[float]:
        """Cycles of each kernel by the closed form of its chains, those that cut rows anew too."""
        joined = joined_of(self.recipe, self.kernels, codes_of(self.recipe, self.kernels))
        mine: list[list[Chain]] = [[] for _ in self.kernels]
        for chain, owner in zip(joined.flow.chains, joined.owners, strict=True):
            mine[owner].append(chain)
        parts = (replace(joined.flow, chains=tuple(chains)) for chains in mine)
        return [float(estimate(part, self.chip).cycles) for part in parts]

    @cached_property
    def _sent(self) -> list[int]:
        """Cycles on the links of what crosses a cut before each kernel, and behind the last."""
        lives: list[_Life] = []
        codes = codes_of(self.recipe, self.kernels)
        for number, step in enumerate(self.kernels):
            *operands, output = codes[step.code].parameters
            for parameter, place in zip(operands, step.arguments, strict=False):
                end = place.offset + math.prod(parameter.shape) * size_of(parameter.dtype)
                for life in lives:
                    if place.region == "arena" and life.first < end and place.offset < life.end:
                        life.read = number
            first, size = step.arguments[-1].offset, size_of(output.dtype)
            vectors = math.prod(output.shape[:-1]) * -(-output.shape[-1] // LANES) * size
            end = first + math.prod(output.shape) * size
            lives.append(_Life(first, end, vectors, number, number))
        crossing = (
            sum(life.vectors for life in lives if life.written < cut <= life.read)
            for cut in range(len(self.kernels) + 1)
        )
        return [-(-vectors // self.links) * self.chip.link_cycles for vectors in crossing]

    def weights(self, first: int, end: int) -> int:
        """Bytes of MEM that the constants of kernels [first, end) take; what they share once."""
        held: dict[int, int] = {}
        for kernel in self._weights[first:end]:
            for offset, nbytes in kernel.items():
                held[offset] = max(nbytes, held.get(offset, 0))
        return sum(held.values())

    def cut(self, chips: int) -> ChipPipeline:
        """The pipeline with the shortest period over at most so many chips.

        Raises:
            ModelError: so many chips do not hold the model, however it is cut.
        """
        runs = self._way(chips)
        if runs is None:
            raise ModelError(self._refusal(chips))
        pipeline = self._pipeline(runs)
        self._found.append(pipeline)
        able = (one for one in self._found if len(one.stages) <= chips)
        return min(able, key=lambda one: one.period)

    def _way(self, chips: int) -> list[tuple[int, int]] | None:
        """Scheduled runs, of the shortest period that was found; None if there are none."""
        for _ in range(ROUNDS):
            runs = self._runs(chips, self._cost)
            unknown = [run for run in runs or () if run not in self._scheduled]
            if not unknown:
                return runs
            for run in unknown:
                self._scheduled[run] = self._schedule(run, TRIES[:1])
        return self._runs(chips, self._known)

    def _runs(self, chips: int, cost: Callable[[int, int], float]) -> list[tuple[int, int]] | None:
        """The best cut, by what runs cost; None if each has one that costs infinitely much."""
        period, ends = best_cuts(len(self.kernels), chips, cost)
        return None if period == math.inf else list(zip((0, *ends), ends, strict=False))

    def _known(self, first: int, end: int) -> float:
        """Cycles of a run that has been scheduled, or of its transfer."""
        programs = self._scheduled.get((first, end))
        if programs is None:
            return math.inf
        return max(_cycles(programs) + self._waits(first, end), self._sent[end])

    def _cost(self, first: int, end: int) -> float:
        if (first, end) in self._scheduled:
            return self._known(first, end)
        if not self._fits(first, end):
            return math.inf
        cycles = sum(self._estimated[first:end]) * self._off
        return max(cycles + self._waits(first, end), self._sent[end])

    def _fits(self, first: int, end: int) -> bool:
        """Whether MEM holds the weights of kernels [first, end) and what each works on: what does
        not fit so has no schedule; what does may have none."""
        if (first, end) not in self._fitting:
            taken = self.weights(first, end) + max(self._live[first:end])
            self._fitting[first, end] = taken <= self.chip.sram_bytes
        return self._fitting[first, end]

    def _waiting(self, first: int, end: int) -> list[HostStep]:
        """The host's steps behind kernels [first, end)."""
        return [step for n in range(first, end) for step in self._hosts.get(n, ())]

    def _waits(self, first: int, end: int) -> int:
        """Cycles that the host takes for them."""
        ns = sum(host_time(step, self.target) for step in self._waiting(first, end))
        return round(ns * self.chip.ghz)

    @property
    def _off(self) -> float:
        """Cycles of schedules for one of the estimates'; 1 before any is known."""
        known = [
            (run, programs) for run, programs in self._scheduled.items() if programs is not None
        ]
        estimate = sum(sum(self._estimated[first:end]) for (first, end), _ in known)
        return sum(_cycles(programs) for _, programs in known) / estimate if estimate else 1.0

    def _schedule(
        self, run: tuple[int, int], tries: Sequence[SchedulerOptions] = ()
    ) -> tuple[ChipProgram, ...] | None:
        """A run of kernels on a chip of its own, a program up to each step on the host; None if
        there is no schedule for them."""
        first, end = run
        tell(f"scheduling kernels {first + 1} to {end} of {len(self.kernels)} on a chip")
        cuts = sorted({first, end, *(n + 1 for n in range(first, end - 1) if n in self._hosts)})
        programs = []
        for begin, stop in pairwise(cuts):
            steps = self.kernels[begin:stop]
            steps = steps if begin else (*self._first, *steps)
            steps = steps if stop < len(self.kernels) else (*steps, *self._last)
            try:
                programs.append(linked(self.recipe, steps, self.target, tries))
            except ModelError as error:
                self._refused = str(error)
                return None
        return tuple(programs)

    def _pipeline(self, runs: Sequence[tuple[int, int]]) -> ChipPipeline:
        stages = []
        for first, end in runs:
            programs = self._schedule((first, end)) or self._scheduled[first, end]
            assert programs is not None, "what cannot be scheduled costs infinitely much"
            names = tuple(step.name for step in self._waiting(first, end))
            sizes = self.weights(first, end), self._sent[end], self._waits(first, end)
            stages.append(ChipStage(programs, *sizes, names))
        return ChipPipeline(tuple(stages), self.chip.ghz, self.chip.delay("link"))

    def _refusal(self, chips: int) -> str:
        """Why there is no way, for people."""
        whole, room = self.weights(0, len(self.kernels)), self.chip.sram_bytes
        what = f"{chips} chip{'s' if chips > 1 else ''} of target '{self.target.name}'"
        alone = next((n for n in range(len(self.kernels)) if not self._fits(n, n + 1)), None)
        enough = None if alone is not None else self._fewest(chips)
        remedy = f"its weights take {whole / 2**20:.1f} MiB: {enough} chips would hold them"
        if alone is not None:
            needed = self.weights(alone, alone + 1) / 2**20, self._live[alone] / 2**20
            remedy = (
                f"one of its kernels alone has {needed[0]:.1f} MiB of weights and works on "
                f"{needed[1]:.1f} MiB ('{self.kernels[alone].name}')"
            )
        elif enough is None:
            remedy = f"the scheduler says: {self._refused}"
        return (
            f"'{self.recipe.title}' does not fit on {what} with {room / 2**20:.1f} MiB of MEM "
            f"each, however its kernels are cut; {remedy}"
        )

    def _fewest(self, chips: int) -> int | None:
        """The fewest chips, of more than some, that hold the model: cut for so many, and scheduled.
        None if no way is found."""
        least, first = 1, 0
        for end in range(1, len(self.kernels) + 1):
            if end - first > 1 and not self._fits(first, end):
                least, first = least + 1, end - 1
        for enough in range(max(least, chips + 1), len(self.kernels) + 1):
            if self._way(enough) is not None:
                return enough
        return None


def _cycles(programs: Sequence[ChipProgram]) -> int:
    return sum(program.schedule.cycles for program in programs)


def _run_of(
    recipe: Recipe,
) -> tuple[tuple[KernelStep, ...], Mapping[int, tuple[HostStep, ...]]]:
    """A model's kernels, and behind which of them the host has steps before the next one."""
    kernels: list[KernelStep] = []
    hosts: dict[int, tuple[HostStep, ...]] = {}
    for step in recipe.steps:
        if isinstance(step, KernelStep):
            kernels.append(step)
        elif isinstance(step, HostStep) and kernels:
            before = len(kernels) - 1
            hosts[before] = (*hosts.get(before, ()), step)
    if not kernels:
        raise ModelError(f"'{recipe.title}' has no kernels: there is nothing to cut over chips")
    hosts.pop(len(kernels) - 1, None)  # behind the last
    return tuple(kernels), hosts


def _live(recipe: Recipe, steps: Sequence[KernelStep]) -> list[int]:
    """Bytes of MEM of what every kernel reads and writes beside constants, once."""
    codes, sizes = codes_of(recipe, steps), []
    for step in steps:
        code = codes[step.code]
        touched, held = code.touched(), dict[int, int]()
        for parameter, place in zip(code.parameters, step.arguments, strict=True):
            if place.region == "arena" and parameter.name in touched:
                nbytes = code.flow.tensors[parameter.name].rows * LANES * size_of(parameter.dtype)
                held[place.offset] = max(nbytes, held.get(place.offset, 0))
        sizes.append(sum(held.values()))
    return sizes


def _weights(recipe: Recipe, steps: Sequence[KernelStep]) -> list[dict[int, int]]:
    """Bytes of MEM of every kernel's constants, by their place among the recipe's."""
    codes, weights = codes_of(recipe, steps), []
    for step in steps:
        code = codes[step.code]
        touched, held = code.touched(), dict[int, int]()
        for parameter, place in zip(code.parameters, step.arguments, strict=True):
            if place.region not in ("arena", "none") and parameter.name in touched:
                tensor = code.flow.tensors[parameter.name]
                size = size_of(parameter.dtype)
                held[place.offset] = tensor.rows * LANES * size * tensor.copies
        weights.append(held)
    return weights
