"""Runs single nodes on the host with `onnx.reference`: what no template covers, and constant
folding.

It exists so that no model is refused for one odd operator. Invariants: a node is run at the opset
of its model; of the internal operators (domain "tilesmith"), activations are computed by the
formulas of epilogue steps and the others are ONNX's at its newest opset.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tilesmith.compiler.graph.graph import CHECK, INTERNAL_DOMAIN, Node, Subgraph, kernel
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.graph.value_types import texts
from tilesmith.compiler.host.inner import NodeEvaluator
from tilesmith.compiler.host.kernels import run_kernel
from tilesmith.compiler.host.operators.call import Operator, OperatorCall, own_operators
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.epilogue import STEPS, EpilogueStep
from tilesmith.search_space.workloads.workload import Workload, shape_text

REFERENCE = "Reference"
"""Internal operator: a kernel computed by its template's reference. Attributes: the `workload` and
the `shape` of its result."""


RANDOM = having("random")


def node_proto(node: Node, opsets: Mapping[str, int]) -> onnx.NodeProto:
    """The ONNX form of a host node."""
    proto = helper.make_node(
        node.operator, list(node.inputs), list(node.outputs), name=node.name, domain=node.domain
    )
    types = _attribute_types(node, opsets)
    for name, value in node.attributes:
        proto.attribute.append(_attribute(name, value, types.get(name)))
    return proto


def _attribute_types(node: Node, opsets: Mapping[str, int]) -> dict[str, Any]:
    version = opsets.get(node.domain, 1)
    if not onnx.defs.has(node.operator, version, node.domain):
        return {}
    schema = onnx.defs.get_schema(node.operator, version, node.domain)
    return {name: entry.type.value for name, entry in schema.attributes.items()}  # type: ignore[attr-defined]


def _attribute(name: str, value: Any, kind: Any) -> onnx.AttributeProto:
    if isinstance(value, Subgraph):
        graph = onnx.GraphProto()
        graph.ParseFromString(value.serialised)
        return helper.make_attribute(name, graph)
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, numpy_helper.from_array(value, name))
    plain = list(value) if isinstance(value, tuple) else value
    if plain == [] and kind is None:
        kind = onnx.AttributeProto.INTS  # the shape of a scalar
    return helper.make_attribute(name, plain, attr_type=kind)


class HostFunction:
    """One node, ready to be run on arrays, by several threads at once.

    Args:
        proto: the node.
        reads: names of every tensor it reads, those read by its subgraphs included.
        opsets: (domain, version) pairs of the model it is from.
    """

    def __init__(
        self, proto: onnx.NodeProto, reads: Sequence[str], opsets: Sequence[tuple[str, int]]
    ) -> None:
        self._proto = proto
        self._reads = tuple(dict.fromkeys(reads))
        self._writes = tuple(name for name in proto.output if name)
        self._opsets = dict(opsets)
        self._evaluators: defaultdict[tuple[int, ...], list[NodeEvaluator]] = defaultdict(list)
        """Those that nobody uses now: some operators keep what they work on in themselves."""

    @classmethod
    def of(cls, node: Node, opsets: Sequence[tuple[str, int]]) -> "HostFunction":
        return cls(node_proto(node, dict(opsets)), node.reads, opsets)

    def _evaluated(self, arrays: Mapping[str, Any]) -> Any:
        """The node's outputs on values of whatever types: some operators are other functions of
        other types."""
        types = tuple(_type_of(arrays[name]) for name in self._reads)
        free = self._evaluators[types]
        try:
            evaluator = free.pop()
        except IndexError:
            evaluator = self._evaluator_of(types)
        results: Any = evaluator.run(None, dict(arrays))
        free.append(evaluator)
        return results

    def _evaluator_of(self, types: tuple[int, ...]) -> NodeEvaluator:
        proto, known = self._proto, self._opsets
        if proto.domain == INTERNAL_DOMAIN:
            proto, known = onnx.NodeProto(), {"": onnx.defs.onnx_opset_version()}
            proto.CopyFrom(self._proto)
            proto.domain = ""
        inputs = [
            helper.make_tensor_value_info(name, number, None)
            if number
            else helper.make_value_info(name, onnx.TypeProto())
            for name, number in zip(self._reads, types, strict=True)
        ]
        outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in self._writes]
        graph = helper.make_graph([proto], "host", inputs, outputs)
        domains = {"": 1, **known}
        opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        model = helper.make_model(graph, opset_imports=opsets)
        return NodeEvaluator(model)

    def run(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by tensor name, from inputs by tensor name.

        Raises:
            JobError: the reference implementation failed on these inputs.
        """
        proto = self._proto
        if proto.domain == INTERNAL_DOMAIN and proto.op_type in STEPS:
            return {self._writes[0]: _run_activation(proto, arrays[proto.input[0]])}
        if proto.domain == INTERNAL_DOMAIN and proto.op_type == REFERENCE:
            return {self._writes[0]: _run_reference(proto, arrays)}
        if proto.domain == INTERNAL_DOMAIN and proto.op_type == CHECK:
            return {self._writes[0]: _checked(proto, arrays[proto.input[0]])}
        try:
            with np.errstate(all="ignore"):
                if (own := self._own) is not None:
                    return self._run_own(own, arrays)
                results = self._evaluated({name: arrays[name] for name in self._reads})
        except Exception as error:
            where = "the host" if self._own else "the host (onnx.reference)"
            raise JobError(
                f"{proto.op_type} '{proto.name or self._writes[0]}' failed on {where}: {error}"
            ) from error
        return {n: _as_array(r) for n, r in zip(self._writes, results, strict=True)}

    @property
    def _own(self) -> Operator | None:
        proto = self._proto
        if proto.domain not in ("", INTERNAL_DOMAIN):
            return None
        return own_operators(self._opset).get(proto.op_type)

    @property
    def _opset(self) -> int:
        """Version of ONNX's operators that the node is of."""
        newest = self._proto.domain == INTERNAL_DOMAIN
        return onnx.defs.onnx_opset_version() if newest else self._opsets.get("", 1)

    def _run_own(self, operator: Operator, arrays: Mapping[str, Any]) -> dict[str, Any]:
        proto = self._proto
        attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
        texts = {n: v.decode() for n, v in attributes.items() if isinstance(v, bytes)}
        inputs = [arrays[name] if name else None for name in proto.input]
        stated = {**attributes, **texts}
        results = operator(OperatorCall(stated, inputs, self._opset, len(self._writes)))
        return {name: r for name, r in zip(proto.output, results, strict=False) if name}


def _type_of(value: Any) -> int:
    """ONNX's number of an array's element type; 0 of what is no array of numbers."""
    if not isinstance(value, np.ndarray) or value.dtype == object:
        return 0
    try:
        return int(helper.np_dtype_to_tensor_dtype(value.dtype))
    except (KeyError, ValueError):
        return 0


def _as_array(result: Any) -> Any:
    array = np.asarray(result) if isinstance(result, np.generic | str) else result
    return texts(array) if isinstance(array, np.ndarray) else array


def _checked(proto: onnx.NodeProto, value: Any) -> NDArray[Any]:
    """The value, if it is what a `CHECK` node says. Raises `JobError` where it is not.

    Another floating dtype is converted: `onnx.reference` sometimes computes in one that is wider.
    """
    stated = {a.name: a.s.decode() for a in proto.attribute}
    array, dtype = np.asarray(value), to_numpy(stated["dtype"])
    if array.dtype.kind == dtype.kind == "f":
        array = array.astype(dtype)
    shape = shape_text(array.shape)
    if shape != stated["shape"] or array.dtype != dtype:
        name = stated.get("tensor", proto.output[0])
        raise JobError(
            f"tensor '{name}' is declared to be {stated['shape']} of {stated['dtype']}, but these "
            f"inputs make it {shape} of {array.dtype}; correct the shape that the model "
            "declares, or leave it out"
        )
    return array


def activation_step(node: Node) -> EpilogueStep:
    """The epilogue step an internal activation node stands for."""
    return EpilogueStep(node.operator, tuple(node.attribute("arguments", ())))


def _run_activation(proto: onnx.NodeProto, value: NDArray[Any]) -> NDArray[Any]:
    """An internal activation in numpy, keeping the dtype."""
    arguments = tuple(n for a in proto.attribute if a.name == "arguments" for n in a.floats)
    step = EpilogueStep(proto.op_type, arguments)
    with np.errstate(all="ignore"):
        result = STEPS[step.name].formula(value, None, *step.arguments)
    return np.asarray(result, dtype=value.dtype)


def reference_workload(proto: onnx.NodeProto) -> Workload:
    """What a `REFERENCE` node computes."""
    text = next(a.s for a in proto.attribute if a.name == "workload")
    return Workload.parse(text.decode())


def _run_reference(proto: onnx.NodeProto, arrays: Mapping[str, Any]) -> NDArray[Any]:
    """A kernel, by its template's reference."""
    workload = reference_workload(proto)
    node = kernel(workload, tuple(proto.input), proto.output[0], proto.name)
    shape = next(tuple(a.ints) for a in proto.attribute if a.name == "shape")
    return run_kernel(node, arrays).reshape(shape)


def draws(node: Node, constants: Mapping[str, Any]) -> bool:
    """Whether a node draws random numbers: as random operators do, and Dropout in training.

    Args:
        constants: of its graph.
    """
    training = constants.get(node.input(2), node.input(2)) if node.is_onnx("Dropout") else False
    return node.operator in RANDOM or bool(np.any(training))


def foldable(node: Node) -> bool:
    """Whether a node's outputs depend on its inputs alone."""
    return (
        node.kind == "host"
        and node.operator not in RANDOM
        and not any(isinstance(value, Subgraph) for _, value in node.attributes)
    )
