"""The form a model has in a region: what is data, what follows from the sizes, as formulas.

It is found from a few points and checked at others, on the model as it was imported, where every
shape and every decision that the sizes make shows: an axis of one that is squeezed away, a slice
that ends at 512, a mask that is another from some size on. What passes make of it afterwards holds
at every size of the region, for they see what is equal at all points only.

Invariant: at every point checked the model imports as the form says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.onnx.files.file import ModelFile
from tilesmith.compiler.recipe.variants import Vector
from tilesmith.compiler.varying.sizes.declared import Declared
from tilesmith.compiler.varying.sizes.fitting import STEPS, Fitter, Point
from tilesmith.compiler.varying.sizes.regions import Region, neighbours
from tilesmith.compiler.varying.sizes.snapshot import Snapshot, opened, taken, varying
from tilesmith.compiler.varying.sizes.unify import NotAlikeError, VaryingGraph, unified
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import JobError, ModelError

_SHORT = 64
"""Elements up to which a tensor of integers is written as formulas."""


@dataclass(frozen=True, eq=False)
class Form:
    """See the module's docstring.

    Attributes:
        snapshots: the model at the points that formulas come from.
        varies: tensors that follow from the sizes, are not the same everywhere and are read.
        graphs: what passes work on, at each point.
        imported: the same as formulas.
        vectors: short tensors of integers that follow from the sizes, as formulas, by name.
        prologue: nodes that compute the inputs that passes were given, in order.
    """

    snapshots: tuple[Snapshot, ...]
    varies: frozenset[str]
    graphs: tuple[Graph, ...]
    fitter: Fitter
    imported: VaryingGraph
    vectors: dict[str, Vector]
    prologue: tuple[Node, ...]

    @property
    def given(self) -> tuple[str, ...]:
        """Inputs of the graphs that are computed of the sizes."""
        mine = {info.name for info in self.snapshots[0].graph.inputs}
        return tuple(i.name for i in self.graphs[0].inputs if i.name not in mine)

    def check(self, snapshot: Snapshot) -> None:
        """Raise `NotAlikeError` where the model has another form at this point."""
        try:
            graph = opened(snapshot, self.varies)
        except (ModelError, JobError) as error:
            raise NotAlikeError(str(error)) from error
        point, expected = snapshot.point, self.graphs[0]
        if [_sketch(n) for n in graph.nodes] != [_sketch(n) for n in expected.nodes]:
            raise NotAlikeError("it has other operators")
        for name, shape in self.imported.shapes.items():
            here = graph.tensors[name].shape if name in graph.tensors else None
            if shape is not None and here != tuple(e.evaluate(point) for e in shape):
                raise NotAlikeError(f"'{name}' has the shape {here}")
        for name, vector in self.vectors.items():
            value = snapshot.value(name)
            if value is None or not np.array_equal(value, valued(vector, point)):
                raise NotAlikeError(f"'{name}' holds other numbers")
        for name, value in expected.constants.items():
            if name.removesuffix(".known") not in self.vectors and not _same(
                value, graph.constants.get(name)
            ):
                raise NotAlikeError(f"the constant '{name}' differs")
        nodes, _ = _prologue(snapshot, self.given, self.vectors)
        if [_sketch(n) for n in nodes] != [_sketch(n) for n in self.prologue]:
            raise NotAlikeError("what follows from the sizes is computed otherwise")


def form_at(file: ModelFile, declared: Declared, region: Region, points: Sequence[Point]) -> Form:
    """The form a model has at some points of a region.

    Where strides leave several quotients possible, the sizes next to each other are looked at, too.

    Raises:
        NotAlikeError: it has several.
        ModelError: the model does not fit a point.
    """
    snapshots = tuple(taken(file, declared, point) for point in points)
    names = [s.name for s in declared.sizes if len({p[s.name] for p in points}) > 1]
    try:
        form, unsure = _form(snapshots, Fitter(points, names), len(points))
    except NotAlikeError:
        if len(points) == 1:
            raise
        form, unsure = None, dict.fromkeys(names, STEPS)
    if unsure:
        more = [
            point
            for name, divisor in unsure.items()
            for point in neighbours(region, points[0], name, divisor + 1)
        ]
        snapshots += tuple(taken(file, declared, point) for point in more)
        form, _ = _form(snapshots, Fitter((*points, *more), names), len(points))
    assert form is not None
    return form


def _form(
    snapshots: tuple[Snapshot, ...], fitter: Fitter, count: int
) -> tuple[Form | None, dict[str, int]]:
    """The form at all snapshots, of which the first `count` are what passes work on; and sizes
    whose formulas are not sure, with their divisors."""
    for snapshot in snapshots[1:]:
        if snapshot.frontier != snapshots[0].frontier:
            raise NotAlikeError("what follows from the sizes differs")
    varies = varying(snapshots) if len(snapshots) > 1 else frozenset()
    graphs = tuple(opened(snapshot, varies) for snapshot in snapshots)
    structure = {n.removesuffix(".known") for n in graphs[0].constants if n.endswith(".known")}
    vectors = _vectors(snapshots, fitter)
    if missing := sorted(structure & varies - vectors.keys()):
        raise NotAlikeError(f"'{missing[0]}' is no formula of the sizes")
    hidden = {f"{name}.known" for name in structure & vectors.keys()}
    imported = unified([_without(graph, hidden) for graph in graphs], fitter)
    given = [i.name for i in graphs[0].inputs if i.name in snapshots[0].sized]
    prologue, used = _prologue(snapshots[0], given, vectors)
    kept = {name: v for name, v in vectors.items() if name in used or name in structure}
    known = [extent for shape in imported.shapes.values() for extent in shape or ()]
    known += [entry for vector in kept.values() for entry in vector.entries]
    later = Fitter(fitter.points[:count], fitter.names, known)
    form = Form(snapshots[:count], varies, graphs[:count], later, imported, kept, prologue)
    return form, fitter.unsure


def _without(graph: Graph, names: set[str]) -> Graph:
    return graph.with_(constants={n: v for n, v in graph.constants.items() if n not in names})


def _vectors(snapshots: Sequence[Snapshot], fitter: Fitter) -> dict[str, Vector]:
    """Tensors that follow from the sizes and can be written as formulas."""
    vectors: dict[str, Vector] = {}
    for name in snapshots[0].sized:
        shapes = {snapshot.shape(name) for snapshot in snapshots}
        if len(shapes) > 1 or None in shapes:
            continue
        try:
            values = [snapshot.value(name) for snapshot in snapshots]
        except JobError:
            continue
        first = values[0]
        if first is None or first.dtype.kind not in "iu" or first.size > _SHORT:
            continue
        columns = zip(*(v.reshape(-1).tolist() for v in values if v is not None), strict=True)
        entries = [fitter.fit(column) for column in columns]
        if all(entry is not None for entry in entries):
            dtype = str(first.dtype)
            kept = tuple(entry for entry in entries if entry is not None)
            vectors[name] = Vector(name, dtype, tuple(first.shape), kept)
    return vectors


def valued(vector: Vector, point: Point) -> NDArray[Any]:
    """A vector's numbers at some sizes."""
    numbers = [int(entry.evaluate(point)) for entry in vector.entries]
    return np.array(numbers, dtype=to_numpy(vector.dtype)).reshape(vector.shape)


def _prologue(
    snapshot: Snapshot, wanted: Sequence[str], vectors: dict[str, Vector]
) -> tuple[tuple[Node, ...], set[str]]:
    """Nodes that compute `wanted`, in order, and the vectors that they start from."""
    nodes: dict[Node, None] = {}
    used: set[str] = set()

    def visit(name: str) -> None:
        if name in vectors:
            used.add(name)
            return
        node = snapshot.sized.get(name)
        if node is None:
            if name in snapshot.imported.values:
                return
            node = snapshot.graph.producers[name]
        if node not in nodes:
            for read in node.reads:
                visit(read)
            nodes[node] = None

    for name in wanted:
        visit(name)
    return tuple(nodes), used


def _sketch(node: Node) -> tuple[Any, ...]:
    attributes = tuple((n, v) for n, v in node.attributes if isinstance(v, int | float | str))
    return (node.operator, node.domain, node.inputs, node.outputs, node.captures, attributes)


def _same(one: NDArray[Any], other: NDArray[Any] | None) -> bool:
    if one is other:
        return True
    same = other is not None and one.dtype == other.dtype and one.shape == other.shape
    return same and other is not None and one.tobytes() == other.tobytes()
