"""One graph of several: a model lowered at several sizes, with formulas where numbers differ.

    matmul m=119 n=64 k=64 const=b     at batch 7, sequence 17
    matmul m=253 n=64 k=64 const=b     at batch 11, sequence 23
    matmul m=[batch*sequence] n=64 k=64 const=b

Invariants: the graph at every point it was made from is the one that was lowered there; whatever
is no integer is the same everywhere, or there is no such graph.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilesmith.compiler.graph.graph import Graph, Node, Subgraph
from tilesmith.compiler.varying.sizes.fitting import Fitter
from tilesmith.search_space.expressions.expression import Expr, const
from tilesmith.search_space.expressions.sizes import extent_text
from tilesmith.search_space.workloads.workload import Workload


class NotAlikeError(Exception):
    """The model is another one at some of the sizes; says what differs."""


@dataclass(frozen=True, eq=False)
class VaryingGraph:
    """A lowered graph in which numbers may be formulas.

    Attributes:
        first: the graph at the first point: nodes, constants, element types.
        shapes: of every tensor; None: unknown until the model runs.
        workloads: text of each kernel's workload, by its (first) output.
        attributes: those that vary, of views and host nodes, by (first) output.
    """

    first: Graph
    shapes: Mapping[str, tuple[Expr, ...] | None]
    workloads: Mapping[str, str]
    attributes: Mapping[str, Mapping[str, Any]]


def unified(graphs: Sequence[Graph], fitter: Fitter) -> VaryingGraph:
    """The graph that all of `graphs` are instances of, one for each point of the fitter.

    Raises:
        NotAlikeError: there is none.
    """
    return _Unifier(graphs, fitter).graph()


class _Unifier:
    def __init__(self, graphs: Sequence[Graph], fitter: Fitter) -> None:
        self.graphs, self.fitter = tuple(graphs), fitter
        self.first = graphs[0]
        self.shapes: dict[str, tuple[Expr, ...] | None] = {}
        self.workloads: dict[str, str] = {}
        self.attributes: dict[str, Mapping[str, Any]] = {}

    def graph(self) -> VaryingGraph:
        for graph in self.graphs[1:]:
            self._check_interface(graph)
        for info in self.first.inputs:
            self._shape(info.name, ())
        for name in self.first.constants:
            self._check_constant(name)
            self._shape(name, ())
        for nodes in zip(*(graph.nodes for graph in self.graphs), strict=True):
            self._node(nodes)
        return VaryingGraph(self.first, self.shapes, self.workloads, self.attributes)

    def _check_interface(self, graph: Graph) -> None:
        for what in ("inputs", "outputs"):
            one, two = ([i.name for i in getattr(g, what)] for g in (self.first, graph))
            if one != two:
                raise NotAlikeError(f"its {what} are {', '.join(one)} or {', '.join(two)}")
        if len(self.first.nodes) != len(graph.nodes):
            raise NotAlikeError(f"it has {len(self.first.nodes)} or {len(graph.nodes)} kernels")
        if self.first.constants.keys() != graph.constants.keys():
            names = self.first.constants.keys() ^ graph.constants.keys()
            raise NotAlikeError(f"'{min(names)}' is known, or it is not")

    def _check_constant(self, name: str) -> None:
        first, *others = (graph.constants[name] for graph in self.graphs)
        for other in others:
            if first is other:
                continue
            equal = first.dtype == other.dtype and first.shape == other.shape
            if not equal or first.tobytes() != other.tobytes():
                raise NotAlikeError(f"the constant '{name}' differs")

    def _shape(self, name: str, near: Iterable[Expr]) -> None:
        if name in self.shapes:
            return
        infos = [graph.tensors[name] for graph in self.graphs]
        if len({info.dtype for info in infos}) > 1:
            raise NotAlikeError(f"'{name}' is of {' or '.join(i.dtype for i in infos)}")
        ranks = {None if info.shape is None else len(info.shape) for info in infos}
        if len(ranks) > 1:
            raise NotAlikeError(f"the rank of '{name}' differs")
        if None in ranks:
            self.shapes[name] = None
            return
        known = list(near)
        axes = zip(*(info.dims for info in infos), strict=True)
        self.shapes[name] = tuple(self._integer(v, known, f"'{name}'") for v in axes)

    def _integer(self, values: Sequence[int], near: Sequence[Expr], where: str) -> Expr:
        formula = self.fitter.fit(values, near)
        if formula is None:
            numbers = ", ".join(map(str, values))
            raise NotAlikeError(f"an extent of {where} is no formula of the sizes: {numbers}")
        return formula

    # -- nodes --------------------------------------------------------------------------------
    def _node(self, nodes: Sequence[Node]) -> None:
        first = nodes[0]
        for node in nodes[1:]:
            if _identity(node) != _identity(first):
                raise NotAlikeError(f"{first.describe()} is {node.describe()}")
        near = self._near(first.reads)
        for name in first.writes:
            self._shape(name, near)
        near = self._near((*first.reads, *first.writes))
        if first.workload is not None:
            workloads = [node.workload for node in nodes]
            text = self._workload([w for w in workloads if w is not None], near, first)
            self.workloads[first.writes[0]] = text
        attributes: dict[str, Any] = {}
        for name, _ in first.attributes:
            values = [node.attribute(name) for node in nodes]
            pattern = self._value(values, near, first.describe())
            if pattern is not _SAME:
                attributes[name] = pattern
        if attributes and first.captures:
            raise NotAlikeError(f"{first.describe()} has a body, and attributes that vary")
        self.attributes[first.writes[0]] = attributes

    def _near(self, names: Iterable[str]) -> list[Expr]:
        """Extents of tensors, and how many elements they have."""
        extents: dict[Expr, None] = {}
        for name in names:
            for extent in self.shapes.get(name) or ():
                extents[extent] = None
        return [extent for extent in extents if extent.constant is None]

    def _workload(self, workloads: Sequence[Workload], near: Sequence[Expr], node: Node) -> str:
        first = workloads[0]
        for other in workloads[1:]:
            same = (first.operator, first.dtype, first.constants, first.epilogue)
            if same != (other.operator, other.dtype, other.constants, other.epilogue):
                raise NotAlikeError(f"{node.describe()} is '{first}' or '{other}'")
        keys = [workload.key for workload in workloads]
        pattern = self._text(keys, near, node.describe())
        return first.key if pattern is _SAME else pattern

    def _value(self, values: Sequence[Any], near: Sequence[Expr], where: str) -> Any:
        """A pattern of an attribute's values, or `_SAME` where they do not differ."""
        first = values[0]
        if isinstance(first, int) and all(isinstance(value, int) for value in values):
            formula = self._integer(values, near, where)
            return _SAME if formula.constant is not None else formula
        if isinstance(first, tuple) and all(
            isinstance(value, tuple) and len(value) == len(first) for value in values
        ):
            parts = [self._value(v, near, where) for v in zip(*values, strict=True)]
            if all(part is _SAME for part in parts):
                return _SAME
            if not all(isinstance(value, int) for value in first):
                raise NotAlikeError(f"attributes of {where} differ")
            return tuple(
                const(value) if part is _SAME else part
                for part, value in zip(parts, first, strict=True)
            )
        if isinstance(first, str) and all(isinstance(value, str) for value in values):
            return self._text(values, near, where)
        if not all(_equal(value, first) for value in values[1:]):
            raise NotAlikeError(f"attributes of {where} differ")
        return _SAME

    def _text(self, texts: Sequence[str], near: Sequence[Expr], where: str) -> Any:
        """A text with formulas in brackets, or `_SAME`."""
        if len(set(texts)) == 1:
            return _SAME
        split = [_split(text) for text in texts]
        words = {tuple(parts[::2]) for parts in split}
        if len(words) > 1:
            raise NotAlikeError(f"{where} is '{texts[0]}' or '{texts[-1]}'")
        pieces = [split[0][0]]
        for place in range(1, len(split[0]), 2):
            values = [int(parts[place]) for parts in split]
            pieces += [extent_text(self._integer(values, near, where)), split[0][place + 1]]
        return "".join(pieces)


_SAME = object()


def _split(text: str) -> list[str]:
    """Words and integers in turns: 'm=', '119', ' n=', '64', ''. Digits of names, of operands (x0)
    and of numbers with a point or an exponent are words."""
    parts, last = [], 0
    for match in _INTEGER.finditer(text):
        parts += [text[last : match.start()], match.group()]
        last = match.end()
    return [*parts, text[last:]]


_INTEGER = re.compile(r"(?:(?<==)|(?<=\dx)|(?<![\w.+-]))\d+(?![\d.]|[a-wyzA-Z_]|e[+-]?\d)")
"""After '=' or the x between extents, or by itself."""


def _identity(node: Node) -> tuple[Any, ...]:
    names = tuple(name for name, _ in node.attributes)
    workload = node.workload is None
    return (node.operator, node.domain, node.inputs, node.outputs, node.captures, names, workload)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return (
            isinstance(one, np.ndarray)
            and isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and np.array_equal(one, other)
        )
    if isinstance(one, Subgraph) and isinstance(other, Subgraph):
        return one.serialised == other.serialised
    return bool(one == other)
