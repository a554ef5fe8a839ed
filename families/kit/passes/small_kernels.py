"""Kernels that passes put in the place of others, and the tensors between them."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node, kernel, view
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.operator_parts.formula import formula_text, parse_formula, substituted
from tilesmith.search_space.workloads.epilogue import EpilogueStep
from tilesmith.search_space.workloads.workload import ParameterValue, Workload, shape_text

Operands = Sequence[tuple[str, tuple[int, ...]]]
"""Tensors and the shapes that a kernel sees them in."""


class SmallKernels:
    """Kernels one after another; new tensors and constants are the rewriter's.

    Each method adds a kernel to `nodes` and returns the tensor it makes: the one named, or, for "",
    a new one.

    Attributes:
        stated: whether tensors are to have the shapes that maps see them in, so that views of them
            stand before the kernels; else a kernel sees them as it says.
        held: element types that tensors will have once the pass is done with them.
    """

    def __init__(self, rewriter: Rewriter, stated: bool = False) -> None:
        self.rewriter, self.stated = rewriter, stated
        self.nodes: list[Node] = []
        self.held: dict[str, str] = {}
        self._known: dict[tuple[str, tuple[int, ...]], str] = {}

    def taken(self) -> list[Node]:
        """The kernels so far, which are forgotten; constants are not."""
        nodes, self.nodes = self.nodes, []
        return nodes

    def dtype(self, name: str) -> str:
        """A tensor's element type."""
        return self.held.get(name) or self.rewriter.info(name).dtype

    def elementwise(
        self,
        result: str,
        dtype: str,
        shape: tuple[int, ...],
        expression: str,
        operands: Operands,
    ) -> str:
        """A map over tensors of any floating types."""
        types = [self.dtype(name) for name, _ in operands]
        formula = parse_formula(expression)
        if {dtype, *types} != {"float32"}:
            wide = {i: call("to_float32", load(f"x{i}")) for i in range(len(operands))}
            formula = substituted(formula, wide)
        parameters: dict[str, ParameterValue] = {
            "shape": shape_text(shape), "expression": formula_text(formula),
        }  # fmt: skip
        for number, (_, given) in enumerate(operands):
            if given != shape:
                parameters[f"x{number}"] = shape_text(given)
        if set(types) != {dtype}:
            parameters["types"] = ",".join(types)
        workload = Workload.of("elementwise", parameters, dtype=dtype)
        names = [self._seen(name, given) for name, given in operands]
        if not self.stated or not result or self.rewriter.info(result).dims == shape:
            return self._add(workload, names, result, dtype, shape)
        padded = self._add(workload, names, "", dtype, shape)
        self.nodes.append(view(padded, result))
        return result

    def _seen(self, name: str, shape: tuple[int, ...]) -> str:
        """A tensor in the shape that a kernel sees it in."""
        if not self.stated or self.rewriter.info(name).dims == shape:
            return name
        seen = self.rewriter.add_tensor(name, self.dtype(name), shape)
        self.nodes.append(view(name, seen))
        return seen

    def reduce(
        self, result: str, source: str, shape: tuple[int, ...], kind: str, axis: int = -1
    ) -> str:
        """A reduction of one axis, the last unless said otherwise."""
        axis %= len(shape)
        parameters: dict[str, ParameterValue] = {
            "shape": shape_text(shape), "kind": kind, "axes": str(axis), "keepdims": 0,
        }  # fmt: skip
        dtype = self.dtype(source)
        workload = Workload.of("reduce", parameters, dtype=dtype)
        return self._add(workload, [source], result, dtype, (*shape[:axis], *shape[axis + 1 :]))

    def transpose(self, result: str, source: str, shape: tuple[int, ...], perm: str) -> str:
        """A permutation of axes."""
        parameters = {"shape": shape_text(shape), "perm": perm}
        dtype = self.dtype(source)
        workload = Workload.of("transpose", parameters, dtype=dtype)
        permuted = tuple(shape[int(a)] for a in perm.split("x"))
        return self._add(workload, [source], result, dtype, permuted)

    def matmul(
        self, result: str, a: str, b: str, sizes: tuple[int, int, int, int], scale: float = 1.0
    ) -> str:
        """`scale` times the products of one matrix with a batch; sizes are batch, m, n, k."""
        batch, m, n, k = sizes
        parameters: dict[str, ParameterValue] = {"m": m, "n": n, "k": k}
        if batch > 1:
            parameters["batch"] = batch
        dtype = self.dtype(b)
        epilogue = () if scale == 1.0 else (EpilogueStep("multiply_constant", (scale,)),)
        workload = Workload.of("matmul", parameters, dtype=dtype, epilogue=epilogue)
        return self._add(workload, [a, b], result, dtype, (batch, m, n))

    def same(
        self, old: Workload, source: str, shape: tuple[int, ...], changed: Mapping[str, int]
    ) -> str:
        """A kernel's operator on a tensor of another shape."""
        parameters = {**dict(old.parameters), "shape": shape_text(shape), **changed}
        workload = Workload.of(old.operator, parameters, dtype=old.dtype)
        return self._add(workload, [source], "", old.dtype, shape)

    def constant(self, what: str, value: NDArray[np.float32], dtype: str = "float32") -> str:
        """A tensor of these values; of all that are alike one."""
        key = f"{what}:{dtype}:{value.tobytes().hex()}", value.shape
        if key not in self._known:
            narrow = value.astype(to_numpy(dtype))
            self._known[key] = self.rewriter.add_constant(what, narrow, dtype)
        return self._known[key]

    def iota(self, count: int) -> str:
        """0, 1, ... in float32."""
        return self.constant("iota", np.arange(count, dtype=np.float32))

    def _add(
        self, workload: Workload, inputs: list[str], result: str, dtype: str, shape: tuple[int, ...]
    ) -> str:
        result = result or self.rewriter.add_tensor(
            f"{inputs[-1]}.{workload.operator}", dtype, shape
        )
        self.nodes.append(kernel(workload, inputs, result, result))
        return result


def seen_as(graph: Graph, name: str) -> dict[str, None]:
    """A tensor and all views of it, of views too."""
    aliases = {name: None}
    for node in graph.consumers.get(name, ()):
        if node.kind == "view":
            aliases |= seen_as(graph, node.writes[0])
    return aliases
