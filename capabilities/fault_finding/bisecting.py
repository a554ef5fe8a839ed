"""`tilesmith bisect`: which part of the compiler makes a model wrong, and the smallest model that
shows it."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilesmith.capabilities.fault_finding.comparing import Referred, shapes_of
from tilesmith.jobs.compilation.compiling import build_fixed
from tilesmith.jobs.compilation.seeded_inputs import fitting_inputs
from tilesmith.jobs.notices import LOG
from tilesmith.jobs.requests.graphs import graph_of
from tilesmith.jobs.subjects.subject import is_artifact
from tilesmith.search_space.support.errors import InputError, ModelError
from tilesmith.search_space.support.json_object import JsonObject

if TYPE_CHECKING:
    from tilesmith.capabilities.fault_finding.bisection.finding import FaultFinding
    from tilesmith.capabilities.fault_finding.bisection.reduction import Small
    from tilesmith.capabilities.fault_finding.bisection.search import CompiledTrial
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.jobs.requests.request import Request, Resolved

_CLEARLY = 0.3
"""A relative error that is no rounding of a smaller model's, however large the whole model's is."""

SECONDS = 60.0
"""How long smaller models are compiled while the smallest is looked for."""


def version_here() -> str:
    """The version of Tilesmith that is installed."""
    return metadata.version("tilesmith")


@dataclass(frozen=True)
class BisectOptions:
    """How a fault is looked for.

    Attributes:
        inputs: arrays by input name; None: seeded random ones.
        reference: as `CompareOptions.reference`.
        tolerance: largest relative error of an output that is rounding; None: the usual.
        reduce: whether to look for the smallest model that shows it.
        seconds: how long.
        seed: of random inputs.
    """

    inputs: Mapping[str, Any] | None = None
    reference: str | None = None
    tolerance: float | None = None
    reduce: bool = True
    seconds: float = SECONDS
    seed: int = 0


@dataclass(frozen=True)
class BisectReport(
    JsonObject,
    keys="model target precision reference error failure clean finding nodes:_nodes whole_nodes "
    "notes version:_version machine:_machine",
):
    """What was found.

    Attributes:
        model, target, precision: what was compiled.
        reference: what its outputs were compared with.
        error: largest relative error of an output; infinite where it has another shape.
        failure: what compiling or running it raised, if it did.
        finding: the part at fault; None if nothing is wrong.
        small: the smallest model that shows it; None if there is none or none was asked for.
        whole_nodes: how many nodes the model has.
        options: the command's options that it needs.
        notes: sentences for the reader.
        attached: texts of files that the command names, by name.
    """

    model: str
    target: str
    precision: str
    reference: str
    error: float
    failure: str
    finding: "FaultFinding | None"
    small: "Small | None"
    whole_nodes: int
    options: tuple[str, ...]
    notes: tuple[str, ...] = ()
    attached: Mapping[str, str] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return self.finding is None

    @property
    def _nodes(self) -> int | None:
        return None if self.small is None else len(self.small.nodes)

    @property
    def _version(self) -> str:
        return version_here()

    @property
    def _machine(self) -> str:
        return platform.platform()


def bisected(request: "Request", options: BisectOptions) -> BisectReport:
    """Compile a model, and if it is wrong find out what makes it so.

    Raises:
        InputError: an artifact, or inputs that do not fit.
        ModelError: the model cannot be read, or the reference does not take it.
        JobError: the reference cannot compute it.
    """
    from tilesmith.capabilities.fault_finding.bisection.search import finding_of, tried
    from tilesmith.capabilities.fault_finding.comparison.refused import refusals
    from tilesmith.capabilities.fault_finding.comparison.tensors import TOLERANCE

    if is_artifact(request.subject):
        raise InputError(
            f"'{request.subject}' is compiled already; passes and schedules are looked for where a "
            "model is compiled: name its .onnx file"
        )
    asked = request.resolved()
    given = dict(options.inputs or {})
    asked = replace(asked, shapes={**shapes_of(given), **asked.shapes})
    graph = graph_of(asked.model, asked.shapes)
    inputs = given or fitting_inputs(asked.model, graph, options.seed)
    names, notes = comparable_outputs(graph)
    reference, wanted = Referred(asked.model, graph, inputs).tensors(names, options.reference)
    tolerance = options.tolerance or TOLERANCE
    with refusals() as refused:
        trial = tried(lambda: build_fixed(asked), inputs, wanted)
    LOG.info("ran it on %s beside %s: error %.3g", asked.target.name, reference, trial.error)
    report = BisectReport(
        graph.name, asked.target.name, asked.precision, reference, trial.error, trial.failure,
        None, None, len(graph.nodes), options_of(request), (*notes, *refused.sentences()),
        attached_to(request),
    )  # fmt: skip
    suspect: str | None = ""
    if not trial.failure:
        suspect = suspected(trial, graph, inputs, wanted, (tolerance, asked.precision))
    if suspect is None:
        return report
    finding = finding_of(graph, trial, inputs, wanted, asked.target, tolerance, suspect)
    small = None
    if options.reduce:
        small = reduced(asked, inputs, finding, trial, (tolerance, options.seconds))
        if small is not None and not small.minimal:
            late = f"after {options.seconds:g} s no smaller model was looked for (--time-limit)"
            report = replace(report, notes=(*report.notes, late))
    return replace(report, finding=finding, small=small)


def comparable_outputs(graph: "Graph") -> tuple[list[str], tuple[str, ...]]:
    """Outputs in which random numbers have no part, and a sentence on the others.

    Raises:
        InputError: there are none.
    """
    from tilesmith.compiler.host.nodes import draws

    drawn: set[str] = set()
    drawing = []
    for node in graph.nodes:
        if draws(node, graph.constants):
            drawing.append(node.describe())
            drawn.update(node.writes)
        elif not drawn.isdisjoint(node.reads):
            drawn.update(node.writes)
    names = [info.name for info in graph.outputs]
    kept = [name for name in names if name not in drawn]
    if names and not kept:
        raise InputError(
            f"every output of '{graph.title}' is made of random numbers "
            f"({', '.join(drawing[:4])}), "
            "which nobody draws alike; 'tilesmith compare' puts the reference's in their place"
        )
    left = [name for name in names if name in drawn]
    if not left:
        return kept, ()
    said = f"outputs {', '.join(left)} are made of random numbers, and left out"
    return kept, (said,)


def suspected(
    trial: "CompiledTrial",
    graph: "Graph",
    inputs: Mapping[str, Any],
    wanted: Mapping[str, Any],
    asked_for: tuple[float, str],
) -> str | None:
    """The tensor at which a trial goes wrong, "" where that is not known; None if its outputs are
    right: within tolerance, or no tensor of it is bad.

    Args:
        asked_for: the tolerance, and the precision that was asked for.
    """
    from tilesmith.capabilities.fault_finding.comparison.compare import (
        Compared,
        compare_tensors,
        is_numeric,
    )
    from tilesmith.capabilities.fault_finding.comparison.precisions import (
        compare_ratios,
        precision_of,
    )
    from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator

    bound, precision = asked_for
    if trial.error <= bound:
        return None
    if trial.executable is None or any(
        np.shape(trial.outputs.get(name, ())) != np.shape(value)
        for name, value in wanted.items()
        if is_numeric(value)
    ):
        return ""
    asked = Compared(trial.executable, graph, inputs, "", bound)
    names = [tensor.name for tensor in asked.tensors()]
    values = {**Evaluator(graph).values(inputs, names), **wanted}
    lower = precision if precision in ("bf16", "fp16") else trial.executable.report.precision
    if lower == "fp32":
        report = compare_tensors(asked, values)
    else:
        report = compare_ratios(asked, precision_of(lower, graph, inputs, values, names))
    return None if report.clean else report.first_bad or ""


def reduced(
    asked: "Resolved",
    inputs: Mapping[str, Any],
    finding: "FaultFinding",
    trial: "CompiledTrial",
    limits: tuple[float, float],
) -> "Small | None":
    """The smallest model that is wrong as the whole is; None where the model has no ONNX form.

    Args:
        limits: the tolerance, and for how many seconds to look.
    """
    tolerance, seconds = limits
    from tilesmith.capabilities.fault_finding.bisection.reduction import (
        smallest,
        with_seeded_weights,
    )
    from tilesmith.capabilities.fault_finding.bisection.search import tried

    whole = _whole(asked, inputs)
    if whole is None:
        return None
    bound = tolerance
    if np.isfinite(trial.error):
        bound = max(tolerance, min(trial.error / 10, _CLEARLY))

    def shows(small: "Small") -> bool:
        changed = replace(asked, subject=small.proto, shapes={})
        again = tried(lambda: build_fixed(changed), small.inputs, small.wanted)
        if bool(again.failure) != bool(trial.failure):
            return False
        return bool(again.failure) or again.error > bound

    own = whole.named(finding.sources)
    around = whole.before(own)
    everything = tuple(range(len(whole.nodes)))
    starts = (own, around, whole.before(around), everything)
    small = smallest(whole, starts, shows, seconds)
    return None if small is None else with_seeded_weights(small, shows, seconds / 2)


def _whole(asked: "Resolved", inputs: Mapping[str, Any]) -> Any:
    from onnx.numpy_helper import from_array

    from tilesmith.capabilities.fault_finding.bisection.reduction import Whole
    from tilesmith.capabilities.fault_finding.references.in_onnxruntime import (
        tensors_by_onnxruntime,
    )
    from tilesmith.compiler.driver.front_end import onnx_file_of
    from tilesmith.compiler.onnx.files.arrays import ArrayReader
    from tilesmith.compiler.onnx.importer import import_file

    file = onnx_file_of(asked.model)
    if file is None:
        return None
    proto = type(file.proto)()
    proto.CopyFrom(file.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in file.held:  # its bytes are elsewhere
            tensor.CopyFrom(from_array(np.asarray(file.held[tensor.name]), tensor.name))
    ArrayReader(file.folder, file.name).embed(proto.graph)
    shapes = {n: a.shape for n, a in inputs.items() if isinstance(a, np.ndarray)}
    imported = import_file(file, shapes)
    names = [name for node in proto.graph.node for name in node.output if name]
    values = dict(inputs)
    try:
        values |= tensors_by_onnxruntime(proto, imported.graph, inputs, names)
    except (InputError, ModelError):
        from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator

        computed = [name for node in imported.graph.nodes for name in node.writes]
        values |= Evaluator(imported.graph, sessions=False).values(inputs, computed)
    return Whole(proto, imported, values)


def attached_to(request: "Request") -> dict[str, str]:
    """Files that `options_of` names as lying where the command is run: a target's description."""
    if not isinstance(request.target, str) or not request.target.endswith(".toml"):
        return {}
    path = Path(request.target)
    return {path.name: path.read_text()}


def options_of(request: "Request") -> tuple[str, ...]:
    """The options of a command that compiles as a request says, from whatever folder it is run.

    Shapes are left out, as they are the smaller model's own; so are passwords.
    """
    from tilesmith.records.schema.urls import without_password

    words: list[str] = []
    target = request.target if isinstance(request.target, str) else request.target.name
    if target.endswith(".toml"):  # a copy is in the folder
        target = Path(target).name
    words += ["--target", target]
    for key, value in (request.settings or {}).items():
        words += ["--set", f"{key}={value}"]
    if request.threads is not None:
        words += ["--threads", str(request.threads)]
    if request.precision != "fp32":
        words += ["--precision", request.precision]
    if request.database is not None:
        where = str(request.database)
        where = where if "://" in where else str(Path(where).absolute())
        words += ["--database", without_password(where)]
    return tuple(words)
