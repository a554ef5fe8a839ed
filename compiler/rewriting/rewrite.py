"""`Rewriter`: the one way passes change a graph.

It keeps producers and consumers up to date while nodes come and go, so that a pass is a loop over
nodes with local questions and local changes. Invariants: graph inputs and outputs keep their names;
`finish` returns the *same* graph object when nothing was changed, else a new one in topological
order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.compiler.graph.sources import inherited
from tilesmith.compiler.rewriting.rounds import Rounds
from tilesmith.search_space.support.errors import VerificationError

_MOST = 1 << 12
"""Nodes that a pass may look at for each that there was: one operator becomes hundreds at most."""


class Rewriter:
    """A graph under change."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.changed = False
        self._fresh = 0
        self._came = list(graph.nodes)

    # -- copies of the graph's own, made when first asked for: most passes have nothing to do -----
    @cached_property
    def constants(self) -> dict[str, NDArray[Any]]:
        return dict(self.graph.constants)

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        return dict(self.graph.tensors)

    @cached_property
    def _nodes(self) -> dict[Node, None]:
        return dict.fromkeys(self.graph.nodes)

    @cached_property
    def _order(self) -> dict[Node, float]:
        return {node: i for i, node in enumerate(self.graph.nodes)}

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return dict(self.graph.producers)

    @cached_property
    def _consumers(self) -> dict[str, dict[Node, None]]:
        return {name: dict.fromkeys(nodes) for name, nodes in self.graph.consumers.items()}

    # -- questions ----------------------------------------------------------------------------
    def nodes(self) -> Iterator[Node]:
        """Every node once, those that come while iterating included, those removed left out."""
        seen: set[Node] = set()
        rounds = Rounds(f"a pass over '{self.graph.title}'", _MOST * (len(self._nodes) + 1))
        for node in self._came:  # which grows
            if node in self._nodes and node not in seen:
                rounds.another()
                seen.add(node)
                yield node

    def alive(self, node: Node) -> bool:
        return node in self._nodes

    def producer(self, name: str, *operators: str) -> Node | None:
        """The node that writes a tensor; None where it is of none of these ONNX operators."""
        node = self._producers.get(name)
        return node if node is None or not operators or node.is_onnx(*operators) else None

    def consumers(self, name: str) -> tuple[Node, ...]:
        return tuple(self._consumers.get(name, ()))

    def constant(self, name: str) -> NDArray[Any] | None:
        return self.constants.get(name)

    def info(self, name: str) -> TensorInfo:
        return self.tensors[name]

    def shapes_known(self, node: Node) -> bool:
        """Whether the shapes of all that a node reads and writes are known before running: a file
        may declare what comes of tensors whose shapes only a run tells."""
        names = (*node.reads, *node.writes)
        return all(self.tensors[name].shape is not None for name in names)

    def is_float(self, node: Node) -> bool:
        """Whether a node's one result is float32 of known shape."""
        infos = [self.tensors[name] for name in node.writes]
        return len(infos) == 1 and infos[0].known and infos[0].dtype == "float32"

    def is_output(self, name: str) -> bool:
        return name in self.graph.output_names

    def only_consumer(self, name: str) -> Node | None:
        """The single reader of a tensor that is no graph output, else None."""
        readers = self._consumers.get(name, {})
        return next(iter(readers)) if len(readers) == 1 and not self.is_output(name) else None

    # -- changes ------------------------------------------------------------------------------
    def fresh(self, base: str) -> str:
        """A tensor name not in use, made from `base`."""
        while True:
            self._fresh += 1
            name = f"{base}.{self._fresh}"
            if name not in self.tensors:
                return name

    def add_tensor(self, base: str, dtype: str, shape: tuple[int, ...]) -> str:
        """Declare a new tensor; returns its name."""
        name = self.fresh(base)
        self.tensors[name] = TensorInfo(name, dtype, shape)
        return name

    def add_constant(self, base: str, value: NDArray[Any], dtype: str) -> str:
        """Declare a new constant; returns its name."""
        name = self.add_tensor(base, dtype, tuple(value.shape))
        value.setflags(write=False)
        self.constants[name] = value
        return name

    def remove(self, node: Node) -> None:
        self.changed = True
        del self._nodes[node]
        for name in node.writes:
            del self._producers[name]
        for name in set(node.reads):
            self._consumers[name].pop(node)

    def replace(self, old: Node | Iterable[Node], *new: Node) -> tuple[Node, ...]:
        """Put `new` nodes where the (last of the) `old` ones stood; they inherit their sources.

        Returns the nodes that are there now: those that inherited are others than were given.
        """
        olds = [old] if isinstance(old, Node) else list(old)
        place = max(self._order[node] for node in olds)
        new = inherited(sorted(olds, key=self._order.__getitem__), new, self._producers)
        for node in olds:
            self.remove(node)
        for step, node in enumerate(new):
            self._nodes[node] = None
            self._came.append(node)
            self._order[node] = place + step * 1e-6
            for name in node.writes:
                self._producers[name] = node
            for name in node.reads:
                self._consumers.setdefault(name, {})[node] = None
        return new

    def make_constant(self, name: str, value: NDArray[Any]) -> None:
        """Turn a tensor whose producer is gone into a constant."""
        assert name not in self._producers
        value = value.view()
        value.setflags(write=False)
        self.constants[name] = value
        self.changed = True

    def redirect(self, old: str, new: str) -> bool:
        """Let everything that reads `old` read `new`; the producer of `old` must be gone.

        A graph output keeps its name: then `new` is renamed to `old` at its producer instead.
        Returns False, changing nothing, where that cannot be (a graph output that would have to be
        a graph input, a constant or another output).
        """
        if self.is_output(old):
            producer = self.producer(new)
            if producer is None or self.is_output(new):
                return False
            outputs = tuple(old if name == new else name for name in producer.outputs)
            self.replace(producer, replace(producer, outputs=outputs))
            old, new = new, old
        for node in self.consumers(old):
            inputs = tuple(new if name == old else name for name in node.inputs)
            captures = tuple(new if name == old else name for name in node.captures)
            assert captures == node.captures, "a captured tensor cannot be renamed"
            self.replace(node, replace(node, inputs=inputs))
        self.changed = True
        return True

    def captured(self, name: str) -> bool:
        """Whether a subgraph reads the tensor by name, so that it must keep its name."""
        return any(name in node.captures for node in self.consumers(name))

    def bypass(self, node: Node, source: str) -> bool:
        """Drop a node of one output that only passes `source` on; False where it has to stay."""
        (result,) = node.writes
        blocked = self.captured(result) or self.captured(source)
        if self.is_output(result):
            blocked |= self.producer(source) is None or self.is_output(source)
        if blocked:
            return False
        self.remove(node)
        return self.redirect(result, source)

    def finish(self) -> Graph:
        """The changed graph (the very same object if nothing changed), dead constants dropped."""
        if not self.changed:
            return self.graph
        nodes = self._sorted()
        used = {name for node in nodes for name in node.reads} | set(self.graph.output_names)
        named = used | {name for node in nodes for name in node.writes}
        named |= {info.name for info in self.graph.inputs}
        return self.graph.with_(
            nodes=nodes,
            constants={name: value for name, value in self.constants.items() if name in used},
            tensors={name: info for name, info in self.tensors.items() if name in named},
        )

    def _sorted(self) -> tuple[Node, ...]:
        """Topological, otherwise in the order the nodes stood (depth first, no recursion)."""
        done: dict[Node, None] = {}
        opened: set[Node] = set()
        for root in sorted(self._nodes, key=self._order.__getitem__):
            stack = [root]
            while stack:
                node = stack[-1]
                waiting = [p for n in node.reads if (p := self._producers.get(n)) and p not in done]
                if node in done or not waiting:
                    done[stack.pop()] = None
                    continue
                opened.add(node)
                if round_ := next((p for p in waiting if p in opened), None):
                    raise VerificationError(
                        f"{round_.describe()} of '{self.graph.title}' would need its own result; "
                        "this is a fault of a pass: 'tilesmith compile MODEL --verify-passes' "
                        "says of which"
                    )
                stack.extend(reversed(waiting))
        return tuple(done)
