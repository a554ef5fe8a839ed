"""One comparison: from a compiled model, its inputs and a reference's tensors to a report.

The compiled model runs step by step, so that tensors are seen which a run writes over. Tensors are
judged in the order they are computed in: the first bad one is where to look.

Invariant: random numbers are the reference's, so that what follows from them can be compared.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.comparison.tensors import (
    TOLERANCE,
    Judge,
    comparable,
    row_of,
)
from tilesmith.capabilities.fault_finding.rounding.local_bytes import misrounded
from tilesmith.capabilities.fault_finding.stepping.errors import tensor_error
from tilesmith.capabilities.fault_finding.stepping.report import (
    ComparisonReport,
    Replacement,
    TensorRow,
)
from tilesmith.capabilities.fault_finding.stepping.steps import copies, run_steps
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.host.nodes import draws
from tilesmith.compiler.recipe.program import HeldTensor, Recipe
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import InputError

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Compared:
    """What is compared.

    Attributes:
        executable: the compiled model.
        graph: the model as imported.
        inputs: of the run.
        reference: what the reference's tensors come from, for the reader.
        tolerance: of float32 tensors.
        replaced: the tensor whose reference value is to be put in; "": of the suspect.
        second: tensors by name by another reference that reads the model's file itself; those that
            it has not are left out.
    """

    executable: Executable
    graph: Graph
    inputs: Arrays
    reference: str
    tolerance: float = TOLERANCE
    replaced: str = ""
    second: Callable[[Collection[str]], Arrays] = lambda names: {}

    @property
    def recipe(self) -> Recipe:
        return self.executable.recipe

    def tensors(self) -> list[HeldTensor]:
        """What can be compared, in order."""
        return comparable(self.recipe, self.graph)

    @property
    def drawn(self) -> set[str]:
        """Tensors of random numbers: nobody draws the same ones, so the reference's are put in."""
        nodes = (node for node in self.graph.nodes if draws(node, self.graph.constants))
        return {name for node in nodes for name in node.writes}


def compare_tensors(compared: Compared, wanted: Arrays) -> ComparisonReport:
    """Every tensor against a reference's.

    Args:
        wanted: the reference's tensors, by name; those that it has not are left out.
    """
    recipe, graph = compared.recipe, compared.graph
    held = [t for t in compared.tensors() if is_numeric(wanted.get(t.name))]
    names = {tensor.name for tensor in held}
    drawn = {name: wanted[name] for name in compared.drawn & names}
    seen = run_steps(compared.executable, compared.inputs, names, drawn)
    tensors = seen.tensors
    rows = [row_of(t, recipe, graph, tensors[t.name], wanted[t.name]) for t in held]
    judge = Judge(graph, compared.inputs, tensors, wanted, compared.tolerance)
    rows = judge.verdicts(rows)
    rows = misrounded(rows, graph, compared.inputs, tensors)
    apart = contradicted(compared, judge, rows)
    rows = [replace(row, verdict="sensitive") if row.name in apart else row for row in rows]
    first_bad = judge.first_bad(rows)
    return ComparisonReport(
        recipe.name,
        recipe.target.name,
        recipe.report.precision,
        compared.reference,
        compared.tolerance,
        tuple(rows),
        first_bad,
        first_nan(rows),
        first_bad,
        replacement(compared, wanted, compared.replaced or first_bad or ""),
        unlike_whole(compared, seen.outputs),
        (_told_apart(apart),) if apart else (),
    )


def contradicted(compared: Compared, judge: Judge, rows: Sequence[TensorRow]) -> set[str]:
    """Tensors on which references contradict each other, and the second agrees with ours."""
    asked = judge.contradicted(rows)
    second = compared.second(asked) if asked else {}
    return {name for name in asked if name in second and judge.agrees(name, second[name])}


def _told_apart(names: Collection[str]) -> str:
    return (
        f"references contradict each other on {', '.join(sorted(names)[:6])}: the compiled model "
        "gives what ONNX's reference implementation gives (--reference onnx)"
    )


def first_nan(rows: Sequence[TensorRow]) -> str | None:
    """The first tensor with what is no number, or with infinities that the reference has not."""
    ours = next((row.name for row in rows if row.error.nan or row.error.inf), None)
    return ours or next((row.name for row in rows if row.error.reference_nan), None)


def unlike_whole(compared: Compared, outputs: Arrays) -> tuple[str, ...]:
    """Outputs that the run as a whole gives otherwise than its steps one by one; none of a model
    that draws random numbers."""
    if compared.drawn:
        return ()
    whole = compared.executable.run(copies(compared.inputs))
    return tuple(
        name
        for name, value in whole.items()
        if name in outputs
        and is_numeric(value)
        and tensor_error(value, outputs[name]).max_rel > compared.tolerance
    )


def replacement(compared: Compared, wanted: Arrays, name: str) -> Replacement | None:
    """What becomes of the outputs with a tensor's reference value in its place; None without one.

    Raises:
        InputError: as `replaced_by`.
    """
    if not name:
        return None
    before, after = replaced_by(compared, wanted, name)

    def errors(tensors: Arrays) -> dict[str, float]:
        return {n: tensor_error(value, wanted[n]).max_rel for n, value in tensors.items()}

    return Replacement(name, errors(before), errors(after), {}, {})


def replaced_by(compared: Compared, wanted: Arrays, name: str) -> tuple[Arrays, Arrays]:
    """The outputs as they are, and with a tensor's reference value in its place.

    Raises:
        InputError: the compiled model has no such tensor, or it is not known what it is to be.
    """
    known = {tensor.name for tensor in compared.tensors()}
    if name not in known or name not in wanted:
        raise InputError(
            f"tensor '{name}' is not in the compiled model, so nothing can be put in its place; "
            f"it has {', '.join(sorted(known)[:8])}{', ...' if len(known) > 8 else ''}"
        )
    ends = {info.name for info in compared.graph.outputs} & wanted.keys()

    def seen(replaced: Arrays) -> Arrays:
        return run_steps(compared.executable, compared.inputs, ends, replaced).tensors

    return seen({}), seen({name: wanted[name]})


def is_numeric(value: Any) -> bool:
    """Whether a value is an array of real numbers."""
    return isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind not in "OSUc"
