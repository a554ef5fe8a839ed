"""`Graph`: a model as the compiler sees it: nodes in topological order over named tensors.

Between import and lowering a node is an ONNX operator (or one of the few activations the passes
recognise, domain "tilesmith"). Lowering turns nodes into *kernels* (they carry a `Workload` and
read exactly its operands, in its order), *views* (same bytes, another shape or an offset) and
leaves the rest to the *host*.

Invariants: frozen; every tensor is written once; a node reads only graph inputs, constants and
outputs of nodes before it; every tensor named anywhere has a `TensorInfo`; `shape is None` marks a
tensor whose shape only running the model tells, and such tensors are touched by host nodes only.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import STORED, size_of
from tilesmith.search_space.workloads.workload import Workload, shape_text

INTERNAL_DOMAIN = "tilesmith"
"""Domain of operators that passes create and ONNX (at the model's opset) may not have."""

VIEW = "View"
"""Operator of a node that renames bytes: attribute `offset` counts elements from its input's
start."""

JOIN = "Join"
"""Operator of a node whose output is its inputs, one after the other in memory (a Concat along the
outermost axis longer than one): producers write into their part of it, nothing is copied."""

REPEAT = "Repeat"
"""Operator of a control node that runs its body again and again. Attributes: `trips`, how often at
most; `limit`, the number of the input that says how often (-1: none); `test`, the body's entry that
ends it as soon as it is false ("": none)."""

ENDLESS = 1 << 62
"""`trips` of a loop of which nothing is known."""

BRANCH = "Branch"
"""Operator of a control node that runs its first body if its first input is true, else its second.
"""

CHECK = "CheckShape"
"""Operator of a node that passes its input on, run by the host: its output has the shape and
element type that the model declares (attributes `shape` and `dtype`, as text) of a `tensor`, which
nothing but running the model can confirm; a contradiction is an error."""

KERNEL = "Kernel"
"""Operator of a node that carries a workload."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's name, element type ("" if Tilesmith has no name for it) and shape (None:
    unknown). Values of the host's alone have a type of `value_types`."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def known(self) -> bool:
        """Whether shape and element type are both known before running: it may lie in memory."""
        return self.shape is not None and self.dtype in STORED

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of a tensor that is known."""
        assert self.shape is not None, self.name
        return self.shape

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        return self.elements * size_of(self.dtype)


@dataclass(frozen=True)
class Subgraph:
    """The body of an If, Loop or Scan attribute: a serialised `GraphProto`, run on the host as it
    is."""

    serialised: bytes


AttributeValue = Any
"""int, float, str, a tuple of those, a numpy array (a tensor attribute) or a `Subgraph`."""


@dataclass(frozen=True)
class Carried:
    """A tensor of a body that an iteration hands to the next.

    Attributes:
        initial: number of the node's input that it is at first; -1: a flag that is set.
        entry, exit: the body's input and output.
        final: number of the node's output that it is at last; -1: none.
    """

    initial: int
    entry: str
    exit: str
    final: int = -1


@dataclass(frozen=True)
class Row:
    """A part of a tensor outside that is a tensor of a body, another one in each iteration.

    Attributes:
        outside: number of the node's input (what is read), or output (what is written).
        inside: the body's input or output, as large as the part.
        start: the part in the first iteration; parts lie one after the other.
        step: parts to the next iteration's.
    """

    outside: int
    inside: str
    start: int = 0
    step: int = 0


@dataclass(frozen=True, eq=False)
class Body:
    """A graph that a control node runs: lowered, its tensors' names its own.

    Tensors outside are named by their number among the node's inputs or outputs, since passes
    rename them. Every input of the graph is one of these; its outputs are exits and rows.

    Attributes:
        graph: what is run; nothing of it is on the host.
        shared: (number of the node's input, input of the graph): the same in all iterations.
        carried: from iteration to iteration.
        reads, writes: a part in each iteration.
        counter: the input that holds the iteration's number, int64; "" without one.
        called: what sources of the graph's nodes are called here, as equal bodies share a graph.
    """

    graph: "Graph"
    shared: tuple[tuple[int, str], ...] = ()
    carried: tuple[Carried, ...] = ()
    reads: tuple[Row, ...] = ()
    writes: tuple[Row, ...] = ()
    counter: str = ""
    called: Mapping[str, str] = field(default_factory=dict)


NodeKind = Literal["kernel", "view", "join", "control", "host"]


@dataclass(frozen=True, eq=False)
class Node:
    """One operation. Nodes compare by identity; `replace` makes changed copies.

    Attributes:
        operator: ONNX operator type, or `VIEW`, `JOIN`, `KERNEL`, or an internal activation.
        inputs: tensor names; "" for an optional input left out.
        outputs: tensor names; "" for an optional output left out.
        name: for messages and reports.
        domain: "" for ONNX's own operators, `INTERNAL_DOMAIN` for ours.
        attributes: (name, value) pairs, sorted by name.
        captures: outer tensors read by subgraph attributes.
        workload: what a kernel computes; `inputs` then are the template's operands in order.
        bodies: what a control node runs.
        sources: names of the model's nodes, as its file has them, whose work it does; none for
            what only converts between others (`compiler.graph.sources` says how they are kept).
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str = ""
    domain: str = ""
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    captures: tuple[str, ...] = ()
    workload: Workload | None = None
    bodies: tuple[Body, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def kind(self) -> NodeKind:
        if self.workload is not None:
            return "kernel"
        if self.bodies:
            return "control"
        if self.domain == INTERNAL_DOMAIN and self.operator in (VIEW, JOIN):
            return "view" if self.operator == VIEW else "join"
        return "host"

    @cached_property
    def signature(self) -> str:
        """What kind of node it is, in one word: `Conv`, `tilesmith.View`, `kernel.matmul`."""
        if self.workload is not None:
            return f"kernel.{self.workload.operator}"
        return f"{self.domain}.{self.operator}" if self.domain else self.operator

    @property
    def work(self) -> Workload:
        """The workload of a kernel."""
        assert self.workload is not None, self.describe()
        return self.workload

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Every tensor it reads, captures included, "" left out."""
        return tuple(name for name in (*self.inputs, *self.captures) if name)

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Every tensor it writes."""
        return tuple(name for name in self.outputs if name)

    @cached_property
    def _attributes(self) -> dict[str, AttributeValue]:
        return dict(self.attributes)

    def attribute(self, name: str, default: AttributeValue = None) -> AttributeValue:
        return self._attributes.get(name, default)

    def input(self, position: int) -> str:
        """The input at `position`, or "" where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def is_onnx(self, *operators: str) -> bool:
        """Whether it is (still) one of these ONNX operators."""
        return self.workload is None and self.domain == "" and self.operator in operators

    def describe(self) -> str:
        """Return the node's operator and name as messages show it: `Conv 'conv1'`."""
        return f"{self.operator} '{self.name or (self.writes or ('?',))[0]}'"


def attributes_of(**values: AttributeValue) -> tuple[tuple[str, AttributeValue], ...]:
    """Attributes in the form `Node` keeps them."""
    return tuple(sorted(values.items()))


def view(source: str, result: str, name: str = "", offset: int = 0) -> Node:
    """A node that gives `source`'s bytes, from element `offset` on, another name and shape."""
    return Node(
        VIEW, (source,), (result,), name or result, INTERNAL_DOMAIN, attributes_of(offset=offset)
    )


def check_of(source: str, declared: TensorInfo) -> Node:
    """A node that gives `source` the name, shape and element type of `declared`, or fails."""
    stated = attributes_of(
        shape=shape_text(declared.dims), dtype=declared.dtype, tensor=declared.name
    )
    return Node(CHECK, (source,), (declared.name,), declared.name, INTERNAL_DOMAIN, stated)


def kernel(workload: Workload, inputs: Iterable[str], output: str, name: str) -> Node:
    """A node that runs `workload` on `inputs` (its operands, in order)."""
    return Node(
        KERNEL, tuple(inputs), (output,), name or output, INTERNAL_DOMAIN, workload=workload
    )


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole model. Build it with `import_model`; change it with `rewrite.Rewriter`.

    Attributes:
        name: the model's name.
        inputs: what a caller gives, in order.
        outputs: what a caller gets, in order.
        nodes: in topological order.
        constants: known arrays by tensor name.
        tensors: every tensor's info by name.
        opsets: (domain, version) pairs the ONNX nodes are written in.
        converted: by tensor that kernels hold in another element type than the caller and host
            nodes see: the type that these see. Values are converted on the way.
        updates: outputs by the input whose array they are to be in after a run.
        narrow: the model's own nodes (`Node.sources`) that it computes in bfloat16, beside others
            in float32.
        file: name of the file it was read from, "" if it came from none.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, NDArray[Any]]
    tensors: Mapping[str, TensorInfo]
    opsets: tuple[tuple[str, int], ...] = field(default=())
    converted: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)
    narrow: frozenset[str] = frozenset()
    file: str = ""

    @property
    def title(self) -> str:
        """What messages call it: its file's name, or its own where it came of none."""
        return self.file or self.name

    @cached_property
    def producers(self) -> dict[str, Node]:
        """The node that writes each tensor."""
        return {name: node for node in self.nodes for name in node.writes}

    @cached_property
    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """The nodes that read each tensor, each node once."""
        readers: dict[str, dict[Node, None]] = {}
        for node in self.nodes:
            for name in node.reads:
                readers.setdefault(name, {})[node] = None
        return {name: tuple(nodes) for name, nodes in readers.items()}

    def inside(self) -> "Iterator[tuple[Graph, int]]":
        """Yield the graph of every body, nested ones too, and how often it runs; 1 if that is not
        known."""
        for node in self.nodes:
            trips = int(node.attribute("trips", 1))
            trips = trips if trips < ENDLESS else 1
            for body in node.bodies:
                yield body.graph, trips
                yield from ((graph, trips * often) for graph, often in body.graph.inside())

    @cached_property
    def output_names(self) -> frozenset[str]:
        return frozenset(info.name for info in self.outputs)

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators."""
        return dict(self.opsets).get("", 1)

    def info(self, name: str) -> TensorInfo:
        return self.tensors[name]

    def with_(self, **changes: Any) -> "Graph":
        """A changed copy."""
        return replace(self, **changes)

    def with_nodes(self, nodes: Iterable[Node]) -> "Graph":
        """A copy with other nodes; this very graph if they are its own."""
        changed = tuple(nodes)
        return self if changed == self.nodes else self.with_(nodes=changed)
