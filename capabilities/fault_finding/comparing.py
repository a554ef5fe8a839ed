"""`tilesmith compare`: every tensor of a compiled model against a reference.

The job behind the command and `tilesmith.compare`: it compiles or loads the model, draws or checks
its inputs, chooses the reference and runs it. `comparison` then compares the two sets of tensors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.jobs.compilation.compiling import at_one_size, build_executable, executable_of
from tilesmith.jobs.compilation.seeded_inputs import fitting_inputs
from tilesmith.jobs.requests.graphs import graph_of
from tilesmith.jobs.subjects.subject import executable_words, is_artifact, is_compiled
from tilesmith.search_space.support.errors import (
    DependencyError,
    InputError,
    JobError,
    ModelError,
    TilesmithError,
)
from tilesmith.simulator.telling import tell

if TYPE_CHECKING:
    import onnx

    from tilesmith.capabilities.fault_finding.stepping.iterations import WrongIteration
    from tilesmith.capabilities.fault_finding.stepping.report import ComparisonReport
    from tilesmith.compiler.backends.wrong_instruction import WrongInstruction
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.jobs.requests.request import Request, Resolved, Shapes
    from tilesmith.jobs.subjects.subject import Model, Subject

Arrays = Mapping[str, NDArray[Any]]

REFERENCES = ("onnxruntime", "onnx", "float64")
"""onnxruntime: the file, no optimisation on. onnx: ONNX's reference implementation. float64: that,
with weights and inputs cast."""


@dataclass(frozen=True)
class CompareOptions:
    """How a model is compared.

    Attributes:
        inputs: arrays by input name; None: seeded random ones.
        reference: one of `REFERENCES`; None: the first that is installed.
        tolerance: of the largest relative error of a float32 tensor; None: the usual.
        replaced: the tensor whose reference value is to be put in; "": of the suspect.
        model: what an artifact or executable was compiled from, where that is not beside it.
        seed: of random inputs.
    """

    inputs: Arrays | None = None
    reference: str | None = None
    tolerance: float | None = None
    replaced: str = ""
    model: "Model | None" = None
    seed: int = 0


@dataclass(frozen=True)
class Ready:
    """A model compiled, read, and given inputs."""

    model: "Model"
    executable: "Executable"
    graph: "Graph"
    inputs: dict[str, NDArray[Any]]
    notes: tuple[str, ...]


def compared(request: "Request", options: CompareOptions) -> "ComparisonReport":
    """Compile (or load) a model and compare its tensors.

    Raises:
        InputError: no such reference or tensor, or inputs that do not fit.
        ModelError: the model cannot be read, or the reference does not take it.
        JobError: it cannot be computed on these inputs.
    """
    from tilesmith.capabilities.fault_finding.comparison.compare import Compared, compare_tensors
    from tilesmith.capabilities.fault_finding.comparison.precisions import (
        compare_ratios,
        precision_of,
    )
    from tilesmith.capabilities.fault_finding.comparison.tensors import TOLERANCE

    if options.reference is not None and options.reference not in REFERENCES:
        raise InputError(
            f"unknown reference '{options.reference}'; one of {', '.join(REFERENCES)} is expected"
        )
    if options.model is not None and not is_artifact(request.subject):
        raise InputError(
            f"--model names the ONNX file that a .tsm was compiled from; '{request.subject}' is a "
            "model itself: leave --model out"
        )
    tolerance = TOLERANCE if options.tolerance is None else options.tolerance
    if not tolerance > 0:
        raise InputError(f"a tolerance of {tolerance:g} leaves no room for rounding; more than 0")
    tell("compiling the model")
    ready = prepared(request, options)
    asked = Compared(ready.executable, ready.graph, ready.inputs, "", tolerance, options.replaced)
    names = [tensor.name for tensor in asked.tensors()]
    threads = ready.executable.recipe.threads
    tell(f"computing {len(names)} tensors by the reference")
    referred = Referred(ready.model, ready.graph, ready.inputs, threads)
    reference, wanted = referred.tensors(names, options.reference)
    asked = replace(asked, reference=reference, second=referred.second)
    tell(f"comparing {len(names)} tensors")
    lower = request.precision
    if lower == "fp32":
        lower = ready.executable.report.precision
    if lower == "fp32":
        report = compare_tensors(asked, wanted)
    else:
        named = precision_of(lower, ready.graph, ready.inputs, wanted, names)
        report = compare_ratios(asked, named)
    return replace(
        report,
        notes=(*ready.notes, *report.notes),
        instruction=_instruction(ready, report.first_bad),
        iteration=_iteration(request, ready, report.first_bad),
    )


def _iteration(request: "Request", ready: Ready, name: str | None) -> "WrongIteration | None":
    """Where a loop writes the first bad tensor: the iteration and kernel that go wrong first."""
    from tilesmith.capabilities.fault_finding.bisection.passes import Stages
    from tilesmith.capabilities.fault_finding.bisection.walk import is_close
    from tilesmith.capabilities.fault_finding.stepping.iterations import (
        first_wrong_iteration,
        loop_of,
    )
    from tilesmith.compiler.rewriting.graph_pass import observed

    held = next((t for t in ready.executable.recipe.tensors if t.name == name), None)
    if held is None or is_artifact(request.subject):
        return None
    loop = loop_of(ready.executable.recipe.steps, held.step)
    if loop is None:
        return None
    asked = request.resolved()
    known = {i.name: i.dims for i in ready.executable.inputs if i.shape is not None}
    stages = Stages()
    with observed(stages):  # compiled again, for the graphs: the artifact's own steps are run
        _built(replace(asked, shapes=known))
    return first_wrong_iteration(ready.executable, ready.inputs, loop, stages.settled, is_close)


def _instruction(ready: Ready, name: str | None) -> "WrongInstruction | None":
    """The instruction at which the first bad tensor becomes so; None where that cannot be told."""
    from tilesmith.capabilities.fault_finding.stepping.steps import wrong_instruction

    held = next((t for t in ready.executable.recipe.tensors if t.name == name), None)
    if held is None:
        return None
    return wrong_instruction(ready.executable, ready.inputs, held.step)


def prepared(request: "Request", options: CompareOptions) -> Ready:
    """The model compiled and read at one size, with inputs; errors as `compared`."""
    from tilesmith.capabilities.fault_finding.comparison.refused import refusals

    given = dict(options.inputs or {})
    notes: list[str] = []
    if is_artifact(request.subject):
        executable = at_one_size(executable_of(request), request.shapes or {})
        model = _source(request.subject, executable, options.model)
    else:
        asked = request.resolved()
        model = asked.model
        shapes = {**shapes_of(given), **asked.shapes}
        with refusals() as refused:
            executable = _built(replace(asked, shapes=shapes))
        notes += refused.sentences()
    if executable.recipe.steps and not executable.recipe.tensors:
        notes.append(
            "where tensors lie is not known of this model (an older artifact, or one whose sizes "
            "vary): its outputs alone are compared"
        )
    known = {info.name: info.dims for info in executable.inputs if info.shape is not None}
    graph = graph_of(model, known)
    if not given and executable.inputs:
        given = fitting_inputs(model, graph, options.seed)
        notes.append(f"no inputs given: seeded random numbers for {', '.join(given)}")
    notes += bodies_of(graph)
    return Ready(model, executable, graph, given, tuple(notes))


def _source(subject: "Subject", executable: "Executable", given: "Model | None") -> "Model":
    """What an artifact or executable was compiled from; `ModelError` where nobody knows."""
    from tilesmith.jobs.evaluation.benching import source_of
    from tilesmith.jobs.subjects.subject import model_of

    known = model_of(subject) if given is None and is_compiled(subject) else given
    if known is not None and not isinstance(known, str | Path):
        return known
    return source_of(executable, executable_words(subject), known)


def _built(asked: "Resolved") -> "Executable":
    """A model compiled for one size; what a compiler with a fault in it raises is a sentence."""
    try:
        return _of_one_size(asked)
    except TilesmithError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise JobError(
            f"compiling fails ({type(error).__name__}{': ' if words else ''}{words}), so there is "
            "nothing to compare; 'tilesmith bisect' finds the pass and the nodes"
        ) from error


def bodies_of(graph: "Graph") -> tuple[str, ...]:
    """What is not looked into: a sentence, or none."""
    from tilesmith.compiler.graph.graph import Subgraph

    names = [
        node.describe()
        for node in graph.nodes
        if any(isinstance(value, Subgraph) for _, value in node.attributes)
    ]
    if not names:
        return ()
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return (
        f"tensors inside the bodies of {', '.join(names[:6])}{more} are not in the table: what the "
        "bodies give in the end is; where that is wrong, the first iteration and kernel are named",
    )


def _of_one_size(asked: "Resolved") -> "Executable":
    """A model compiled for one size: ranges at their middle, where tensors can be looked at."""
    executable = build_executable(asked)
    one = at_one_size(executable, asked.shapes)
    if one is executable:
        return one
    fixed = {info.name: info.dims for info in one.inputs if info.shape is not None}
    return at_one_size(build_executable(replace(asked, shapes=fixed)), fixed)


def shapes_of(given: Arrays) -> "Shapes":
    """Shapes of inputs by name; sequences and what is not given have none."""
    return {n: array.shape for n, array in given.items() if isinstance(array, np.ndarray)}


@dataclass(frozen=True)
class Referred:
    """What a reference is to compute.

    Attributes:
        model: as its front end reads it.
        graph: the model as imported.
        inputs: of the run.
        threads: that onnxruntime may use.
    """

    model: "Model"
    graph: "Graph"
    inputs: Mapping[str, Any]
    threads: int = 1

    def tensors(self, names: Iterable[str], reference: str | None) -> tuple[str, dict[str, Any]]:
        """What computed them, and tensors by name; errors as `compared`."""
        if reference in (None, "onnxruntime"):
            try:
                return self._by_onnxruntime(list(names))
            except (DependencyError, ModelError):  # not installed, or it does not take the model
                if reference is not None:
                    raise
                reference = "onnx"
        from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
        from tilesmith.capabilities.fault_finding.references.float64 import in_float64, wide

        if reference == "onnx":
            return "onnx.reference", Evaluator(self.graph, sessions=False).values(
                self.inputs, names
            )
        inputs = {name: wide(array) for name, array in self.inputs.items()}
        exact = Evaluator(in_float64(self.graph), sessions=False)
        return "float64", exact.values(inputs, names)

    def second(self, names: Iterable[str]) -> dict[str, Any]:
        """Tensors by ONNX's reference implementation, from the file; those that it has."""
        from tilesmith.capabilities.fault_finding.references.by_definition import (
            tensors_by_definition,
        )

        file = _file_of(self.model)
        return {} if file is None else tensors_by_definition(file, self.inputs, names)

    def _by_onnxruntime(self, names: list[str]) -> tuple[str, dict[str, Any]]:
        """The file as it is where there is one; what it has not, node by node."""
        from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
        from tilesmith.capabilities.fault_finding.references.in_onnxruntime import (
            runtime_version,
            tensors_by_onnxruntime,
        )

        version = runtime_version()
        tensors: dict[str, Any] = {}
        file = _file_of(self.model)
        if file is not None:
            tensors = tensors_by_onnxruntime(file, self.graph, self.inputs, names, self.threads)
        missing = [name for name in names if name not in tensors]
        if missing:
            tensors |= Evaluator(self.graph).values(self.inputs, missing)
        return f"onnxruntime {version}", tensors


def _file_of(model: "Model") -> "str | Path | onnx.ModelProto | None":
    """The model as onnxruntime takes it; None for other front ends' models."""
    from tilesmith.compiler.driver.front_end import FrontEndModel, format_of

    return None if isinstance(model, FrontEndModel) or format_of(model) is not None else model
