"""The search: which part of the compiler makes a model wrong.

failing    a model that does not compile                the kernel that no code comes of
passes     the graph after each of them, by reference        first that computes something else
steps      each on its own inputs, by reference              first wrong, or reading what is lost
schedules  of a wrong kernel                                 which knobs, program or code
linking    the run as a whole against its steps              shortest run of steps that differs

Of a model that does not compile, every kernel of the last graph with kernels is compiled by itself
in its default configuration, so that the failure is told with the nodes that it is of.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.bisection.finding import FaultFinding, Part
from tilesmith.capabilities.fault_finding.bisection.passes import Stages, first_wrong_pass
from tilesmith.capabilities.fault_finding.bisection.schedules import judged, subject_of
from tilesmith.capabilities.fault_finding.bisection.walk import (
    Walk,
    WrongStep,
    is_close,
    over_operand,
    settled_graph,
)
from tilesmith.capabilities.fault_finding.comparison.compare import (
    Compared,
    is_numeric,
    unlike_whole,
)
from tilesmith.capabilities.fault_finding.comparison.tensors import TOLERANCE, WIDER
from tilesmith.capabilities.fault_finding.stepping.errors import tensor_error
from tilesmith.capabilities.fault_finding.stepping.iterations import first_wrong_iteration, loop_of
from tilesmith.capabilities.fault_finding.stepping.steps import copies, run_steps, wrong_instruction
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.numerics.precision import PRECISIONS, LowerPrecision
from tilesmith.compiler.recipe.program import HostStep, KernelStep
from tilesmith.compiler.rewriting.graph_pass import observed
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.workload import Workload


def failed_build(stages: Stages, failure: str, target: Target) -> FaultFinding:
    """What a failure is of: a kernel, or what comes behind the last pass that was done."""
    for node, workload in _kernels(stages):
        fault = _stage(workload, target)
        if fault is not None:
            stage, words = fault
            doing = "its schedule or loop program" if stage == "lowering" else "its code"
            sentence = (
                f"kernel '{node.name}' ({workload.key}) does not compile: {doing} fails: {words}"
            )
            details = {"workload": workload.key, "failure": failure}
            tensor = node.writes[0]
            return FaultFinding(stage, node.name, tensor, sentence, node.sources, details)
    last = stages.steps[-1][0].name if stages.steps else ""
    behind = f"behind pass '{last}'" if last else "before the first pass is done"
    sentence = f"compiling fails {behind}, and each kernel compiles by itself: {failure}"
    return FaultFinding("unknown", last, "", sentence)


def _kernels(stages: Stages) -> Iterator[tuple[Node, Workload]]:
    """Kernels of the last graph that has any, those of bodies too, each workload once."""
    for _, _, graph in reversed(stages.steps):
        graphs: list[Graph] = [graph, *(inside for inside, _ in graph.inside())]
        nodes = {
            node.workload: node
            for one in graphs
            for node in reversed(one.nodes)
            if node.workload is not None
        }
        if nodes:
            yield from ((node, workload) for workload, node in reversed(nodes.items()))
            return


def _stage(workload: Workload, target: Target) -> tuple[Part, str] | None:
    """The stage at which a kernel fails, and how; None of one that compiles."""
    stage: Part = "lowering"
    try:
        config = default_of(workload, target)
        lowered(workload, target, config)
        stage = "code generation"
        backend_of(target).compile(workload, target, config)
    except Exception as error:  # a compiler with a fault in it may raise anything
        words = " ".join(str(error).split())[:300]
        return stage, f"{type(error).__name__}{': ' if words else ''}{words}"
    return None


_LOG = logging.getLogger(__name__)

Arrays = Mapping[str, NDArray[Any]]
Build = Callable[[], Executable]

_SHARE = 3.0
"""A pass is at fault if the error after it is the compiled model's, or a third of it at least: what
quantised models change by rounding the other way, and narrow ones by rounding, stays below."""


@dataclass(frozen=True)
class CompiledTrial:
    """A model compiled once, and how wrong its outputs are.

    Attributes:
        executable: None if compiling failed.
        stages: the graphs on the way.
        failure: what compiling or running raised.
        outputs: what it gives.
        error: largest relative error of an output.
    """

    executable: Executable | None
    stages: Stages
    failure: str
    outputs: dict[str, Any]
    error: float


def tried(build: Build, inputs: Arrays, wanted: Arrays) -> CompiledTrial:
    """Compile a model, run it, and compare its outputs."""
    stages = Stages()
    executable = None
    try:
        with observed(stages):
            executable = build()
        outputs = dict(executable.run(copies(inputs)))
    except Exception as error:  # a compiler with a fault in it may raise anything
        words = " ".join(str(error).split())[:300]
        return CompiledTrial(executable, stages, f"{type(error).__name__}: {words}", {}, np.inf)
    return CompiledTrial(executable, stages, "", outputs, output_error(outputs, wanted))


def output_error(outputs: Arrays, wanted: Arrays) -> float:
    """The largest relative error of an output; infinite where a shape is another."""
    worst = 0.0
    for name, value in wanted.items():
        output: Any = outputs.get(name)
        if not is_numeric(value):
            continue
        if np.shape(output) != np.shape(value):
            return np.inf
        worst = max(worst, tensor_error(np.asarray(output), np.asarray(value)).max_rel)
    return worst


def finding_of(
    graph: Graph,
    trial: CompiledTrial,
    inputs: Arrays,
    wanted: Arrays,
    target: Target,
    tolerance: float = TOLERANCE,
    suspect: str = "",
) -> FaultFinding:
    """What makes a trial wrong.

    Args:
        target: it was compiled for.
        suspect: the tensor at which a comparison says that the error arises; "": unknown.
    """
    _LOG.info("the model %s; looking at %d passes", _how_wrong(trial), len(trial.stages.steps))
    bound = tolerance * rounded_by(trial.stages)
    if np.isfinite(trial.error):
        bound = max(bound, trial.error / _SHARE)
    finding = first_wrong_pass(trial.stages, inputs, wanted, bound)
    if finding is not None:
        return finding
    if trial.executable is None:
        return failed_build(trial.stages, trial.failure, target)
    executable = trial.executable
    settled = settled_graph(executable.recipe, trial.stages.settled)
    if settled is not None:
        _LOG.info("passes are right; looking at %d steps", len(executable.recipe.steps))
        finding = _among_steps(executable, settled, trial.stages, inputs)
        if finding is not None:
            return finding
    _LOG.info("every step is right on its own inputs; looking at how they are linked")
    compared = Compared(executable, graph, inputs, "")
    outputs = run_steps(executable, inputs).outputs
    if trial.failure or unlike_whole(compared, outputs):
        from tilesmith.capabilities.fault_finding.bisection.linking import linking_fault

        return linking_fault(executable, inputs)
    if settled is not None and suspect:
        _LOG.info("and so is their linking; looking closely at what writes '%s'", suspect)
        finding = _among_steps(executable, settled, trial.stages, inputs, suspect)
        if finding is not None:
            return finding
    sentence = (
        "no pass changes what the graph computes and every step is right on its own inputs: errors "
        "that are within tolerance add up, or what the model's file and the imported graph say "
        "differs"
    )
    return FaultFinding("unknown", "", "", sentence)


def _among_steps(
    executable: Executable, settled: Graph, stages: Stages, inputs: Arrays, suspect: str = ""
) -> FaultFinding | None:
    """The first step that is wrong on its own inputs, and what about it is."""
    step = Walk(executable, settled, suspect).run(inputs)
    if not isinstance(step, WrongStep):
        return step
    finding = _in_a_loop(step, executable, stages, inputs)
    if finding is not None:
        return finding
    return _down_to_instruction(_wrong(step, executable), step.number, executable, inputs)


def _how_wrong(trial: CompiledTrial) -> str:
    return trial.failure or f"is wrong: largest relative error of an output {trial.error:.3g}"


def rounded_by(stages: Stages) -> float:
    """How much larger the tolerance is for a pass that lowers the precision on the way."""
    lowered = (step for step, before, after in stages.steps if before is not after)
    names = [step.precision for step in lowered if isinstance(step, LowerPrecision)]
    return max((WIDER.get(PRECISIONS[name], 1.0) for name in names), default=1.0)


def _wrong(step: WrongStep, executable: Executable) -> FaultFinding:
    recipe = executable.recipe
    kernel = recipe.steps[step.number]
    name, tensor = step.node.describe(), step.node.writes[0]
    if isinstance(kernel, KernelStep) and step.node.workload is not None:
        finding = judged(subject_of(step, kernel, recipe.target, recipe.threads), step)
        return (over_operand(recipe, step.node) if finding.part == "packing" else None) or finding
    kind = "host operator" if isinstance(kernel, HostStep) else "kernel"
    error = tensor_error(step.ours, step.wanted)
    sentence = f"{name} is wrong on right inputs: largest relative error {error.max_rel:.3g}"
    return FaultFinding(kind, name, tensor, sentence, step.node.sources)  # type: ignore[arg-type]


def _in_a_loop(
    step: WrongStep, executable: Executable, stages: Stages, inputs: Arrays
) -> FaultFinding | None:
    """Where a loop is wrong: its first kernel and iteration, or what is moved between them."""
    loop = loop_of(executable.recipe.steps, step.number) if step.node.bodies else None
    if loop is None:
        return None
    wrong = first_wrong_iteration(executable, inputs, loop, stages.settled, is_close)
    if wrong is None:
        return None
    part: Part = "linking" if wrong.moved else "kernel"
    details = {"iteration": wrong.to_json(), "workload": wrong.workload, "config": wrong.config}
    name, tensor = wrong.moved or wrong.kernel, step.node.writes[0]
    return FaultFinding(part, name, tensor, wrong.sentence, step.node.sources, details)


def _down_to_instruction(
    finding: FaultFinding, number: int, executable: Executable, inputs: Arrays
) -> FaultFinding:
    """The finding with the first instruction whose output differs, where there is one."""
    instruction = wrong_instruction(executable, inputs, number)
    if instruction is None:
        return finding
    details = {**finding.details, "instruction": instruction.to_json()}
    return replace(finding, sentence=f"{finding.sentence}; {instruction.sentence}", details=details)
