"""A model at one choice of its sizes: what of it is data, and what follows from the sizes alone.

    position = Range(0, Shape(ids)[1])      follows from the sizes: computed once for each of them
    hidden = Gather(table, ids)             data: computed in every run

Passes work on the data (`opened`). Tensors that follow from the sizes become constants of its graph
where they are the same at every size, or where a node has to know them (the shape of a Reshape,
whose numbers become formulas later on), and inputs elsewhere: what passes must not fold.

    mask = Where(LessOrEqual(...), 0, -inf)      before: a constant at every size, never the same
    input mask                                   after: given to the graph, computed once for a size

Invariants: nodes that follow from the sizes read only each other and constants, in order; what the
model computes is the same as `import_model` gives.
"""

from collections.abc import Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.compiler.graph.operator_traits import numbers
from tilesmith.compiler.host.nodes import HostFunction, foldable
from tilesmith.compiler.onnx.files.file import ModelFile
from tilesmith.compiler.onnx.importer import Imported, import_file
from tilesmith.compiler.varying.sizes.declared import Declared
from tilesmith.compiler.varying.sizes.fitting import Point, text_of
from tilesmith.search_space.support.errors import JobError, ModelError

_COMPARED = 1 << 20
"""Elements up to which values are computed to see whether they vary with the sizes."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """See the module's docstring.

    Attributes:
        point: the sizes.
        imported: the model as read there.
    """

    point: Point
    imported: Imported

    @cached_property
    def sized(self) -> dict[str, Node]:
        """The node that gives each tensor that follows from the sizes alone, in order."""
        givers: dict[str, Node] = {}
        for node in self.imported.evaluated:
            if node.is_onnx("Shape", "Size") or any(name in givers for name in node.reads):
                givers |= dict.fromkeys(node.writes, node)
        fixed = set(self.imported.values)
        for node in self.graph.nodes:
            if not foldable(node) or any(not self.graph.info(n).known for n in node.writes):
                continue
            if all(name in givers or name in fixed for name in node.reads):
                if any(name in givers for name in node.reads):
                    givers |= dict.fromkeys(node.writes, node)
                else:
                    fixed.update(node.writes)
        return givers

    @property
    def graph(self) -> Graph:
        return self.imported.graph

    @cached_property
    def data(self) -> tuple[Node, ...]:
        """What every run computes, and what follows from constants alone."""
        return tuple(n for n in self.graph.nodes if n.writes[0] not in self.sized)

    @cached_property
    def frontier(self) -> tuple[str, ...]:
        """Tensors that follow from the sizes and are read by data, or given to the caller."""
        read = (name for node in self.data for name in node.reads)
        names = (*read, *(info.name for info in self.graph.outputs))
        return tuple(name for name in dict.fromkeys(names) if name in self.sized)

    @cached_property
    def _values(self) -> dict[str, Any]:
        return dict(self.imported.values)

    def value(self, name: str) -> NDArray[Any] | None:
        """What a tensor that follows from the sizes holds; None for a large one.

        Raises:
            JobError: it cannot be computed.
        """
        if name not in self._values:
            info = self.graph.tensors.get(name)
            if info is None or not info.known or info.elements > _COMPARED:
                return None
            node = self.sized.get(name) or self.graph.producers[name]
            given = {read: self.value(read) for read in node.reads}
            if any(value is None for value in given.values()):
                return None
            self._values.update(HostFunction.of(node, self.graph.opsets).run(given))
        array = self._values[name]
        return array if isinstance(array, np.ndarray) else None

    def shape(self, name: str) -> tuple[int, ...] | None:
        info = self.graph.tensors.get(name)
        if info is not None:
            return info.shape
        return tuple(self.imported.values[name].shape) if name in self.imported.values else None


def taken(file: ModelFile, declared: Declared, point: Point) -> Snapshot:
    """The model at some sizes.

    Raises:
        ModelError: the model does not fit them, or is wrong.
    """
    try:
        return Snapshot(dict(point), import_file(file, declared.shapes(point)))
    except ModelError as error:
        raise ModelError(f"'{file.name}' does not work at {text_of(point)}: {error}") from error


def is_structure(node: Node, position: int, snapshot: Snapshot) -> bool:
    """Whether an input of a node decides about shapes, so that the compiler has to know it."""
    if node.is_onnx("Gather") and position == 1:
        return snapshot.shape(node.inputs[1]) in ((), (1,))
    return node.domain == "" and position in numbers("sizes").get(node.operator, ())


def varying(snapshots: tuple[Snapshot, ...]) -> frozenset[str]:
    """Tensors of the frontier that are not the same at all snapshots."""
    return frozenset(n for n in snapshots[0].frontier if not _is_same(n, snapshots))


def _is_same(name: str, snapshots: tuple[Snapshot, ...]) -> bool:
    if len({snapshot.shape(name) for snapshot in snapshots}) > 1:
        return False
    try:
        values = [snapshot.value(name) for snapshot in snapshots]
    except JobError:
        return False
    first = values[0]
    return first is not None and all(
        value is not None
        and value.dtype == first.dtype
        and np.array_equal(value, first, equal_nan=value.dtype.kind == "f")
        for value in values
    )


def opened(snapshot: Snapshot, varies: Set[str]) -> Graph:
    """The graph that passes work on.

    Args:
        varies: tensors of the frontier that differ from size to size.

    Raises:
        ModelError: a shape follows from the sizes that cannot be computed.
    """
    graph = snapshot.graph
    tensors = dict(graph.tensors)
    constants = {n: v for n, v in snapshot.imported.values.items() if n in graph.constants}
    given: dict[str, TensorInfo] = {}
    nodes: list[Node] = []
    for node in snapshot.data:
        reads = list(node.inputs)
        for position, name in enumerate(node.inputs):
            if name not in snapshot.sized:
                continue
            if name not in varies or is_structure(node, position, snapshot):
                own = f"{name}.known" if name in varies else name
                constants[own] = _value(snapshot, name)
                tensors[own] = replace(graph.tensors[name], name=own)
                reads[position] = own
            else:
                given[name] = graph.tensors[name]
        given |= {n: graph.tensors[n] for n in node.captures if n in snapshot.sized}
        nodes.append(node if tuple(reads) == node.inputs else replace(node, inputs=tuple(reads)))
    for info in graph.outputs:
        if info.name in snapshot.sized:
            given[info.name] = info
    named = {name for node in nodes for name in (*node.reads, *node.writes)} | {*given}
    named |= {info.name for info in (*graph.inputs, *graph.outputs)}
    return graph.with_(
        inputs=(*graph.inputs, *given.values()),
        nodes=tuple(nodes),
        constants={name: v for name, v in constants.items() if name in named - given.keys()},
        tensors={name: info for name, info in tensors.items() if name in named},
    )


def _value(snapshot: Snapshot, name: str) -> NDArray[np.generic]:
    array = snapshot.value(name)
    if array is None:
        raise ModelError(
            f"'{name}' of '{snapshot.graph.name}' decides about shapes and cannot be computed of "
            "the sizes alone; compile the model for one size of each"
        )
    return array
