"""Layers in bfloat16, in plain ONNX: casts around them, and their weights rounded.

    x -> Cast -> x_bf16 -> Conv with weights in bfloat16 -> Relu -> y_bf16 -> Cast -> y

What follows a narrow layer and has no weights of its own is narrow, too (sums, activations, pools,
normalisations), up to the next layer of another precision; there the tensor becomes float32 again,
once for all its readers. So a chain of narrow layers has no conversion inside. The sums inside a
product are of float32 wherever Tilesmith runs it.

Invariants: inputs and outputs of the model stay float32; a tensor keeps its name where it is
float32.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, defs, helper, numpy_helper

from tilesmith.capabilities.quantisation.preparation.float_model import readers_of
from tilesmith.capabilities.quantisation.preparation.plan import PRODUCTS
from tilesmith.compiler.onnx.files.file import opset_of

OPSET = 22
"""The first whose convolutions and pools are for bfloat16."""


def rounded(values: NDArray[Any]) -> NDArray[np.float32]:
    """The nearest numbers of bfloat16, as float32."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


@dataclass(frozen=True)
class NarrowWeights:
    """A layer's weights and bias in bfloat16.

    Attributes:
        weights, bias: float32 of the layer's shapes, exactly representable in bfloat16.
    """

    weights: NDArray[np.float32]
    bias: NDArray[np.float32] | None

    def floats(self) -> NDArray[np.float32]:
        """The weights as float32."""
        return self.weights

    def float_bias(self) -> NDArray[np.float32] | None:
        """The bias as float32."""
        return self.bias


def with_narrow(proto: onnx.ModelProto, layers: Collection[str], others: Collection[str]) -> None:
    """Compute layers in bfloat16; changes the model, and leaves out constants that nobody reads.

    Args:
        layers: names of nodes.
        others: names of nodes that stay as they are.
    """
    _Narrowing(proto, frozenset(layers), frozenset(others)).run()


class _Narrowing:
    def __init__(
        self, proto: onnx.ModelProto, layers: frozenset[str], others: frozenset[str]
    ) -> None:
        self._opset = opset_of(proto)
        self._graph, self._layers, self._others = proto.graph, layers, others
        self._constants = {t.name: t for t in proto.graph.initializer}
        self._taken = set(readers_of(proto.graph)) | set(self._constants)
        self._taken |= {name for node in proto.graph.node for name in (*node.output, node.name)}
        self._narrow: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._nodes: list[onnx.NodeProto] = []

    def run(self) -> None:
        for node in list(self._graph.node):
            if self._is_narrow(node):
                self._compute(node)
            else:
                self._nodes.append(node)
        self._widen_where_read()
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        read = readers_of(self._graph)
        kept = [t for t in self._constants.values() if read[t.name]]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)

    def _is_narrow(self, node: onnx.NodeProto) -> bool:
        if node.name in self._layers:
            return True
        follows = not node.domain and node.name not in self._others
        single = len([name for name in node.output if name]) == 1 or node.op_type == "Split"
        if not (follows and single):
            return False
        held = [node.input[n] in self._written for n in _places(node, self._opset)]
        return bool(held) and all(held) if node.op_type in PRODUCTS else any(held)

    def _compute(self, node: onnx.NodeProto) -> None:
        for place in _places(node, self._opset):
            node.input[place] = self._in_bf16(node.input[place])
        for place, name in enumerate(node.output):
            if name:
                node.output[place] = self._unused(f"{name}_bf16")
                self._narrow[name] = self._written[name] = node.output[place]
        self._nodes.append(node)

    def _in_bf16(self, name: str) -> str:
        if name in self._narrow:
            return self._narrow[name]
        narrow = self._narrow[name] = self._unused(f"{name}_bf16")
        constant = self._constants.get(name)
        if constant is None:
            self._nodes.append(self._cast(name, narrow, TensorProto.BFLOAT16))
            return narrow
        values = numpy_helper.to_array(constant).astype(ml_dtypes.bfloat16)
        self._constants[narrow] = helper.make_tensor(
            narrow, TensorProto.BFLOAT16, values.shape, values.tobytes(), raw=True
        )
        return narrow

    def _widen_where_read(self) -> None:
        """Give a tensor that narrow nodes write as float32 to those that want it so."""
        wanted = readers_of(onnx.GraphProto(node=self._nodes, output=self._graph.output))
        origin = {narrow: name for name, narrow in self._written.items()}
        nodes: list[onnx.NodeProto] = []
        for node in self._nodes:
            nodes.append(node)
            for written in node.output:
                name = origin.get(written, "")
                if name and wanted[name]:
                    nodes.append(self._cast(written, name, TensorProto.FLOAT))
        self._nodes = nodes

    def _cast(self, source: str, result: str, kind: int) -> onnx.NodeProto:
        return helper.make_node("Cast", [source], [result], self._unused(f"{result}/Cast"), to=kind)

    def _unused(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _places(node: onnx.NodeProto, opset: int) -> list[int]:
    """The inputs that have the element type of the result, where that may be bfloat16; none of
    operators that choose their type, or that this installation does not know."""
    try:
        schema = defs.get_schema(node.op_type, opset, node.domain)
    except defs.SchemaError:
        return []
    types = {str(c.type_param_str): c.allowed_type_strs for c in schema.type_constraints}
    result = schema.outputs[0].type_str if schema.outputs else ""
    if "tensor(bfloat16)" not in types.get(result, ()):
        return []
    formal = list(schema.inputs)
    of_kind = [formal[min(n, len(formal) - 1)].type_str for n in range(len(node.input))]
    return [n for n, kind in enumerate(of_kind) if kind == result and node.input[n]]
