"""Decomposition: ONNX operators that are others put together, by rules of `decompositions/`.

A rule is a function `(composer, node) -> name | None`: it writes the parts down with the composer
and names the tensor that is the result, or returns None where this instance has no such form, which
then runs on the host. Adding an operator is one file with a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph import Graph, Node, attributes_of, view
from tilesmith.compiler.graph_pass import Pass
from tilesmith.compiler.lower import is_computable
from tilesmith.compiler.rewrite import Rewriter
from tilesmith.search_space.errors import VerificationError
from tilesmith.search_space.registry import Registry
from tilesmith.search_space.workload import shape_text


class Composer:
    """Writes the parts of one node down; tensors are named by what the methods return."""

    def __init__(self, rewriter: Rewriter, node: Node) -> None:
        self._rewriter, self._node = rewriter, node
        self._parts: list[Node] = []

    # -- questions ----------------------------------------------------------------------------
    def dims(self, name: str) -> tuple[int, ...]:
        return self._rewriter.info(name).dims

    def dtype(self, name: str) -> str:
        return self._rewriter.info(name).dtype

    def value(self, name: str) -> NDArray[Any] | None:
        """A tensor's value, None if it is not constant."""
        return self._rewriter.constant(name)

    @property
    def opset(self) -> int:
        return self._rewriter.graph.opset

    # -- parts --------------------------------------------------------------------------------
    def constant(self, value: NDArray[Any]) -> str:
        """A float32 or int64 array."""
        dtype = "int64" if value.dtype == np.int64 else "float32"
        array = np.asarray(value, np.int64 if dtype == "int64" else np.float32)
        return self._rewriter.add_constant(self._node.writes[0], array, dtype)

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def view(self, source: str, shape: tuple[int, ...]) -> str:
        """The same bytes in another shape."""
        result = self._tensor(shape)
        self._parts.append(view(source, result, self._node.name))
        return result

    def transpose(self, source: str, order: tuple[int, ...]) -> str:
        shape = tuple(self.dims(source)[axis] for axis in order)
        return self.apply("Transpose", source, shape=shape, perm=order)

    def pointwise(self, operator: str, *sources: str) -> str:
        """An elementwise operator; operands broadcast."""
        shapes = [self.dims(name) for name in sources]
        return self.apply(operator, *sources, shape=np.broadcast_shapes(*shapes))

    def gather(self, source: str, indices: NDArray[np.int64], axis: int) -> str:
        """Entries along an axis; `source` itself where those are all, in order."""
        shape = self.dims(source)
        if np.array_equal(indices, np.arange(shape[axis])):
            return source
        whole = (*shape[:axis], len(indices), *shape[axis + 1 :])
        return self.apply("Gather", source, self.constant(indices), shape=whole, axis=axis)

    def pad(self, source: str, before: tuple[int, ...], after: tuple[int, ...]) -> str:
        """Zeros before and behind each axis."""
        if not any(before) and not any(after):
            return source
        extents = zip(before, self.dims(source), after, strict=True)
        shape = tuple(map(sum, extents))
        if self.opset < 11:
            return self.apply("Pad", source, shape=shape, pads=(*before, *after))
        return self.apply("Pad", source, self.constant(np.array((*before, *after))), shape=shape)

    def slice(self, source: str, starts: NDArray[Any], ends: NDArray[Any]) -> str:
        """From `starts` up to `ends`, one number for each axis."""
        shape = tuple(int(n) for n in ends - starts)
        if self.opset < 10:
            first, last = (tuple(map(int, bounds)) for bounds in (starts, ends))
            return self.apply("Slice", source, shape=shape, starts=first, ends=last)
        bounds = (self.constant(starts), self.constant(ends))
        return self.apply("Slice", source, *bounds, shape=shape)

    def apply(self, operator: str, *sources: str, shape: tuple[int, ...], **attributes: Any) -> str:
        """An ONNX operator of one output, in a form that every opset shares."""
        result = self._tensor(shape)
        name = f"{self._node.name or self._node.writes[0]}.{len(self._parts)}"
        self._parts.append(
            Node(operator, sources, (result,), name, attributes=attributes_of(**attributes))
        )
        return result

    def _tensor(self, shape: tuple[int, ...]) -> str:
        return self._rewriter.add_tensor(self._node.writes[0], "float32", shape)

    def parts(self, result: str) -> list[Node]:
        """All parts; the one that made `result` writes the node's output instead."""
        assert self._parts[-1].outputs == (result,)
        found, declared = self.dims(result), self.dims(self._node.writes[0])
        if found != declared:
            raise VerificationError(
                f"{self._node.describe()} comes out as {shape_text(found)}, and "
                f"{shape_text(declared)} is known of it"
            )
        return [*self._parts[:-1], replace(self._parts[-1], outputs=self._node.outputs)]


Rule = Callable[[Composer, Node], "str | None"]

decompositions: Registry[Rule] = Registry("decomposition", "tilesmith.compiler.decompositions")

volumes: Registry[Rule] = Registry("operator on volumes", "tilesmith.compiler.decompositions")
"""Rules for operators over three spatial axes, applied once what surrounds them was folded into
them (`passes.volumes`)."""


@dataclass(frozen=True)
class Decompose(Pass):
    """Operators that are others put together are taken apart.

        y = DepthToSpace(x, blocksize=2)                    before
        y = View(Transpose(View(x)))                        after

    Contract: any graph in; float32 of known shape only; values equal up to roundings; every part
    is one that lowering knows.
    """

    name = "decompose"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():  # parts have parts
            take_apart(rewriter, node, decompositions)
        return rewriter.finish()


def take_apart(rewriter: Rewriter, node: Node, rules: Registry[Rule]) -> str | None:
    """Put a node's parts in its place; the name of the last one's result, None if there is no
    rule for it."""
    if node.kind != "host" or node.domain or node.operator not in rules:
        return None
    if len(node.writes) != 1 or not is_computable(rewriter.info(node.writes[0])):
        return None
    if not rewriter.shapes_known(node):
        return None
    composer = Composer(rewriter, node)
    result = rules[node.operator](composer, node)
    if result is not None:
        rewriter.replace(node, *composer.parts(result))
    return None if result is None else node.writes[0]
