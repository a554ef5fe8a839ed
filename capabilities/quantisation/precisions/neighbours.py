"""Who pays for what: kernels of a mixed model to layers, and tensors between layers.

What has no weights of its own goes with the layer before it, the last one on the way there; what
makes bytes of a tensor goes with the layer that reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from tilesmith.capabilities.quantisation.preparation.float_model import FloatModel
from tilesmith.capabilities.quantisation.preparation.plan import WeightedLayer

_CODING = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Neighbours:
    """Layers of a float32 model.

    Attributes:
        makers: by layer the layer before it, None for the model's inputs.
        before: by tensor the last layer on the way to it, None where there is none.
    """

    makers: Mapping[str, str | None]
    before: Mapping[str, str | None]

    @classmethod
    def of(cls, model: FloatModel, layers: Sequence[WeightedLayer]) -> "Neighbours":
        """The neighbours in a model."""
        names = {layer.node for layer in layers}
        before = _before(list(model.nodes), names)
        return cls({layer.node: before.get(layer.source) for layer in layers}, before)


def _before(nodes: Sequence[onnx.NodeProto], layers: set[str]) -> dict[str, str | None]:
    """By tensor the last layer on the way to it."""
    places = {node.name: place for place, node in enumerate(nodes)}
    before: dict[str, str | None] = {}
    for node in nodes:
        ways = (before.get(name) for name in node.input)
        known = [way for way in ways if way is not None]
        own = node.name if node.name in layers else max(known, key=places.__getitem__, default=None)
        before.update(dict.fromkeys(node.output, own))
    return before


def owners(proto: onnx.ModelProto, layers: Sequence[WeightedLayer]) -> dict[str, str]:
    """By node of a mixed model the layer that its work is counted to; none before all layers."""
    nodes = list(proto.graph.node)
    names = {layer.node for layer in layers}
    before = _before(nodes, names)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    owned: dict[str, str] = {}
    for node in nodes:
        owner = before.get(node.output[0])
        if node.op_type in _CODING:
            owner = _reader(node, readers, names) or owner
        if owner is not None:
            owned[node.name] = owner
    return owned


def _reader(
    node: onnx.NodeProto, readers: Mapping[str, list[onnx.NodeProto]], layers: set[str]
) -> str | None:
    """The layer that reads what a coding node makes."""
    for reader in readers.get(node.output[0], ()):
        if reader.name in layers:
            return reader.name
        if reader.op_type in _CODING and (inner := _reader(reader, readers, layers)):
            return inner
    return None
