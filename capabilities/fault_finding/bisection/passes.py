"""The first pass after which a graph computes something else, by evaluating the graph after it.

Graphs at every stage are computed by reference (templates in numpy, ONNX's operators by its
reference or onnxruntime), so that no kernel and no schedule has a part in it. A pass that a wrong
value comes from stays wrong: it is found by halving.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.bisection.finding import FaultFinding
from tilesmith.capabilities.fault_finding.comparison.compare import is_numeric
from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.capabilities.fault_finding.stepping.errors import tensor_error
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.settling.settlement import SettleLayouts
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import TilesmithError

Arrays = Mapping[str, NDArray[Any]]

_MOVED = 0.25
"""Steps that bytes are off by in the mean."""


@dataclass
class Stages:
    """An observer of passes: the way of one graph, those of bodies left out.

    Attributes:
        steps: (pass, before, after) in order, each beginning where the one before ended.
        settled: every graph with schedules that was made on the way.
    """

    steps: list[tuple[Pass, Graph, Graph]] = field(default_factory=list)
    settled: list[Graph] = field(default_factory=list)

    def __call__(self, step: Pass, before: Graph, after: Graph) -> None:
        if isinstance(step, SettleLayouts):
            self.settled.append(after)  # in layouts: its kernels are looked at one by one
            return
        if not self.steps:
            self.steps.append((step, before, after))
            return
        for number in range(len(self.steps), 0, -1):
            if self.steps[number - 1][2] is before:
                self.steps[number:] = [(step, before, after)]
                return


def first_wrong_pass(
    stages: Stages, inputs: Arrays, wanted: Arrays, bound: float
) -> FaultFinding | None:
    """The pass at fault; None if none is.

    Args:
        inputs, wanted: of the model, and what its outputs should be.
        bound: relative error of an output up to which it is right.
    """
    steps = [step for step in stages.steps if step[1] is not step[2]]
    if stages.steps and _error(stages.steps[0][1], inputs, wanted) > bound:
        sentence = "the graph is wrong as it is read, before any pass"
        return FaultFinding("pass", "import", "", sentence)

    def wrong(number: int) -> bool:
        """Whether the graph after the first `number` passes computes something else."""
        return number > 0 and _error(steps[number - 1][2], inputs, wanted) > bound

    if not steps or not wrong(len(steps)):
        return None
    right, faulty = 0, len(steps)
    while faulty - right > 1:
        middle = (right + faulty) // 2
        right, faulty = (right, middle) if wrong(middle) else (middle, faulty)
    return _described(*steps[faulty - 1], inputs, bound)


def _error(graph: Graph, inputs: Arrays, wanted: Arrays) -> float:
    """Largest relative error of an output; infinite if the graph cannot be computed."""
    try:
        values = Evaluator(graph).values(given_to(graph, inputs), wanted)
        return max((_apart(values[name], value) for name, value in wanted.items()), default=0.0)
    except (TilesmithError, ValueError, KeyError, IndexError, AssertionError, TypeError):
        return np.inf  # a graph that is none: it is no business of this search how it fails


def _apart(value: Any, wanted: Any) -> float:
    """The relative error of a value; infinite where shapes differ."""
    if not is_numeric(wanted):
        return 0.0
    if np.shape(value) != np.shape(wanted):
        return np.inf
    return tensor_error(np.asarray(value), np.asarray(wanted)).max_rel


def given_to(graph: Graph, inputs: Arrays) -> dict[str, Any]:
    """The inputs in the element types that a graph has them in."""
    return {
        info.name: np.asarray(inputs[info.name]).astype(to_numpy(graph.info(info.name).dtype))
        if info.known
        else inputs[info.name]
        for info in graph.inputs
    }


def _described(
    step: Pass, before: Graph, after: Graph, inputs: Arrays, bound: float
) -> FaultFinding:
    gone = _without(before.nodes, after.nodes)
    new = _without(after.nodes, before.nodes)
    tensor, node = _first_wrong(before, after, inputs, bound)
    sources = node.sources if node is not None else ()
    near = [n for n in gone if not sources or set(n.sources) & set(sources)] or gone
    became = [n for n in new if not sources or set(n.sources) & set(sources)] or new
    sentence = (
        f"pass '{step.name}' changes what the model computes: {_names(near)} became "
        f"{_names(became) or 'nothing'}"
    )
    if tensor:
        sentence += f"; the first tensor with other values is '{tensor}'"
    details = {
        "gone": [n.describe() for n in near[:8]],
        "new": [n.describe() for n in became[:8]],
        "workloads": [n.workload.key for n in became[:8] if n.workload is not None],
    }
    return FaultFinding("pass", step.name, tensor, sentence, sources, details)


def _moved(new: Any, old: Any) -> bool:
    """Whether bytes are others on the whole, if by a step alone: a few roundings that fall the
    other way are none."""
    bytes_both = all(getattr(one, "dtype", None) in (np.int8, np.uint8) for one in (new, old))
    return bytes_both and tensor_error(new, old).mean_abs > _MOVED


def _without(nodes: Sequence[Node], others: Sequence[Node]) -> list[Node]:
    known = set(others)
    return [node for node in nodes if node not in known]


def _names(nodes: Sequence[Node]) -> str:
    named = ", ".join(node.describe() for node in nodes[:4])
    return f"{named} and {len(nodes) - 4} more" if len(nodes) > 4 else named


def _first_wrong(
    before: Graph, after: Graph, inputs: Arrays, bound: float
) -> tuple[str, Node | None]:
    """The first tensor of both graphs that has other values in the second, and what writes it."""
    names = [n for node in after.nodes for n in node.writes if n in before.tensors]
    written = {n for node in before.nodes for n in node.writes}
    names = [n for n in names if n in written or n in before.constants]
    try:
        old = Evaluator(before).values(given_to(before, inputs), names)
        for name in names:
            new = Evaluator(after).values(given_to(after, inputs), [name])
            if _apart(new[name], old[name]) > bound or _moved(new[name], old[name]):
                return name, after.producers.get(name)
    except (TilesmithError, ValueError, KeyError, IndexError, AssertionError, TypeError):
        return "", None
    return "", None
