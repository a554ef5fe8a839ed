"""A model's tensors by a reference, node by node: all of them, or some from others that are given.

Nodes are computed in onnxruntime where it has them, or by ONNX's reference implementation (its gaps
filled); kernels by their template's reference. What is computed in float64 has its weights and
inputs cast, and every attribute that names an element type with them.

Invariant: no schedule and no generated code has a part in it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.graph.value_types import is_value_type
from tilesmith.compiler.host.nodes import node_proto
from tilesmith.compiler.host.reference import run_node
from tilesmith.compiler.host.runtime import Session, session_of
from tilesmith.search_space.expressions.dtypes import STORED
from tilesmith.search_space.support.errors import JobError

Arrays = Mapping[str, Any]
Rounding = Callable[[str, Any], Any]
"""What a tensor (by name) is rounded to once it is computed."""


def as_it_is(name: str, value: Any) -> Any:
    """No rounding."""
    return value


class Evaluator:
    """The tensors of one graph, by reference.

    Args:
        graph: at any stage of compilation.
        rounding: of every tensor, constants and inputs too.
        sessions: whether nodes may be computed in onnxruntime.
        threads: that it may use.
    """

    def __init__(
        self, graph: Graph, rounding: Rounding = as_it_is, sessions: bool = True, threads: int = 1
    ) -> None:
        self.graph = graph
        self._rounding = rounding
        self._sessions = sessions
        self._threads = threads
        self._known: dict[Node, Session | None] = {}
        self._constants: dict[str, Any] = {}

    def values(self, inputs: Arrays, wanted: Iterable[str]) -> dict[str, Any]:
        """Tensors by name, from the graph's inputs.

        Raises:
            JobError: a node cannot be computed.
        """
        return self.between(inputs, wanted)

    def between(self, given: Arrays, wanted: Iterable[str]) -> dict[str, Any]:
        """Tensors by name, from others: a tensor that is given is not computed.

        Of what is computed on the way nothing is kept longer than a node reads it.

        Raises:
            JobError: a node cannot be computed, or something that it takes is missing.
        """
        wanted = set(wanted)
        needed = self._needed(given, wanted)
        last = {name: i for i, node in enumerate(needed) for name in node.reads}
        values: dict[str, Any] = {n: self._rounding(n, v) for n, v in given.items()}
        tensors: dict[str, Any] = {name: values[name] for name in wanted & values.keys()}
        for number, node in enumerate(needed):
            results = self._run(node, values)
            for name, value in results.items():
                values[name] = self._rounding(name, value)
                if name in wanted:
                    tensors[name] = values[name]
            for name in {*node.reads, *results}:
                if last.get(name, -1) <= number:
                    values.pop(name, None)
        for name in wanted - tensors.keys():
            if name in self.graph.constants:
                tensors[name] = self._constant(name)
        return tensors

    def _needed(self, given: Arrays, wanted: set[str]) -> list[Node]:
        """The nodes that lead from what is given to what is wanted, in order."""
        waiting = [name for name in wanted if name not in given]
        needed: set[Node] = set()
        while waiting:
            name = waiting.pop()
            node = self.graph.producers.get(name)
            if node is None:
                if name not in self.graph.constants:
                    raise JobError(f"tensor '{name}' of '{self.graph.title}' is not given")
            elif node not in needed:
                needed.add(node)
                waiting += [name for name in node.reads if name not in given]
        return [node for node in self.graph.nodes if node in needed]

    def _constant(self, name: str) -> Any:
        if self._rounding is as_it_is:
            return self.graph.constants[name]
        if name not in self._constants:
            self._constants[name] = self._rounding(name, self.graph.constants[name])
        return self._constants[name]

    def _run(self, node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
        read = {
            name: values[name] if name in values else self._constant(name) for name in node.reads
        }
        session = self._session(node)
        results = None if session is None else session.run(read)
        return run_node(self.graph, node, read) if results is None else results

    def _session(self, node: Node) -> Session | None:
        if not self._sessions or node.kind != "host":
            return None
        if node not in self._known:
            self._known[node] = self._made(node)
        return self._known[node]

    def _made(self, node: Node) -> Session | None:
        inputs = [self.graph.info(name) for name in dict.fromkeys(node.reads)]
        outputs = [self.graph.info(name) for name in node.writes]
        known = (*STORED, "string")
        if any(i.dtype not in known and not is_value_type(i.dtype) for i in (*inputs, *outputs)):
            return None
        opsets = self.graph.opsets
        proto = node_proto(node, dict(opsets))
        return session_of(proto, inputs, outputs, {}, opsets, self._threads)
