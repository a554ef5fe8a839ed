"""What `tilesmith plan` does beyond one point: a sweep, or how many chips a load needs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilesmith.capabilities.planning.architecture import Architecture, Experts
from tilesmith.capabilities.planning.batching.traffic import Lengths, read_trace
from tilesmith.capabilities.planning.serving.report import (
    About,
    answer_json,
    answer_rows,
    csv_text,
    page,
    requests_csv,
)
from tilesmith.capabilities.planning.sizing.answer import Answer, ReplicaCandidate, ReplicaOptions
from tilesmith.capabilities.planning.sizing.demand import Bounds, Demand
from tilesmith.capabilities.planning.sizing.fewest_chips import Told, smallest, spoken
from tilesmith.capabilities.planning.sizing.replicas import candidates
from tilesmith.capabilities.planning.sizing.split_sizing import smallest_split
from tilesmith.capabilities.planning.sweeps.grid import ALL, Grid
from tilesmith.capabilities.planning.sweeps.prices import Price, load_prices
from tilesmith.capabilities.planning.sweeps.sweep import COLUMNS, FRONTS, DeploymentSweep, sweep
from tilesmith.display.counting import counting, telling
from tilesmith.display.output import table
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import check_output, written

_SHOWN = (
    "mesh", "tp", "pp", "ep", "dp", "weights", "batch", "input", "output", "ttft_ms", "tpot_ms",
    "tokens_per_s", "tokens_per_s_per_chip", "usd_per_million_tokens", "memory_gib", "bound",
)  # fmt: skip


@dataclass(frozen=True)
class ServingLoad:
    """A load over time, as the user gave it.

    Attributes:
        requests_per_second: drawn from a Poisson process; None where a trace says what comes.
        trace: a CSV file of arrival, input and output.
        input_spread, output_spread: standard deviation over mean of the lengths.
        requests: drawn for each simulated replica.
    """

    requests_per_second: float | None = None
    trace: Path | None = None
    input_spread: float = 0.0
    output_spread: float = 0.0
    requests: int = 2000
    seed: int = 0
    bounds: Bounds = field(default_factory=Bounds)
    options: ReplicaOptions = field(default_factory=ReplicaOptions)

    def demand(self, inputs: int, outputs: int, max_sequence: int) -> Demand:
        """The demand, where prompts and answers have these means.

        Raises:
            InputError: the trace cannot be read, or mean lengths exceed the longest sequence.
        """
        if self.trace is not None:
            return Demand.of_trace(read_trace(self.trace), self.seed)
        longest = max_sequence or _longest(inputs, outputs, self)
        if inputs + outputs > longest:
            raise InputError(
                f"prompts of {inputs} and answers of {outputs} tokens are longer than the longest "
                f"sequence, {longest}; allow {inputs + outputs}"
            )
        lengths = Lengths(inputs, outputs, self.input_spread, self.output_spread, longest)
        assert self.requests_per_second is not None, "a load has a rate or a trace"
        return Demand(self.requests_per_second, lengths, self.requests, self.seed)


@dataclass(frozen=True)
class Outputs:
    """Files to write, and prices to use."""

    csv: Path | None = None
    page: Path | None = None
    prices: Path | None = None
    command: str = ""

    def check(self) -> None:
        """Refuse files that cannot be written, before the work begins."""
        for path in (self.csv, self.page):
            if path is not None:
                check_output(path, *([self.prices] if self.prices else []))


@dataclass(frozen=True)
class Planned:
    """The result of a plan, a sweep or an answer, as data and as text."""

    architecture: Architecture
    swept: DeploymentSweep | None = None
    answer: Answer | None = None
    asked: str = ""

    def to_json(self) -> dict[str, Any]:
        """One object for scripts."""
        document: dict[str, Any] = {
            "model": self.architecture.name,
            "parameters": self.architecture.parameters,
        }
        if self.swept is not None:
            points = self.swept.points
            document |= self.swept.to_json()
            document["fronts"] = {
                name: [n for n, point in enumerate(points) if name in point.fronts]
                for name in FRONTS
            }
        if self.answer is not None:
            document |= {"load": self.asked, **answer_json(self.answer)}
        return document

    def text(self) -> str:
        """A table for people."""
        lines = []
        if self.answer is not None:
            lines += [self.asked, *(f"  {name}: {text}" for name, text in answer_rows(self.answer))]
        if self.swept is not None:
            lines += self._front()
        return "\n".join(lines)

    def _front(self) -> list[str]:
        assert self.swept is not None
        points = [p for p in self.swept.points if p.fronts]
        points.sort(key=lambda point: (point.estimate.tpot_ms, point.estimate.latency_ms))
        names = _columns(points and points[0].row())
        rows = [[p.row()[name] for name in names] + [" ".join(p.fronts)] for p in points]
        refused = sum(refusal.count for refusal in self.swept.refusals)
        heading = (
            f"{len(points)} of {len(self.swept.points)} points are on a front (of time per token, "
            f"time to first token, or cost); {refused} cannot be"
        )
        return [heading, table([*(n.replace("_", " ") for n in names), "on fronts"], rows)]


def plan_sweep(architecture: Architecture, grid: Grid, outputs: Outputs) -> Planned:
    """Estimate every point of a grid, and write the files of `outputs`.

    Raises:
        InputError: no point can be, or a file cannot be written.
    """
    outputs.check()
    prices = load_prices(outputs.prices)
    grid = _without_idle_experts(architecture, grid)
    with counting("points") as counted:
        swept = sweep(architecture, grid, prices, counted)
    planned = Planned(architecture, swept)
    if outputs.csv is not None:
        with written(outputs.csv) as stream:
            stream.write(csv_text(swept).encode())
    _write_page(planned, grid, outputs, prices)
    return planned


def plan_load(
    architecture: Architecture, grid: Grid, load: ServingLoad, outputs: Outputs
) -> Planned:
    """Size the smallest fleet for a load, and write the files of `outputs`.

    Raises:
        InputError: nothing serves the load, or a file cannot be written.
    """
    outputs.check()
    prices = load_prices(outputs.prices)
    _check_prices(grid, load.options, prices)
    demand = load.demand(grid.inputs[0], grid.outputs[0], grid.max_sequence)
    sample = demand.sample()
    longest = max(grid.max_sequence, int((sample.inputs + sample.outputs).max()))
    grid = replace(_without_idle_experts(architecture, grid), data=(1,))
    fitting = candidates(architecture, grid.deployments(), longest, load.options.budget, prices)
    with telling() as progress:
        answer = _smallest(fitting, demand, load, progress)
    planned = Planned(architecture, None, answer, _asked(demand, load))
    if outputs.csv is not None:
        with written(outputs.csv) as stream:
            stream.write(requests_csv(answer.served).encode())
    _write_page(planned, grid, outputs, prices)
    return planned


def _check_prices(grid: Grid, options: ReplicaOptions, prices: Mapping[str, Price]) -> None:
    """The cheapest is among those whose prices are known."""
    for mesh in grid.meshes:
        if options.by_cost and mesh.name not in prices:
            raise InputError(
                f"nobody names a price for {mesh.name}; give one with --prices, or ask for the "
                f"fewest chips; prices are known for {', '.join(prices)}"
            )


def _smallest(
    candidates: Sequence[ReplicaCandidate], demand: Demand, load: ServingLoad, progress: Told
) -> Answer:
    """The smallest of what the ways to serve find; where none does, why the first does not."""
    ways = [smallest] if load.options.policies else []
    ways += [smallest_split] if load.options.split else []
    answers: list[Answer] = []
    refused: list[InputError] = []
    for way in ways:
        try:
            answers.append(way(candidates, demand, load.bounds, load.options, progress))
        except InputError as error:
            refused.append(error)
    if not answers:
        raise refused[0]
    return min(answers, key=lambda answer: answer.size(load.options))


def _write_page(
    planned: Planned, grid: Grid, outputs: Outputs, prices: Mapping[str, Price]
) -> None:
    if outputs.page is None:
        return
    names = [mesh.name for mesh in grid.meshes]
    about = About(
        planned.architecture.name,
        planned.architecture.parameters,
        names,
        outputs.command,
        {name: price for name, price in prices.items() if name in names},
    )
    with written(outputs.page) as stream:
        stream.write(page(about, planned.swept, planned.answer, planned.asked).encode())


def _without_idle_experts(architecture: Architecture, grid: Grid) -> Grid:
    """Groups that experts can be dealt over, where the degree is open: divisors of their number."""
    operators = [op for layer in architecture.layers for op in layer.operators]
    count = math.gcd(*(op.count for op in operators if isinstance(op, Experts)))
    if grid.expert != ALL:
        return grid
    return replace(grid, expert=tuple(n for n in range(1, count + 1) if count % n == 0) or (1,))


def _longest(inputs: int, outputs: int, load: ServingLoad) -> int:
    """The longest sequence where no limit is given: four deviations beyond the means."""
    return int(inputs * (1 + 4 * load.input_spread) + outputs * (1 + 4 * load.output_spread))


def _asked(demand: Demand, load: ServingLoad) -> str:
    """A load in words."""
    lengths = demand.lengths
    means = f"{lengths.inputs} tokens in and {lengths.outputs} out on average"
    what = f"{spoken(demand.rate, 'requests/s')}, {means}"
    if load.trace is not None:
        what = f"the trace {load.trace} of {demand.requests} requests, {what}"
    bounds = [f"{name.replace('_', ' ')} <= {ms:g} ms" for name, ms in load.bounds.given().items()]
    return f"{what}; {', '.join(bounds) or 'no bounds on times'}"


def _columns(row: Any) -> list[str]:
    """Columns of the table for people; a column that is empty for every point is left out."""
    assert set(_SHOWN) <= set(COLUMNS)
    names = list(_SHOWN)
    if row and not row["tpot_ms"]:
        names[names.index("ttft_ms")] = "latency_ms"
        names.remove("tpot_ms")
    return names
