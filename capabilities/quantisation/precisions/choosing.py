"""`chosen_precisions`: a precision for each layer, by measured errors and measured times.

    each layer's errors -> each layer's times -> integer programs over budgets -> plans, compiled
    and measured whole, on calibration data and on data held out -> the cheapest within the budget

A plan is refused, and the next one taken, where the whole model is not faster (or smaller) than in
float32, or its error exceeds the budget on either data. Errors of layers add up only about, so the
program's budget is corrected by what its plans turn out to cost.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import onnx

from tilesmith.capabilities.quantisation.precisions.mixed import FP32, MixedModel
from tilesmith.capabilities.quantisation.precisions.neighbours import Neighbours
from tilesmith.capabilities.quantisation.precisions.program import (
    Edge,
    PrecisionOption,
    PrecisionProblem,
    PrecisionSolution,
    solved,
)
from tilesmith.capabilities.quantisation.precisions.report import (
    LayerPrecision,
    Point,
    PrecisionReport,
)
from tilesmith.capabilities.quantisation.precisions.times import (
    KernelClock,
    MeasuredTimes,
    elements_of,
    measured_times,
)
from tilesmith.capabilities.quantisation.search.emulation import Arrays, Emulation
from tilesmith.compiler.runtime.turns import in_turns, rounds_of
from tilesmith.jobs.extras import required
from tilesmith.jobs.measures.output_errors import accuracy
from tilesmith.jobs.measures.timing import pinned
from tilesmith.search_space.support.errors import InputError

if TYPE_CHECKING:
    from tilesmith.compiler.runtime.executable import Executable

AIMS = ("latency", "size")
"""What is minimised within a budget."""

_STEPS = (0.1, 0.2, 0.4, 0.7, 1.0, 2.0, 4.0)
"""Budgets of the front, as shares of the one that is given."""

_CORRECTIONS = 3
"""How often the program's budget is corrected."""

_FASTER = 0.99
"""Of the float32 model's time, at most: less is no difference that a clock can tell."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Data:
    """Samples, and what the float32 model makes of them.

    Attributes:
        inputs, expected: of each sample.
        calibrating: how many of them, the first, choose; the others only judge.
    """

    inputs: Sequence[Arrays]
    expected: Sequence[Arrays]
    calibrating: int

    def error(self, run: Callable[[Arrays], Arrays], held_out: bool = False) -> float:
        """Of a model's outputs, on the samples that choose or on those that judge."""
        part = slice(self.calibrating, None) if held_out else slice(self.calibrating)
        return accuracy(run, self.inputs[part], self.expected[part]).error


@dataclass
class _Tried:
    """A plan, compiled and run."""

    plan: Mapping[str, str]
    budget: float
    solution: PrecisionSolution
    predicted: float
    executable: "Executable"
    error: float
    held_out: float
    samples: tuple[float, ...] = ()
    verdict: str = ""

    @property
    def ms(self) -> float:
        return sorted(self.samples)[len(self.samples) // 2] * 1e3 if self.samples else math.nan


@dataclass
class PrecisionChoice:
    """See the module's docstring.

    Args:
        aim: one of `AIMS`.
        budget: the greatest error, as `output_errors.Accuracy.error`.
    """

    mixed: MixedModel
    data: Data
    aim: str
    budget: float
    clock: KernelClock
    tell: Tell = lambda text: None
    _tried: dict[frozenset[tuple[str, str]], _Tried] = field(default_factory=dict)
    _times: MeasuredTimes | None = None

    def done(
        self, given: Mapping[str, str] | None = None
    ) -> tuple[onnx.ModelProto, PrecisionReport]:
        """The model and the report.

        Args:
            given: a plan to take as it is; None: chosen.

        Raises:
            DependencyError: OR-tools is not installed.
        """
        if given is None:
            required("ortools", extra="ortools")
        errors = self._errors() if given is None else {}
        problem, names = self._problem(errors)
        if given is None:
            self._search(problem, names)
        else:
            self._try(given, math.nan, PrecisionSolution((), math.nan, math.nan), math.nan)
        plain = self.clock.compiled(self.mixed.written({}), self.data.inputs[0])
        base_ms = self._race(plain)
        best = self._judged(base_ms, given is not None)
        plan = best.plan if best else {}
        report = self._report(plan, best, base_ms, errors, problem)
        return self.mixed.written(plan), report

    # -- what layers cost -----------------------------------------------------------------------
    def _errors(self) -> dict[str, dict[str, float]]:
        mixed, watch = self.mixed, self.clock
        emulation = Emulation(
            mixed.model, mixed.whole.full, watch.target, watch.threads, mixed.narrow
        )
        tries = [(la, p) for la in mixed.layers for p in mixed.precisions(la)[1:]]
        self.tell(
            f"errors of {len(mixed.layers)} layers in other precisions, {len(tries)} in all, on "
            f"{self.data.calibrating} samples"
        )
        errors: dict[str, dict[str, float]] = {la.node: {FP32: 0.0} for la in mixed.layers}
        for number, (layer, precision) in enumerate(tries):
            chosen = mixed.parameters({layer.node: precision})
            errors[layer.node][precision] = self.data.error(partial(emulation.run, chosen=chosen))
            if number and number % 50 == 0:
                self.tell(f"  {number} of {len(tries)}")
        return errors

    def _problem(
        self, errors: Mapping[str, Mapping[str, float]]
    ) -> tuple[PrecisionProblem, tuple[tuple[str, ...], ...]]:
        mixed = self.mixed
        names = tuple(mixed.precisions(layer) for layer in mixed.layers)
        if self.aim == "size" or not errors:
            layers = [
                [
                    PrecisionOption(
                        p, float(mixed.bytes_of(la, p)), errors.get(la.node, {}).get(p, 0.0)
                    )
                    for p in own
                ]
                for la, own in zip(mixed.layers, names, strict=True)
            ]
            return PrecisionProblem(layers), names
        self._times, coding = measured_times(mixed, self.data.inputs[0], self.clock, self.tell)
        times = self._times
        layers = [
            [PrecisionOption(p, times.layers[la.node][p], errors[la.node][p]) for p in own]
            for la, own in zip(mixed.layers, names, strict=True)
        ]
        places = {layer.node: place for place, layer in enumerate(mixed.layers)}
        makers = Neighbours.of(mixed.model, mixed.layers).makers
        edges = [
            Edge(
                places[maker] if (maker := makers[la.node]) is not None else None,
                places[la.node],
                times.edge(elements_of(mixed, la), la.node in coding),
            )
            for la in mixed.layers
        ]
        return PrecisionProblem(layers, edges, times.rest), names

    # -- plans ----------------------------------------------------------------------------------
    def _search(self, problem: PrecisionProblem, names: Sequence[Sequence[str]]) -> None:
        for share in _STEPS:
            self._solve(problem, names, share * self.budget)
        asked = self.budget
        for _ in range(_CORRECTIONS):
            tried = self._solve(problem, names, asked)
            error = max(tried.error, tried.held_out)
            if not error or 0.9 * self.budget <= error <= self.budget:
                break
            asked *= min(4.0, max(0.25, 0.97 * self.budget / error))

    def _solve(
        self, problem: PrecisionProblem, names: Sequence[Sequence[str]], budget: float
    ) -> _Tried:
        solution = solved(problem, budget)
        plan = {
            layer.node: own[n]
            for layer, own, n in zip(self.mixed.layers, names, solution.chosen, strict=True)
            if own[n] != FP32
        }
        return self._try(plan, budget, solution, problem.error(solution.chosen))

    def _try(
        self, plan: Mapping[str, str], budget: float, solution: PrecisionSolution, predicted: float
    ) -> _Tried:
        key = frozenset(plan.items())
        if key not in self._tried:
            counts = ", ".join(f"{n} in {p}" for p, n in sorted(Counter(plan.values()).items()))
            self.tell(f"compiling a plan: {counts or 'all in fp32'}")
            executable = self.clock.compiled(self.mixed.written(plan), self.data.inputs[0])
            error = self.data.error(executable.run)
            held_out = self.data.error(executable.run, held_out=True)
            self._tried[key] = _Tried(
                plan, budget, solution, predicted, executable, error, held_out
            )
        return self._tried[key]

    def _race(self, plain: "Executable") -> float:
        """Time the plans in turns with the float32 model; its milliseconds."""
        self.tell(f"timing {len(self._tried)} plans in turns with the float32 model")
        inputs = self.data.inputs[0]
        models = [plain, *(tried.executable for tried in self._tried.values())]
        runs = [model.bind(inputs).run for model in models]
        with pinned(self.clock.threads):
            base, *others = in_turns(runs, rounds_of(runs, 15))
        for tried, samples in zip(self._tried.values(), others, strict=True):
            tried.samples = samples
        return sorted(base)[len(base) // 2] * 1e3

    def _judged(self, base_ms: float, given: bool) -> "_Tried | None":
        """The cheapest plan that is not refused; says of every one why not."""
        fitting = []
        for tried in self._tried.values():
            if tried.error > self.budget:
                tried.verdict = f"refused: error {tried.error:.3g} on calibration data"
            elif tried.held_out > self.budget:
                tried.verdict = f"refused: error {tried.held_out:.3g} on data held out"
            elif self.aim == "latency" and tried.ms > _FASTER * base_ms:
                tried.verdict = "refused: not faster than fp32"
            else:
                fitting.append(tried)
                tried.verdict = "slower" if self.aim == "latency" else "larger"
        if given:
            fitting = list(self._tried.values())
        key = self._bytes if self.aim == "size" else (lambda tried: tried.ms)
        best = min(fitting, key=key, default=None)
        if best is not None and (best.plan or given):
            refused = best.verdict.startswith("refused: ")
            remark = f", though {best.verdict.removeprefix('refused: ')}" if refused else ""
            best.verdict = f"given{remark}" if given else "chosen"
        return best

    def _bytes(self, tried: "_Tried | Mapping[str, str]") -> float:
        plan = tried.plan if isinstance(tried, _Tried) else tried
        return sum(
            self.mixed.bytes_of(layer, plan.get(layer.node, FP32)) for layer in self.mixed.layers
        )

    # -- the report -----------------------------------------------------------------------------
    def _report(
        self,
        plan: Mapping[str, str],
        best: "_Tried | None",
        base_ms: float,
        errors: Mapping[str, Mapping[str, float]],
        problem: PrecisionProblem,
    ) -> PrecisionReport:
        points = sorted(self._tried.values(), key=lambda tried: tried.error)
        return PrecisionReport(
            minimise=self.aim,
            budget=self.budget,
            plan=plan,
            fp32_ms=base_ms,
            ms=best.ms if best else base_ms,
            fp32_bytes=int(self._bytes({})),
            bytes=int(self._bytes(plan)),
            error=best.error if best else 0.0,
            held_out=best.held_out if best else 0.0,
            samples=self.data.calibrating,
            held_out_samples=len(self.data.inputs) - self.data.calibrating,
            kernels_measured=self.clock.measured,
            kernels_known=self.clock.known,
            front=[self._point(tried) for tried in points],
            layers=[self._layer(n, plan, errors) for n in range(len(self.mixed.layers))],
        )

    def _point(self, tried: _Tried) -> Point:
        counts = Counter(tried.plan.get(layer.node, FP32) for layer in self.mixed.layers)
        timed = self.aim == "latency"
        return Point(
            tried.budget, tried.predicted, tried.solution.cost if timed else math.nan,
            tried.solution.gap, tried.error, tried.held_out, tried.ms, int(self._bytes(tried)),
            dict(counts), tried.verdict,
        )  # fmt: skip

    def _layer(
        self, number: int, plan: Mapping[str, str], errors: Mapping[str, Mapping[str, float]]
    ) -> LayerPrecision:
        layer = self.mixed.layers[number]
        own = self.mixed.precisions(layer)
        times = {} if self._times is None else self._times.layers[layer.node]
        us = {p: seconds * 1e6 for p, seconds in times.items()}
        bytes_ = {p: self.mixed.bytes_of(layer, p) for p in own}
        precision = plan.get(layer.node, FP32)
        known = dict(errors.get(layer.node, {}))
        costs: Mapping[str, float] = us or {p: float(n) for p, n in bytes_.items()}
        unit = "us" if us else "bytes"
        why = reason(precision, costs, known, self.budget, unit) if known else "as the plan says"
        return LayerPrecision(layer.node, layer.operator, precision, known, us, bytes_, why)


def reason(
    precision: str,
    costs: Mapping[str, float],
    errors: Mapping[str, float],
    budget: float,
    unit: str,
) -> str:
    """Why a layer has a precision: what it saves, and what the cheapest other would have cost."""

    def share(name: str) -> float:
        return (errors[name] / budget) ** 2 if budget > 0 else math.inf * (errors[name] > 0)

    saved = costs[FP32] - costs[precision]
    sentence = f"saves {saved:.4g} {unit} for {share(precision):.1%} of the budget"
    if precision == FP32:
        sentence = "stays in fp32"
    others = [p for p in costs if costs[p] < costs[precision] and p != precision]
    if not others:
        return sentence if precision != FP32 else "nothing is cheaper than fp32"
    other = min(others, key=costs.__getitem__)
    less, more = costs[precision] - costs[other], share(other)
    return f"{sentence}; {other} would save {less:.4g} {unit} more for {more:.1%}"


def split(
    samples: Sequence[Arrays], count: int, rng_order: Sequence[int]
) -> tuple[list[Arrays], int]:
    """Samples to choose by, then samples to judge by: a quarter of them, at least one.

    Raises:
        InputError: there are fewer than two.
    """
    if len(samples) < 2:
        raise InputError(
            "choosing precisions needs two samples of data or more: one part chooses, the other "
            "judges what was chosen"
        )
    drawn = [samples[place] for place in rng_order[: max(2, count)]]
    judging = max(1, len(drawn) // 4)
    return drawn, len(drawn) - judging
