"""A model's kernels over several LPU-like chips: a pipeline of stages, each on a chip of its own.

Kernels stay in their order; a stage is a run of them, placed and scheduled as a program of its own,
with only its own weights resident. What one stage makes and a later one reads goes from chip to
chip, through those between, over the links of two neighbours, while the next inference is computed:

    period  = the largest of all stages' cycles and all transfers' cycles
    latency = all stages and all transfers, one after the other

Cuts are chosen by dynamic programming over all contiguous ones. A run that has not been scheduled
counts what its kernels show in the schedule of the whole; the runs of the best cut are scheduled,
and their cycles taken instead, until the best cut is one whose runs are all scheduled.

Invariants: every kernel is in one stage; more chips never make the period longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilesmith.codegen.lpu.chip import Chip
from tilesmith.codegen.lpu.dataflow import LANES
from tilesmith.compiler.backends.lpu.entrance import entering, leaving
from tilesmith.compiler.backends.lpu.kernel_code import KernelCode
from tilesmith.compiler.backends.lpu.model import shown_times
from tilesmith.compiler.backends.lpu.program import Program, linked
from tilesmith.compiler.program import KernelStep, Recipe
from tilesmith.search_space.dtypes import size_of
from tilesmith.search_space.errors import CodegenError, ModelError
from tilesmith.search_space.target import Target


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
        target: the chip that stages are for; it may be smaller than the one of the recipe, which
            has to hold the whole.
        links: between two neighbours.

    Raises:
        ModelError: the host cuts the model into several programs.
    """

    def __init__(self, recipe: Recipe, target: Target | None = None, links: int = 1) -> None:
        steps = [step for step in recipe.steps if isinstance(step, KernelStep)]
        if len(steps) != len(recipe.steps) or not steps:
            raise ModelError(
                f"'{recipe.name}' has steps on the host or none at all; models are cut over chips "
                "if every operator has a schedule there"
            )
        self.recipe, self.links = recipe, links
        self.target = target or recipe.target
        self.chip = Chip.of(self.target)
        self._first, self._last = entering(recipe, steps), leaving(recipe, steps)
        self.kernels = tuple(steps)[len(self._first) : len(steps) - len(self._last)]
        self._weights = _weights(recipe, self.kernels)
        self._scheduled: dict[tuple[int, int], Program | None] = {}
        self._refused = ""

    @cached_property
    def _shown(self) -> list[float]:
        """Cycles that each kernel shows in the schedule of the whole."""
        whole = linked(self.recipe, (*self._first, *self.kernels, *self._last))
        return [us * 1e3 * self.chip.ghz for us in shown_times(whole)]

    @cached_property
    def _sent(self) -> list[int]:
        """Cycles on the links of what crosses a cut before each kernel, and behind the last."""
        lives: list[_Life] = []
        codes = _codes(self.recipe, self.kernels)
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
        while True:
            period, ends = best_cuts(len(self.kernels), chips, self._cost)
            if period == math.inf:
                raise ModelError(self._refusal(chips))
            runs = list(zip((0, *ends), ends, strict=False))
            unknown = [run for run in runs if run not in self._scheduled]
            if not unknown:
                return self._pipeline(runs)
            for run in unknown:
                self._scheduled[run] = self._schedule(*run)

    def _cost(self, first: int, end: int) -> float:
        if self.weights(first, end) > self.chip.sram_bytes:
            return math.inf
        cycles = sum(self._shown[first:end])
        if (first, end) in self._scheduled:
            program = self._scheduled[first, end]
            cycles = math.inf if program is None else program.schedule.cycles
        return max(cycles, self._sent[end])

    def _schedule(self, first: int, end: int) -> Program | None:
        """Kernels [first, end) on a chip of their own; None if there is no schedule for them."""
        steps = self.kernels[first:end]
        steps = steps if first else (*self._first, *steps)
        steps = steps if end < len(self.kernels) else (*steps, *self._last)
        try:
            return linked(self.recipe, steps, self.target)
        except CodegenError as error:
            self._refused = str(error)
            return None

    def _pipeline(self, runs: Sequence[tuple[int, int]]) -> Pipeline:
        stages = []
        for first, end in runs:
            program = self._scheduled[first, end]
            assert program is not None, "what cannot be scheduled costs infinitely much"
            stages.append(Stage(program, self.weights(first, end), self._sent[end]))
        return Pipeline(tuple(stages), self.chip.ghz, self.chip.delay("link"))

    def _refusal(self, chips: int) -> str:
        """Why there is no way, for people."""
        whole, room = self.weights(0, len(self.kernels)), self.chip.sram_bytes
        largest = max(self.weights(n, n + 1) for n in range(len(self.kernels)))
        what = f"{chips} chip{'s' if chips > 1 else ''} of target '{self.target.name}'"
        remedy = f"its weights take {whole / 2**20:.1f} MiB: take more chips"
        if largest > room:
            remedy = f"one of its kernels alone has {largest / 2**20:.1f} MiB of weights"
        elif chips >= len(self.kernels):
            remedy = f"the scheduler says: {self._refused}"
        return (
            f"'{self.recipe.name}' does not fit on {what} with {room / 2**20:.1f} MiB of MEM each, "
            f"however its kernels are cut; {remedy}"
        )


def _codes(recipe: Recipe, steps: Sequence[KernelStep]) -> Mapping[int, KernelCode]:
    return {n: KernelCode.from_bytes(recipe.codes[n].code) for n in {s.code for s in steps}}


def _weights(recipe: Recipe, steps: Sequence[KernelStep]) -> list[dict[int, int]]:
    """Bytes of MEM of every kernel's constants, by their place among the recipe's."""
    codes, found = _codes(recipe, steps), []
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
