"""A compiled model step by step: which step is wrong on its own inputs, or reads what is no more.

Every step is computed again by reference from what lies in memory just before it. Invariant: a step
is told of only once all before it were right, so that the first is at fault whatever comes of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.bisection.finding import FaultFinding, Part
from tilesmith.capabilities.fault_finding.bisection.unrounded import unrounded
from tilesmith.capabilities.fault_finding.comparison.compare import is_numeric
from tilesmith.capabilities.fault_finding.comparison.tensors import TOLERANCE, WIDER
from tilesmith.capabilities.fault_finding.rounding.local_bytes import bound_of, byte_ratio
from tilesmith.capabilities.fault_finding.rounding.local_ratios import HERE_LIKELY
from tilesmith.capabilities.fault_finding.rounding.ratios import ratio
from tilesmith.capabilities.fault_finding.stepping.errors import tensor_error
from tilesmith.capabilities.fault_finding.stepping.steps import Stepper, stepping
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.host.kernels import run_kernel
from tilesmith.compiler.host.nodes import draws
from tilesmith.compiler.host.reference import run_node
from tilesmith.compiler.passes.elementwise import is_elementwise
from tilesmith.compiler.recipe.layouts import pack, physical_bytes, physical_shape, unpack
from tilesmith.compiler.recipe.program import HeldTensor, Recipe
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.expressions.dtypes import is_floating, is_narrow
from tilesmith.search_space.support.errors import JobError, TilesmithError, VerificationError

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class WrongStep:
    """A kernel that is wrong on its own inputs.

    Attributes:
        node: of the settled graph.
        operands: logical arrays of what it reads, constants too, by tensor.
        ours, wanted: its result and the reference's.
        number: of the step.
        closely: whether it was looked at closely (`is_close`).
    """

    node: Node
    operands: dict[str, NDArray[Any]]
    ours: NDArray[Any]
    wanted: NDArray[Any]
    number: int
    closely: bool = False


def settled_graph(recipe: Recipe, graphs: list[Graph]) -> Graph | None:
    """The one of several settled graphs that a recipe was made of."""
    names = {tensor.name for tensor in recipe.tensors}
    keys = sorted(step.workload for step in recipe.steps if hasattr(step, "workload"))
    for graph in reversed(graphs):
        own = sorted(n.workload.key for n in graph.nodes if n.workload is not None)
        written = {name for node in graph.nodes for name in node.writes}
        if own == keys and written <= names | graph.constants.keys():
            return graph
    return None


class Walk:
    """One walk through a model.

    Args:
        graph: settled, as the recipe was made of it.
        suspect: a tensor that is wrong within the usual tolerance: what writes it is looked at, and
            closely (`is_close`); "": all steps as usual.
    """

    def __init__(self, executable: Executable, graph: Graph, suspect: str = "") -> None:
        self.suspect = suspect
        self.executable, self.recipe, self.graph = executable, executable.recipe, graph
        self.held = {tensor.name: tensor for tensor in self.recipe.tensors}
        self._starting: dict[int, Node] = {}
        self._ending: dict[int, Node] = {}
        last = -1
        for node in graph.nodes:
            if node.kind in ("view", "join"):
                continue
            end = max(self.held[name].step for name in node.writes)
            self._starting[last + 1], self._ending[end], last = node, node, end
        self.reached = 0

    def run(self, inputs: Arrays) -> FaultFinding | WrongStep | None:
        """What is wrong first: a step, or the memory that it reads; None if nothing is."""
        try:
            wrong = self._first(inputs)
        except TilesmithError as error:
            return self._failing(error)
        return self._lost(inputs, *wrong) if isinstance(wrong, tuple) else wrong

    def _first(self, inputs: Arrays) -> WrongStep | tuple[HeldTensor, int] | None:
        """The first wrong step, or the tensor that is lost and the step that reads it."""
        with stepping(self.executable, inputs) as run:
            written = {tensor.name: run.read(tensor) for tensor in run.written}
            operands: dict[str, Any] = {}
            for number in range(len(self.recipe.steps)):
                self.reached = number
                if (node := self._starting.get(number)) is not None:
                    operands = {}
                    for name in node.reads:
                        if name in self.graph.constants:
                            operands[name] = self.graph.constants[name]
                            continue
                        operands[name] = run.read(self.held[name])
                        if name in written and not _same(operands[name], written[name]):
                            return self.held[name], number
                run.advance()
                written |= {tensor.name: run.read(tensor) for tensor in run.written}
                node = self._ending.get(number)
                wrong = None if node is None else self._checked(node, operands, run, number)
                if wrong is not None:
                    return wrong
        return None

    def _failing(self, error: TilesmithError) -> FaultFinding:
        """A step that does not run by itself."""
        step = self.recipe.steps[self.reached]
        name = str(getattr(step, "name", f"step {self.reached}"))
        words = " ".join(str(error).split())[:300]
        sentence = f"kernel '{name}' does not run by itself: {words}"
        if isinstance(error, VerificationError):
            sentence = f"the program of kernel '{name}', by itself, breaks a law: {words}"
        part: Part = "linking" if isinstance(error, VerificationError) else "kernel"
        details = {
            "step": self.reached, "workload": getattr(step, "workload", ""), "error": words,
        }  # fmt: skip
        return FaultFinding(part, name, "", sentence, tuple(getattr(step, "sources", ())), details)

    # -- one step -----------------------------------------------------------------------------
    def _checked(
        self, node: Node, operands: Mapping[str, Any], run: Stepper, number: int
    ) -> WrongStep | None:
        """A step that is done, if it is wrong on its own inputs."""
        closely = self.suspect in node.writes
        if draws(node, self.graph.constants) or (self.suspect and not closely):
            return None
        try:
            wanted = self._wanted(node, operands)
        except JobError:
            return None  # the reference does not compute it
        exact = self._exact(node, operands)
        for name, value in wanted.items():
            ours = run.read(self.held[name])
            if not is_numeric(value) or not is_numeric(ours):
                continue
            if not is_close(self.held[name].dtype, ours, value, exact, closely):
                return WrongStep(node, dict(operands), ours, np.asarray(value), number, closely)
        return None

    def _wanted(self, node: Node, operands: Mapping[str, Any]) -> dict[str, Any]:
        """What a node should write. Elementwise kernels are said in the layout they work in."""
        if not is_elementwise(node):
            return run_node(self.graph, node, operands)
        value = run_kernel(node, self._laid(operands))
        return {node.writes[0]: self._logical(node, value)}

    def _exact(self, node: Node, operands: Mapping[str, Any]) -> NDArray[Any] | None:
        """What a node's bytes are before they are rounded; None of others."""
        if not is_elementwise(node):
            exact = unrounded(node, operands)
            return None if exact is None else exact.reshape(self.graph.info(node.writes[0]).dims)
        exact = unrounded(node, self._laid(operands))
        return None if exact is None else self._logical(node, exact)

    def _laid(self, operands: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._physical(name, value) for name, value in operands.items()}

    def _logical(self, node: Node, value: NDArray[Any]) -> NDArray[Any]:
        """An elementwise kernel's result, from the layout it works in."""
        (result,) = node.writes
        info, layout = self.graph.info(result), self._layout(result)
        laid = value.reshape(physical_shape(layout, info.dims))
        return np.asarray(unpack(layout, laid, info.dims))

    def _layout(self, name: str) -> str:
        return self.held[name].layout if name in self.held else ""

    def _physical(self, name: str, value: NDArray[Any]) -> NDArray[Any]:
        return pack(self._layout(name), value)

    # -- memory -------------------------------------------------------------------------------
    def _lost(self, inputs: Arrays, tensor: HeldTensor, reader: int) -> FaultFinding:
        """Which step changed a tensor before it was read, and whether the plan let it."""
        culprit = self._changed_by(inputs, tensor, reader)
        steps = self.recipe.steps
        named = getattr(steps[culprit], "name", f"step {culprit}")
        reads = getattr(steps[reader], "name", f"step {reader}")
        over = [t for t in self.recipe.tensors if t.step == culprit and _overlap(t, tensor)]
        begin = (
            f"tensor '{tensor.name}' ({_placed(tensor)}) is overwritten by "
            f"'{named}' before '{reads}' reads it"
        )
        details = {"overwritten_by": named, "read_by": reads, "steps": [culprit, reader]}
        if over:
            other = over[0]
            sentence = f"{begin}: the memory plan puts '{other.name}' ({_placed(other)}) over it"
            details["other"] = other.name
            return FaultFinding("memory plan", other.name, tensor.name, sentence, (), details)
        sentence = f"{begin}, and writes outside its own result to do so"
        sources = tuple(getattr(steps[culprit], "sources", ()))
        return FaultFinding("kernel", named, tensor.name, sentence, sources, details)

    def _changed_by(self, inputs: Arrays, tensor: HeldTensor, reader: int) -> int:
        """The step that changed a tensor, after it was written and before `reader`."""
        with stepping(self.executable, inputs) as run:
            run.advance(tensor.step + 1)
            known = run.read(tensor)
            for number in range(tensor.step + 1, len(self.recipe.steps)):
                run.advance()
                if not _same(run.read(tensor), known):
                    return number
        return max(0, reader - 1)


def is_close(
    dtype: str,
    ours: NDArray[Any],
    wanted: NDArray[Any],
    exact: NDArray[Any] | None = None,
    closely: bool = False,
) -> bool:
    """Whether a kernel's result is within what rounding makes of it.

    Args:
        exact: what it is before it is rounded (bytes: in steps), where that is known. Bytes have to
            be rounded as near as the reference's.
        closely: whether narrow floats have to be, too, and a tenth of the tolerance is float32's:
            where sums or several roundings are within the usual, and something is wrong.
    """
    if not is_floating(dtype):
        step = 1.0 if dtype in ("int8", "uint8") else 0.0
        if tensor_error(ours, wanted).max_abs > step:
            return False
        return exact is None or byte_ratio(ours, wanted, exact) <= bound_of(exact.size)
    if tensor_error(ours, wanted).max_rel > TOLERANCE * WIDER.get(dtype, 1.0):
        return False
    if not closely:
        return True
    if exact is not None and is_narrow(dtype):
        return ratio(ours, exact, wanted, dtype) <= HERE_LIKELY
    return tensor_error(ours, wanted).max_rel <= TOLERANCE / 10


def _same(first: Any, second: Any) -> bool:
    if not is_numeric(first) or not is_numeric(second):
        return True
    a, b = np.ascontiguousarray(first), np.ascontiguousarray(second)
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def over_operand(recipe: Recipe, node: Node) -> FaultFinding | None:
    """A result that lies over a part of what its kernel reads; one at the same place is planned."""
    held = {tensor.name: tensor for tensor in recipe.tensors}
    results = [held[name] for name in node.writes if name in held]
    operands = [held[name] for name in node.reads if name in held]
    for result in results:
        for operand in operands:
            if result.place != operand.place and _overlap(result, operand):
                sentence = (
                    f"kernel '{node.name}' is right by itself and wrong in the model: the memory "
                    f"plan puts its result '{result.name}' ({_placed(result)}) over a part of "
                    f"'{operand.name}' ({_placed(operand)}), which it reads meanwhile"
                )
                details = {"overwritten_by": node.name, "read_by": node.name, "other": result.name}
                return FaultFinding(
                    "memory plan", result.name, operand.name, sentence, node.sources, details
                )
    return None


def _placed(tensor: HeldTensor) -> str:
    """Where a tensor lies, for people."""
    return f"{tensor.place.region} + {tensor.place.offset}, {_bytes(tensor)} bytes"


def _bytes(tensor: HeldTensor) -> int:
    return physical_bytes(tensor.layout, tensor.shape or (), tensor.dtype)


def _overlap(first: HeldTensor, second: HeldTensor) -> bool:
    if first.place.region != second.place.region or first.place.region == "value":
        return False
    a, b = first.place.offset, second.place.offset
    return a < b + _bytes(second) and b < a + _bytes(first)
