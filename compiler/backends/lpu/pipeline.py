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
well as a whole model is. Steps on the host before the first kernel and behind the last are the
host's part of the pipeline.

Invariants: every kernel is in one stage; more chips never make the period longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilesmith.codegen.lpu.chip import Chip
from tilesmith.codegen.lpu.dataflow import LANES, Chain
from tilesmith.codegen.lpu.scheduling.scheduler import Options
from tilesmith.compiler.backends.lpu.entrance import entering, leaving
from tilesmith.compiler.backends.lpu.program import TRIES, Program, codes_of, joined_of, linked
from tilesmith.compiler.program import KernelStep, Recipe
from tilesmith.search_space.dtypes import size_of
from tilesmith.search_space.errors import ModelError
from tilesmith.search_space.target import Target
from tilesmith.simulator.lpu.analytical import estimate

ROUNDS = 6
"""Times that the runs of a best cut are scheduled before the best of those that are known is
taken."""


@dataclass(frozen=True, eq=False)
class Stage:
    """What one chip does of each inference.

    Attributes:
        weights: bytes of MEM that constants take there.
        sent: cycles that what goes on to the next chip occupies the links; 0 of the last.
    """

    program: Program
    weights: int
    sent: int

    @property
    def cycles(self) -> int:
        return self.program.schedule.cycles


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A model over chips. Times in cycles of a chip's clock.

    Attributes:
        flight: from a send to its receive, for each transfer.
    """

    stages: tuple[Stage, ...]
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
    best: list[tuple[float, tuple[int, ...]]] = [(math.inf, ())] * (kernels + 1)
    best[0] = (0.0, ())
    found = best[kernels]
    for _ in range(most):
        following: list[tuple[float, tuple[int, ...]]] = [(math.inf, ())]
        for end in range(1, kernels + 1):
            choices = [
                (max(best[first][0], cost(first, end)), (*best[first][1], end))
                for first in range(end)
                if best[first][0] < math.inf
            ]
            following.append(min(choices, default=(math.inf, ())))
        best = following
        found = min(found, best[kernels], key=lambda one: one[0])
    return found


@dataclass
class _Life:
    """A tensor of the arena: its bytes, byte planes of vectors, who makes and last reads it."""

    first: int
    end: int
    vectors: int
    made: int
    read: int


class Cutter:
    """Cuts one compiled model for any number of chips; what it schedules it keeps.

    Args:
        target: the chip that stages are for; the recipe's if None. None has to hold the whole.
        links: between two neighbours.

    Raises:
        ModelError: the host cuts the model into several programs.
    """

    def __init__(self, recipe: Recipe, target: Target | None = None, links: int = 1) -> None:
        steps = _run_of(recipe)
        self.recipe, self.links = recipe, links
        self.target = target or recipe.target
        self.chip = Chip.of(self.target)
        self._first, self._last = entering(recipe, steps), leaving(recipe, steps)
        self.kernels = tuple(steps)[len(self._first) : len(steps) - len(self._last)]
        self._weights = _weights(recipe, self.kernels)
        self._scheduled: dict[tuple[int, int], Program | None] = {}
        self._found: list[Pipeline] = []
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
            *operands, made = codes[step.code].parameters
            for parameter, place in zip(operands, step.arguments, strict=False):
                end = place.offset + math.prod(parameter.shape) * size_of(parameter.dtype)
                for life in lives:
                    if place.region == "arena" and life.first < end and place.offset < life.end:
                        life.read = number
            first, size = step.arguments[-1].offset, size_of(made.dtype)
            vectors = math.prod(made.shape[:-1]) * -(-made.shape[-1] // LANES) * size
            end = first + math.prod(made.shape) * size
            lives.append(_Life(first, end, vectors, number, number))
        crossing = (
            sum(life.vectors for life in lives if life.made < cut <= life.read)
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

    def cut(self, chips: int) -> Pipeline:
        """The pipeline with the shortest period over at most so many chips.

        Raises:
            ModelError: so many chips do not hold the model, however it is cut.
        """
        for _ in range(ROUNDS):
            runs = self._runs(chips, self._cost)
            unknown = [run for run in runs if run not in self._scheduled]
            if not unknown:
                break
            for run in unknown:
                self._scheduled[run] = self._schedule(run, TRIES[:1])
        else:
            runs = self._runs(chips, self._known)
        found = self._pipeline(runs)
        self._found.append(found)
        able = (one for one in self._found if len(one.stages) <= chips)
        return min(able, key=lambda one: one.period)

    def _runs(self, chips: int, cost: Callable[[int, int], float]) -> list[tuple[int, int]]:
        """The best cut, by what runs cost."""
        period, ends = best_cuts(len(self.kernels), chips, cost)
        if period == math.inf:
            raise ModelError(self._refusal(chips))
        return list(zip((0, *ends), ends, strict=False))

    def _known(self, first: int, end: int) -> float:
        """Cycles of a run that has been scheduled, or of its transfer."""
        program = self._scheduled.get((first, end))
        return math.inf if program is None else max(program.schedule.cycles, self._sent[end])

    def _cost(self, first: int, end: int) -> float:
        if (first, end) in self._scheduled:
            return self._known(first, end)
        if self.weights(first, end) > self.chip.sram_bytes:
            return math.inf
        return max(sum(self._estimated[first:end]) * self._off, self._sent[end])

    @property
    def _off(self) -> float:
        """Cycles of schedules for one of the estimates'; 1 before any is known."""
        known = [(run, found) for run, found in self._scheduled.items() if found is not None]
        told = sum(sum(self._estimated[first:end]) for (first, end), _ in known)
        return sum(found.schedule.cycles for _, found in known) / told if told else 1.0

    def _schedule(self, run: tuple[int, int], tries: Sequence[Options] = ()) -> Program | None:
        """A run of kernels on a chip of its own; None if there is no schedule for them."""
        first, end = run
        steps = self.kernels[first:end]
        steps = steps if first else (*self._first, *steps)
        steps = steps if end < len(self.kernels) else (*steps, *self._last)
        try:
            return linked(self.recipe, steps, self.target, tries)
        except ModelError as error:
            self._refused = str(error)
            return None

    def _pipeline(self, runs: Sequence[tuple[int, int]]) -> Pipeline:
        stages = []
        for first, end in runs:
            program = self._schedule((first, end)) or self._scheduled[first, end]
            assert program is not None, "what cannot be scheduled costs infinitely much"
            stages.append(Stage(program, self.weights(first, end), self._sent[end]))
        return Pipeline(tuple(stages), self.chip.ghz, self.chip.delay("link"))

    def _refusal(self, chips: int) -> str:
        """Why there is no way, for people."""
        whole, room = self.weights(0, len(self.kernels)), self.chip.sram_bytes
        largest = max(self.weights(n, n + 1) for n in range(len(self.kernels)))
        what = f"{chips} chip{'s' if chips > 1 else ''} of target '{self.target.name}'"
        enough = self._fewest()
        remedy = f"its weights take {whole / 2**20:.1f} MiB: {enough} chips would hold them"
        if largest > room:
            remedy = f"one of its kernels alone has {largest / 2**20:.1f} MiB of weights"
        elif chips >= enough:
            remedy = f"the scheduler says: {self._refused}"
        return (
            f"'{self.recipe.name}' does not fit on {what} with {room / 2**20:.1f} MiB of MEM each, "
            f"however its kernels are cut; {remedy}"
        )

    def _fewest(self) -> int:
        """Chips that hold all weights, as full as can be one after the other."""
        chips, first = 1, 0
        for end in range(1, len(self.kernels) + 1):
            if end - first > 1 and self.weights(first, end) > self.chip.sram_bytes:
                chips, first = chips + 1, end - 1
        return chips


def _run_of(recipe: Recipe) -> tuple[KernelStep, ...]:
    """The kernels of a model, which no step on the host parts."""
    places = [n for n, step in enumerate(recipe.steps) if isinstance(step, KernelStep)]
    between = recipe.steps[places[0] : places[-1] + 1] if places else ()
    host = list(dict.fromkeys(s.name for s in between if not isinstance(s, KernelStep)))
    if host:
        raise ModelError(
            f"'{recipe.name}' is {len(host) + 1} programs with steps on the host between "
            f"({', '.join(host[:3])}{', ..' if len(host) > 3 else ''}); models are cut over chips "
            "where all between the first kernel and the last runs there"
        )
    if not places:
        raise ModelError(f"'{recipe.name}' has no kernels: there is nothing to cut over chips")
    return tuple(step for step in between if isinstance(step, KernelStep))


def _weights(recipe: Recipe, steps: Sequence[KernelStep]) -> list[dict[int, int]]:
    """Bytes of MEM of every kernel's constants, by their place among the recipe's."""
    codes, found = codes_of(recipe, steps), []
    for step in steps:
        code = codes[step.code]
        touched, held = code.touched(), dict[int, int]()
        for parameter, place in zip(code.parameters, step.arguments, strict=True):
            if place.region not in ("arena", "none") and parameter.name in touched:
                tensor = code.flow.tensors[parameter.name]
                size = size_of(parameter.dtype)
                held[place.offset] = tensor.rows * LANES * size * tensor.copies
        found.append(held)
    return found
