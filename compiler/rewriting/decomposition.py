"""Decomposition: ONNX operators that are others put together, by rules of `decompositions/`.

A rule is a function `(composer, node) -> name | None`: it writes the parts down with the composer
and names the tensor that is the result, or returns None where this instance has no such form, which
then runs on the host. Adding an operator is one file with a rule.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from tilesmith.compiler.graph.graph import (
    INTERNAL_DOMAIN,
    Node,
    TensorInfo,
    attributes_of,
    kernel,
    view,
)
from tilesmith.compiler.rewriting.lower import is_computable
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import ModelError, WorkloadError
from tilesmith.search_space.support.registry import Registry
from tilesmith.search_space.workloads.workload import Workload, shape_text

_KEPT = (np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.bool_))


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
        """An array of whole numbers or flags as it is, any other in float32."""
        array = np.asarray(value, value.dtype if value.dtype in _KEPT else np.float32)
        return self._rewriter.add_constant(self._node.writes[0], array, array.dtype.name)

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def view(self, source: str, shape: tuple[int, ...]) -> str:
        """The same bytes in another shape; `source` itself where it has that.

        Raises:
            ValueError: it has other than as many elements, as operands that do not go together make
                it; `concat` and `matmul` look at shapes for the same reason.
        """
        if self.dims(source) == shape:
            return source
        if math.prod(self.dims(source)) != math.prod(shape):
            raise ValueError(f"{shape_text(self.dims(source))} are no {shape_text(shape)}")
        result = self._tensor(shape, self.dtype(source))
        self._parts.append(view(source, result, self._node.name))
        return result

    def transpose(self, source: str, order: tuple[int, ...]) -> str:
        shape = tuple(self.dims(source)[axis] for axis in order)
        dtype = self.dtype(source)
        return self.apply("Transpose", source, shape=shape, dtype=dtype, perm=order)

    def pointwise(self, operator: str, *sources: str, dtype: str = "float32") -> str:
        """An elementwise operator; operands broadcast."""
        shapes = [self.dims(name) for name in sources]
        return self.apply(operator, *sources, shape=np.broadcast_shapes(*shapes), dtype=dtype)

    def exactly(self, operator: str, *sources: str, dtype: str = "float32") -> str:
        """An elementwise operator that no pass writes in another form, for its last bit counts."""
        shape = np.broadcast_shapes(*(self.dims(name) for name in sources))
        return self._add(INTERNAL_DOMAIN, operator, sources, shape, dtype)

    def cast(self, source: str, dtype: str) -> str:
        """A tensor in another element type; itself where it has that."""
        if self.dtype(source) == dtype:
            return source
        number = int(helper.np_dtype_to_tensor_dtype(to_numpy(dtype)))
        return self.apply("Cast", source, shape=self.dims(source), dtype=dtype, to=number)

    def parts_of(self, source: str, axis: int) -> list[str]:
        """The entries along an axis, which stays with an extent of one."""
        return [self.cut(source, axis, at, at + 1) for at in range(self.dims(source)[axis])]

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
        dtype = self.dtype(source)
        if self.opset < 10:
            first, last = (tuple(map(int, bounds)) for bounds in (starts, ends))
            return self.apply("Slice", source, shape=shape, dtype=dtype, starts=first, ends=last)
        bounds = (self.constant(starts), self.constant(ends))
        return self.apply("Slice", source, *bounds, shape=shape, dtype=dtype)

    def cut(self, source: str, axis: int, start: int, end: int) -> str:
        """Part of one axis."""
        starts, ends = np.zeros(len(self.dims(source)), np.int64), np.array(self.dims(source))
        starts[axis], ends[axis] = start, end
        return self.slice(source, starts, ends)

    def concat(self, axis: int, *sources: str) -> str:
        """Tensors one after the other along an axis from the front."""
        shape = list(self.dims(sources[0]))
        others = {(*d[:axis], *d[axis + 1 :]) for d in map(self.dims, sources)}
        if len(others) > 1:
            texts = " and ".join(shape_text(self.dims(name)) for name in sources)
            raise ValueError(
                f"{texts} differ in more than axis {axis}, along which they are joined"
            )
        shape[axis] = sum(self.dims(name)[axis] for name in sources)
        dtype = self.dtype(sources[0])
        return self.apply("Concat", *sources, shape=tuple(shape), dtype=dtype, axis=axis)

    def matmul(self, left: str, right: str) -> str:
        """A product of matrices, whose leading axes broadcast."""
        a, b = self.dims(left), self.dims(right)
        if a[-1] != b[max(len(b) - 2, 0)]:
            raise ValueError(f"{shape_text(a)} is no factor of {shape_text(b)}")
        shape = (*np.broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))
        return self.apply("MatMul", left, right, shape=shape)

    def reduce(
        self, operator: str, source: str, over: Collection[int], *, keep: bool = True
    ) -> str:
        """A reduction over axes, which stay with an extent of one, or do not."""
        shape, dtype = self.dims(source), self.dtype(source)
        kept = tuple(1 if a in over else n for a, n in enumerate(shape) if keep or a not in over)
        if self.opset < (13 if operator == "ReduceSum" else 18):
            stated = {"axes": tuple(over), "keepdims": int(keep)}
            return self.apply(operator, source, shape=kept, dtype=dtype, **stated)
        where = self.constant(np.array(tuple(over), np.int64))
        return self.apply(operator, source, where, shape=kept, dtype=dtype, keepdims=int(keep))

    def kernel(
        self, operator: str, sources: tuple[str, ...], shape: tuple[int, ...], /, **parameters: Any
    ) -> str:
        """A kernel that no ONNX operator stands for."""
        result = self._tensor(shape, "float32")
        workload = Workload.of(operator, parameters)
        self._parts.append(kernel(workload, sources, result, self._node.name))
        return result

    def apply(
        self,
        operator: str,
        *sources: str,
        shape: tuple[int, ...],
        dtype: str = "float32",
        **attributes: Any,
    ) -> str:
        """An ONNX operator of one output, in a form that every opset shares."""
        return self._add("", operator, sources, shape, dtype, attributes)

    def newest(
        self,
        operator: str,
        *sources: str,
        shape: tuple[int, ...],
        dtype: str = "float32",
        **attributes: Any,
    ) -> str:
        """An ONNX operator of one output, as the newest opset has it."""
        return self._add(INTERNAL_DOMAIN, operator, sources, shape, dtype, attributes)

    def _add(
        self,
        domain: str,
        operator: str,
        sources: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: str,
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        result = self._tensor(shape, dtype)
        name = f"{self._node.name or self._node.writes[0]}.{len(self._parts)}"
        stated = attributes_of(**(attributes or {}))
        self._parts.append(Node(operator, sources, (result,), name, domain, stated))
        return result

    def _tensor(self, shape: tuple[int, ...], dtype: str) -> str:
        return self._rewriter.add_tensor(self._node.writes[0], dtype, shape)

    def parts(self, results: tuple[str, ...]) -> list[Node]:
        """All parts; those that made `results` write the node's outputs instead."""
        names: dict[str, str] = {}
        for result, output in zip(results, self._node.outputs, strict=False):
            if not output:
                continue
            self._check(result, output)
            if result in names or not any(result in part.outputs for part in self._parts):
                self._parts.append(Node("Identity", (result,), (output,), self._node.name))
            else:
                names[result] = output
        return [_renamed(part, names) for part in self._parts]

    def _check(self, result: str, output: str) -> None:
        composed, declared = self.dims(result), self.dims(output)
        if composed != declared:
            raise ModelError(
                f"{self._node.describe()} comes out as {shape_text(composed)}, and "
                f"{shape_text(declared)} is known of it; its operands do not go together"
            )


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    inputs = tuple(names.get(name, name) for name in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(n, n) for n in node.outputs))


Rule = Callable[[Composer, Node], "str | None"]
TypedRule = Callable[[Composer, Node], "str | tuple[str, ...] | None"]

decompositions: Registry[Rule] = Registry("decomposition", "tilesmith.compiler.decompositions")
"""Rules of operators with one output, for those whose result is float32."""

typed_decompositions: Registry[TypedRule] = Registry(
    "decomposition", "tilesmith.compiler.decompositions"
)
"""Rules that look at element types themselves, of operators with any number of outputs."""

spreading: Registry[Rule] = Registry("spreading of pixels", "tilesmith.compiler.decompositions")
"""Rules that put zeros between pixels, applied first by `passes.pixels.SpreadPixels`."""

weighting: Registry[Rule] = Registry("weighting of pixels", "tilesmith.compiler.decompositions")
"""Rules that make products of weighted pixels, applied first by `passes.pixels.WeightPixels`."""

volumes: Registry[Rule] = Registry("operator on volumes", "tilesmith.compiler.decompositions")
"""Rules for operators over three spatial axes, applied once what surrounds them was folded into
them (`passes.volumes`)."""


@dataclass(frozen=True)
class Decompose(RulePass):
    """Operators that are others put together are taken apart.

        y = DepthToSpace(x, blocksize=2)                    before
        y = View(Transpose(View(x)))                        after

    Contract: any graph in; known shapes only; values equal up to roundings; every part
    is one that lowering knows.
    """

    name = "decompose"

    def visit(self, rewriter: Rewriter, node: Node) -> None:  # parts have parts
        if take_apart(rewriter, node, typed_decompositions, typed=True) is None:
            take_apart(rewriter, node, decompositions)


def take_apart(
    rewriter: Rewriter, node: Node, rules: Registry[Any], typed: bool = False
) -> str | None:
    """Put a node's parts in its place; the name of its first result, None if no rule takes it.

    Args:
        typed: whether rules look at element types themselves; else one result of float32 is.

    Raises:
        ModelError: the node's operands do not go together.
    """
    if node.kind != "host" or node.domain not in ("", INTERNAL_DOMAIN):
        return None
    if node.operator not in rules or not rewriter.shapes_known(node):
        return None
    infos = [rewriter.info(name) for name in node.writes]
    if not all(info.known and info.elements for info in infos):
        return None
    if not typed and (len(infos) != 1 or not is_computable(infos[0])):
        return None
    if _is_much_of_little(infos, [rewriter.info(name) for name in node.reads]):
        return None
    composer = Composer(rewriter, node)
    try:
        result = rules[node.operator](composer, node)
    except WorkloadError:  # no template that takes these parameters
        result = None
    except (ValueError, IndexError, ZeroDivisionError) as error:
        shapes = ", ".join(shape_text(rewriter.info(name).dims) for name in node.reads)
        raise ModelError(
            f"{node.describe()} cannot be computed of inputs of shapes {shapes}: {error}"
        ) from error
    if result is None:
        return None
    results = (result,) if isinstance(result, str) else result
    rewriter.replace(node, *composer.parts(results))
    return node.writes[0]


_LARGE, _HUGE = 1 << 30, 1 << 34
"""Bytes from which on results are large, or larger than what decompositions are for."""


def _is_much_of_little(results: Sequence[TensorInfo], operands: Sequence[TensorInfo]) -> bool:
    """Whether parts might hold constants as large as a result that is too large to be one: what is
    made of nothing (an identity, a grid, the weights of an interpolation) is such a constant."""
    written = sum(info.nbytes for info in results)
    given = sum(info.nbytes for info in operands if info.known)
    return written > _HUGE or (written > _LARGE and written > 8 * given)
