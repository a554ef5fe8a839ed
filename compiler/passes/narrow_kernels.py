"""Kernels of an fp32 model in 16 bits, beside what stays in 32, for targets that run both."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo, kernel, view
from tilesmith.compiler.numerics.precision import (
    WIDE,
    check_precision,
    in_precision,
    precision_dtype,
)
from tilesmith.compiler.onnx.files.mapped import release
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.search_space.expressions.dtypes import is_floating, size_of, to_numpy
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.operator_parts.formula import formula_text, parse_formula, substituted
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload, shape_text

LITTLE = 1 << 14
"""Elements of a constant up to which it stays float32 where kernels can read it so."""

_PIECE = 1 << 20
"""Elements of a weight that are looked at together."""

_MOVEMENT = frozenset(
    {
        "concat", "gather", "gather_elements", "gather_nd", "layout_transform", "pad",
        "scatter_elements", "scatter_nd", "slice", "transpose", "trilu",
    }
)  # fmt: skip


@dataclass(frozen=True)
class NarrowKernels(Pass):
    """Kernels of an fp32 model work in another precision, which the caller does not see.

        y = Kernel(matmul ...)(x, w)                                  before, all float32
        x1 = Kernel(elementwise ... dtype=bfloat16)(x)                after
        y1 = Kernel(matmul ... dtype=bfloat16)(x1, w as bfloat16)
        y = Kernel(elementwise ... types=bfloat16)(y1)

    Tensors that the caller or a host node sees stay float32. So does what is computed from whole
    numbers and little constants (positions, masks), what only moves or combines such tensors or the
    caller's, and attention over keys that are float32 (a cache of the caller's). Infinities stay
    so; finite numbers too large for the type become its largest: masks hold the least number of
    float32, and a row that is masked with it as a whole has numbers.

    In the precision of the model itself ("fp32") the kernels of `Graph.narrow` alone are narrow.

    Contract: a lowered graph in and out; weights that narrow kernels read are narrow.

    Attributes:
        accepts: whether the target has a schedule for a workload.

    Raises:
        ModelError: no such precision.
    """

    name = "narrow-kernels"

    precision: str
    accepts: Callable[[Workload], bool]

    def __post_init__(self) -> None:
        check_precision(self.precision)

    def run(self, graph: Graph) -> Graph:
        dtype = precision_dtype(self.precision)
        if dtype != WIDE:
            return _Narrowing(graph, dtype, self.accepts).run()
        return _Narrowing(graph, "bfloat16", self.accepts, True).run() if graph.narrow else graph


class _Narrowing:
    """A graph on its way: `tensors` have the types they are held in."""

    def __init__(
        self, graph: Graph, dtype: str, accepts: Callable[[Workload], bool], partly: bool = False
    ) -> None:
        self.graph, self.dtype, self.accepts = graph, dtype, accepts
        self._partly = partly
        self.nodes: list[Node] = []
        self.tensors = dict(graph.tensors)
        self.constants = dict(graph.constants)
        self._exact = {info.name for info in graph.inputs if not is_floating(info.dtype)}
        """Tensors that no float of the caller's, and no large constant, has a part in."""
        self._known: dict[tuple[str, str], str] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            match node.kind:
                case "kernel":
                    self._kernel(node)
                case "view":
                    self._view(node)
                case "join":
                    self._join(node)
                case _:
                    self._host(node)
        used = {name for node in self.nodes for name in (*node.reads, *node.writes)}
        used |= self.graph.output_names | {info.name for info in self.graph.inputs}
        constants = {name: value for name, value in self.constants.items() if name in used}
        tensors = {name: info for name, info in self.tensors.items() if name in used}
        return self.graph.with_(nodes=tuple(self.nodes), tensors=tensors, constants=constants)

    # -- tensors ------------------------------------------------------------------------------
    def _held(self, name: str) -> str:
        return self.tensors[name].dtype

    def _in(self, name: str, dtype: str) -> str:
        """A tensor's values in an element type, converted once."""
        if self._held(name) == dtype:
            return name
        key = (name, dtype)
        if key not in self._known:
            converted = self._known[key] = self._fresh(name, dtype)
            if name in self.constants:
                self.constants[converted] = as_narrow(self.constants[name], dtype)
            else:
                self.nodes.append(self._cast(name, converted))
        return self._known[key]

    def _fresh(self, base: str, dtype: str) -> str:
        name = f"{base}.{dtype}"
        while name in self.tensors:
            name += "'"
        self.tensors[name] = TensorInfo(name, dtype, self.graph.info(base).shape)
        return name

    def _cast(self, source: str, result: str) -> Node:
        """Finite numbers that are too large become the largest there are."""
        info, output = self.tensors[source], self.tensors[result]
        formula = "to_float32(x0)"
        if output.dtype != WIDE:
            most = largest(output.dtype)
            formula = f"minimum(maximum(x0,{-most:.9g}),{most:.9g})"
            formula = f"to_float32(where(is_inf(x0),x0,{formula}))"
        parameters = {
            "shape": shape_text(info.dims) if info.dims else "scalar",
            "expression": formula,
            "types": info.dtype,
        }
        workload = Workload.of("elementwise", parameters, dtype=output.dtype)
        return kernel(workload, (source,), result, result)

    def _writes(self, node: Node, name: str, dtype: str) -> str:
        """The tensor that a node writes in `dtype` in place of one that others may want wide."""
        if dtype == self.graph.info(name).dtype:
            return name
        if name not in self.graph.output_names:
            self.tensors[name] = TensorInfo(name, dtype, self.graph.info(name).shape)
            return name
        return self._fresh(name, dtype)

    def _written(self, node: Node, name: str, held: str) -> None:
        """What the caller gets is float32."""
        if held != name:
            self._known[name, self._held(held)] = held
            self.nodes.append(self._cast(held, name))

    # -- nodes --------------------------------------------------------------------------------
    def _host(self, node: Node) -> None:
        def given(name: str) -> str:
            return self._in(name, self.graph.info(name).dtype) if name else name

        inputs, captures = map(given, node.inputs), map(given, node.captures)
        changed = (tuple(inputs), tuple(captures))
        if changed != (node.inputs, node.captures):
            if changed[1] != node.captures:  # bodies name what they capture
                raise AssertionError(f"{node.describe()} captures a tensor that is narrow")
            node = replace(node, inputs=changed[0])
        self.nodes.append(node)

    def _view(self, node: Node) -> None:
        (source,), (result,) = node.inputs, node.outputs
        if source in self.constants and _is_wide(self.tensors[source]) and not self._partly:
            source = source if self.tensors[source].elements <= LITTLE else self._in(
                source, self.dtype
            )  # fmt: skip
        if node.inputs[0] in self._exact or self._is_little(node.inputs[0]):
            self._exact.add(result)
        self._pass_on(replace(node, inputs=(source,)), self._held(source))

    def _join(self, node: Node) -> None:
        held = {self._held(name) for name in node.inputs}
        if held <= {self.graph.info(node.inputs[0]).dtype}:
            self.nodes.append(node)
            return
        wide = node.outputs[0] in self.graph.output_names or (self._partly and WIDE in held)
        dtype = WIDE if wide else self.dtype
        inputs = tuple(self._in(name, dtype) for name in node.inputs)
        self._pass_on(replace(node, inputs=inputs), dtype)

    def _pass_on(self, node: Node, dtype: str) -> None:
        (name,) = node.outputs
        held = self._writes(node, name, dtype)
        self.nodes.append(replace(node, outputs=(held,)))
        self._written(node, name, held)

    def _kernel(self, node: Node) -> None:
        if self._is_held(node):
            (source,), (result,) = node.inputs, node.outputs
            self.tensors[result] = TensorInfo(result, self.dtype, self.graph.info(result).shape)
            self.nodes.append(view(source, result))
            return
        if self._exactly(node):
            self._exact.update(node.outputs)
        workload = self._workload(node, node.work)
        template = template_of(workload.operator)
        operands = template.operands(workload)
        inputs = [
            self._in(name, operand.dtype) if name else name
            for name, operand in zip(node.inputs, operands, strict=True)
        ]
        (name,) = node.outputs
        held = self._writes(node, name, template.output(workload).dtype)
        changed = replace(node, inputs=tuple(inputs), outputs=(held,), workload=workload)
        self.nodes.append(changed)
        self._written(node, name, held)

    def _is_held(self, node: Node) -> bool:
        """Whether a kernel only converts what is held in the precision already: to it, or to what
        the model has around its own nodes."""
        (result,) = node.outputs
        if not self._partly or len(node.inputs) != 1 or result in self.graph.output_names:
            return False
        work = node.work
        plain = work.operator == "elementwise" and work.text("expression") == "to_float32(x0)"
        return (
            plain and work.dtype in (WIDE, self.dtype) and self._held(node.reads[0]) == self.dtype
        )

    def _is_little(self, name: str) -> bool:
        array = self.constants.get(name)
        return array is not None and array.size <= LITTLE

    def _exactly(self, node: Node) -> bool:
        return all(name in self._exact or self._is_little(name) for name in node.reads)

    # -- workloads ----------------------------------------------------------------------------
    def _workload(self, node: Node, workload: Workload) -> Workload:
        """What a kernel computes from now on."""
        wide = [name for name in node.reads if _is_wide(self.graph.info(name))]
        given = [name for name in wide if name not in self.constants]
        held = {self._held(name) for name in given}
        if self._partly and not (node.sources and self.graph.narrow.issuperset(node.sources)):
            reads = workload.operator == "elementwise" and held - {WIDE}
            changed = self._mixed(node, workload, workload.dtype) if reads else None
            return changed if changed is not None and self.accepts(changed) else workload
        if self._exactly(node) or self._stays(node, workload, held):
            return workload
        if workload.operator == "elementwise":
            changed = self._mixed(node, workload)
        else:
            changed = in_precision(workload, self.dtype, only=WIDE)
        return changed if changed is not None and self.accepts(changed) else workload

    def _stays(self, node: Node, workload: Workload, held: set[str]) -> bool:
        """Whether a kernel that reads float32 only, large constants left out, goes on in it."""
        if workload.operator == "attention":
            return self._held(node.inputs[1]) == WIDE and held != {self.dtype}
        if workload.operator in _MOVEMENT:
            first = node.inputs[0]
            return first not in self.constants and self._held(first) == WIDE
        if workload.operator != "elementwise" or held - {WIDE}:
            return False
        return all(self._is_little(name) for name in node.reads if name in self.constants)

    def _mixed(self, node: Node, workload: Workload, result: str = "") -> Workload | None:
        """An elementwise kernel that reads its operands as they are held, little constants wide.

        Args:
            result: the element type that it writes; "": the one that suits who reads it.
        """
        template = template_of("elementwise")
        before = [operand.dtype for operand in template.inputs(workload)]
        types = []
        for name, dtype in zip(node.inputs, before, strict=True):
            little = self._is_little(name)
            as_held = name not in self.constants or little or bool(result)
            held = self._held(name) if as_held else self.dtype
            types.append(held if dtype == WIDE else dtype)
        given, result = bool(result), result or workload.dtype
        if not given and result == WIDE and not self._only_outside(node.outputs[0]):
            result = self.dtype
        floats = {held for held, dtype in zip(types, before, strict=True) if dtype == WIDE}
        parameters = {key: value for key, value in workload.parameters if key != "types"}
        if floats - {result} or result != self.dtype:
            formula = parse_formula(workload.text("expression"))
            wide = {
                i: call("to_float32", load(f"x{i}"))
                for i, dtype in enumerate(before)
                if dtype == WIDE
            }
            parameters["expression"] = formula_text(substituted(formula, wide))
        parameters["types"] = "" if set(types) == {result} else ",".join(types)
        try:
            return replace(
                Workload.of("elementwise", _given(parameters), dtype=result),
                constants=workload.constants,
            )
        except WorkloadError:
            return None

    def _only_outside(self, name: str) -> bool:
        """Whether nothing but the caller and the host read a tensor."""
        readers = self.graph.consumers.get(name, ())
        return all(reader.kind in ("host", "control") for reader in readers)


def _given(parameters: Mapping[str, int | str]) -> dict[str, int | str]:
    return {name: value for name, value in parameters.items() if value != ""}


def _is_wide(info: TensorInfo) -> bool:
    return info.dtype == WIDE


def largest(dtype: str) -> float:
    """The largest finite element of a type."""
    return {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}.get(dtype, math.inf)


def as_narrow(array: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """Elements of another type; finite numbers that are too large become the largest there are."""
    with np.errstate(over="ignore"):
        narrow = np.atleast_1d(array).astype(to_numpy(dtype))
    if size_of(dtype) < size_of(WIDE):
        wide = np.atleast_1d(array)
        step = max(1, _PIECE * len(narrow) // max(1, narrow.size))
        for first in range(0, len(narrow), step):  # masks of all of a large weight are half of it
            piece, source = narrow[first : first + step], wide[first : first + step]
            lost = np.isinf(piece)
            if lost.any():
                lost &= np.isfinite(source)
                piece[lost] = np.copysign(largest(dtype), source[lost]).astype(narrow.dtype)
    if array.size >= _PIECE:
        release()  # what was read lies in the model's file, and is seldom read again
    return narrow.reshape(array.shape)
