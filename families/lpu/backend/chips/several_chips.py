"""A compiled model over several LPU-like chips: run stage by stage, and what it costs.

    latency     of one inference: stages, transfers and hops, and the host's part at both ends
    throughput  one inference a period: that of the slowest stage (with the host's steps between its
                programs), transfer or part of the host

A pipeline is cut when it is first asked for and kept with its recipe (`pipeline`). What is reported
is a line for each number of chips up to those given, beside a linear share of the first that holds
the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import HostStep, KernelStep, Recipe
from tilesmith.families.kit.simulation.host_costs import host_time
from tilesmith.families.lpu.backend.chips.pipeline import ChipPipeline, Cutter
from tilesmith.families.lpu.backend.programs.model import engine_times, operator_costs
from tilesmith.families.lpu.backend.programs.program import ChipProgram
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError, ModelError
from tilesmith.simulator.dispatch import SimulationResult
from tilesmith.simulator.telling import tell

_cutters: WeakKeyDictionary[Recipe, dict[Target, Cutter]] = WeakKeyDictionary()


def _cutter(recipe: Recipe, target: Target) -> Cutter:
    """What cuts a recipe for a chip: what it scheduled once is kept."""
    known = _cutters.setdefault(recipe, {})
    if target not in known:
        known[target] = Cutter(recipe, target)
    return known[target]


@dataclass(frozen=True)
class _Pipelined:
    """A pipeline with the host at both ends.

    Attributes:
        host: seconds of an inference that the host takes before and after.
    """

    pipeline: ChipPipeline
    host: float

    @property
    def seconds(self) -> float:
        """Between two results."""
        return max(self.pipeline.period / (self.pipeline.ghz * 1e9), self.host)

    @property
    def latency(self) -> float:
        """Seconds from an input to its result."""
        return self.pipeline.latency / (self.pipeline.ghz * 1e9) + self.host

    def run(self, steps: Sequence[KernelStep], memory: RunMemory) -> bool:
        """The programs of some of the model's kernels, on what stands in its memory; whether they
        are these kernels and no others."""
        wanted = set(map(id, steps))
        mine = [one for stage in self.pipeline.stages for one in stage.programs
                if wanted & _steps_of(one)]  # fmt: skip
        if wanted != set().union(*map(_steps_of, mine)):
            return False
        for program in mine:
            program.run(memory)
        return True

    def to_json(self) -> dict[str, Any]:
        """One line of the table, with the stages."""
        us = self.pipeline.ghz * 1e3
        return {
            "chips": len(self.pipeline.stages),
            "period_us": self.seconds * 1e6,
            "per_second": 1 / self.seconds,
            "latency_us": self.latency * 1e6,
            "stages": [
                {
                    "kernels": [step.name for step in stage.kernels],
                    "us": stage.cycles / us,
                    "host_us": stage.host / us,
                    "host": list(stage.waits),
                    "transfer_us": stage.sent / us,
                    "weights_mib": stage.weights / 2**20,
                }
                for stage in self.pipeline.stages
            ],
        }


def pipelined(recipe: Recipe, target: Target | None = None, chips: int = 0) -> _Pipelined:
    """A recipe's pipeline over at most so many chips (0: those that it was compiled for).

    Raises:
        ModelError: they do not hold it.
    """
    target = target or recipe.target
    places = [n for n, step in enumerate(recipe.steps) if isinstance(step, KernelStep)] or [0]
    ends = (*recipe.steps[: places[0]], *recipe.steps[places[-1] + 1 :])
    host = sum(host_time(step, target) for step in ends if isinstance(step, HostStep)) * 1e-9
    return _Pipelined(_cutter(recipe, target).cut(chips or recipe.chips), host)


def _steps_of(program: ChipProgram) -> set[int]:
    """A program's kernels, what the host does as it hands tensors over among them."""
    handed = (step for step, _ in (*program.before, *program.after))
    return set(map(id, (*program.steps, *handed)))


def simulate_pipeline(
    recipe: Recipe, target: Target | None = None, trace: Path | None = None
) -> SimulationResult:
    """Cut a compiled model over every number of chips up to its own, and count cycles.

    Raises:
        InputError: a trace is asked for; it shows one chip.
        ModelError: as `pipelined`.
    """
    if trace is not None:
        raise InputError("--trace shows one chip; leave out --chips, or the trace")
    target = target or recipe.target
    rows, refused = list[dict[str, Any]](), ""
    for chips in range(1, recipe.chips + 1):
        tell(f"cutting '{recipe.title}' over {chips} of {recipe.chips} chips")
        try:
            rows.append({"at_most": chips, **pipelined(recipe, target, chips).to_json()})
        except ModelError as error:
            refused = refused or str(error)
            if chips == recipe.chips:
                raise
    first = rows[0]
    for row in rows:
        linear = first["per_second"] * row["at_most"] / first["at_most"]
        row["of_linear"] = row["per_second"] / linear
    cut = pipelined(recipe, target)
    programs = [program for stage in cut.pipeline.stages for program in stage.programs]
    between = sum(stage.host for stage in cut.pipeline.stages) / (cut.pipeline.ghz * 1e3)
    engines = {name: us / (cut.latency * 1e6) for name, us in engine_times(programs).items()}
    chip = Chip.of(target)
    return SimulationResult(
        target=target.name,
        fidelity="timeline",
        cycles=round(cut.latency * chip.ghz * 1e9),
        compute_cycles=round(engines["mxm"] * cut.latency * chip.ghz * 1e9),
        latency_us=cut.latency * 1e6,
        bound=_bound(cut),
        engines=engines,
        ops=operator_costs(programs, target),
        details={
            "precision": recipe.report.precision,
            "chips": len(cut.pipeline.stages),
            "period_us": cut.seconds * 1e6,
            "per_second": 1 / cut.seconds,
            "host_us": cut.host * 1e6 + between,
            "pipelines": rows,
        },
        notes=(refused,) if refused else (),
        remarks=(*_stages(rows[-1]), "", *_table(rows)),
    )


def _bound(cut: _Pipelined) -> str:
    """What makes the period."""
    if cut.host > cut.pipeline.period / (cut.pipeline.ghz * 1e9):
        return "host"
    stages = cut.pipeline.stages
    slowest = max(stages, key=lambda stage: stage.cycles)
    if slowest.cycles == cut.pipeline.period and slowest.host * 2 > slowest.cycles:
        return "host"
    return "c2c" if max(s.sent for s in stages) > max(s.cycles for s in stages) else "stages"


def _stages(row: dict[str, Any]) -> list[str]:
    lines = [
        f"a pipeline over {row['chips']} chip{'s' if row['chips'] > 1 else ''}: an inference every "
        f"{row['period_us']:.2f} us, {row['per_second']:,.0f} a second"
    ]
    for number, stage in enumerate(row["stages"], 1):
        names = stage["kernels"]
        kernels = f"{len(names)} kernels, {names[0]} to {names[-1]}"
        lines.append(
            f"  chip {number}: {kernels if len(names) > 1 else f'1 kernel, {names[0]}'}; "
            f"{stage['us']:.2f} us, {stage['weights_mib']:.1f} MiB of weights, "
            f"{stage['transfer_us']:.2f} us to send on"
        )
        if stage["host"]:
            named = f"{', '.join(stage['host'][:3])}{', ..' if len(stage['host']) > 3 else ''}"
            lines.append(f"    {stage['host_us']:.2f} us of it on the host: {named}")
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Throughput over chips, against linear."""
    lines = ["at most  used   period us  inferences/s  of linear  latency us"]
    lines += [
        f"{row['at_most']:7}  {row['chips']:4}  {row['period_us']:10.2f}  "
        f"{row['per_second']:12,.0f}  {row['of_linear']:9.1%}  {row['latency_us']:10.2f}"
        for row in rows
    ]
    return lines
