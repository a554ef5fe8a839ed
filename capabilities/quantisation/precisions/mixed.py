"""`MixedModel`: a model each of whose layers has a precision of its own.

A *plan* maps layers' names to precisions; a layer that it leaves out stays in float32. int8 layers
become bytes (`WithBytes`), int4 layers products with weights in blocks (`WithBlocks`), bf16 layers
bfloat16 (`numbers.narrow`); all three in one file of plain ONNX.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx

from tilesmith.capabilities.quantisation.numbers.block_weights import Blocks
from tilesmith.capabilities.quantisation.numbers.narrow import (
    OPSET,
    NarrowWeights,
    rounded,
    with_narrow,
)
from tilesmith.capabilities.quantisation.numbers.parameters import Parameters
from tilesmith.capabilities.quantisation.preparation.float_model import FloatModel
from tilesmith.capabilities.quantisation.preparation.plan import WeightedLayer
from tilesmith.capabilities.quantisation.search.ways import WithBlocks, WithBytes
from tilesmith.compiler.onnx.files.file import opset_of

FP32, BF16, INT8, INT4 = "fp32", "bf16", "int8", "int4"
PRECISIONS = (FP32, BF16, INT8, INT4)
"""In the order in which they get less exact."""

Plan = Mapping[str, str]
"""Precisions by layer."""


@dataclass(frozen=True)
class MixedModel:
    """See the module's docstring.

    Attributes:
        model: in float32.
        layers: all that may have another precision.
        whole: bytes, calibrated.
        blocks: weights in blocks; None where no layer takes them.
        elements: by tensor that a layer reads, how many in one sample.
        narrow: whether the model can be written with bfloat16 in it.
    """

    model: FloatModel
    layers: tuple[WeightedLayer, ...]
    whole: WithBytes
    blocks: WithBlocks | None
    elements: Mapping[str, int]
    narrow: bool = True

    @classmethod
    def of(cls, whole: WithBytes, blocks: Blocks, samples: int) -> "MixedModel":
        """The model of a way that was calibrated on so many samples."""
        products = tuple(layer for layer in whole.layers if layer.operator != "Conv")
        ways = WithBlocks(whole.model, products, blocks) if products else None
        elements = {la.source: whole.elements(la) // samples for la in whole.layers}
        narrow = opset_of(whole.model.proto) >= OPSET
        return cls(whole.model, whole.layers, whole, ways, elements, narrow)

    def precisions(self, layer: WeightedLayer) -> tuple[str, ...]:
        """What a layer may be computed in."""
        given = [FP32]
        if self.narrow:
            given.append(BF16)
        given.append(INT8)
        if layer.operator != "Conv":
            given.append(INT4)
        return tuple(given)

    def uniform(self, precision: str) -> dict[str, str]:
        """The plan in which every layer that can has a precision."""
        return {la.node: precision for la in self.layers if precision in self.precisions(la)}

    def parameters(self, plan: Plan) -> Parameters:
        """The numbers of a plan: its bytes' reads, and of every layer its weights."""
        chosen = self.whole.chosen(self._in(plan, INT8))
        layers = dict(chosen.layers)
        if self.blocks is not None:
            layers |= self.blocks.chosen(self._in(plan, INT4)).layers
        layers |= {layer.node: self._narrowed(layer) for layer in self._in(plan, BF16)}
        return replace(chosen, layers=layers)

    def written(self, plan: Plan) -> onnx.ModelProto:
        """The model with a plan's precisions, as ONNX."""
        proto = self.whole.written(self.whole.chosen(self._in(plan, INT8)))
        if int4 := self._in(plan, INT4):
            assert self.blocks is not None
            self.blocks.write(proto, self.blocks.chosen(int4))
        others = {layer.node for layer in self.layers if plan.get(layer.node) != BF16}
        with_narrow(proto, {layer.node for layer in self._in(plan, BF16)}, others)
        return proto

    def bytes_of(self, layer: WeightedLayer, precision: str) -> int:
        """What a layer's weights take: elements, and the scales of int8 and int4."""
        weights = self.model.constants[layer.weights]
        match precision:
            case "fp32" | "bf16":
                return int(weights.size) * (4 if precision == FP32 else 2)
            case "int8":
                return int(weights.size + 4 * weights.shape[layer.axis])
            case _:
                assert self.blocks is not None
                return self.blocks.bytes_of(layer)

    def _in(self, plan: Plan, precision: str) -> tuple[WeightedLayer, ...]:
        return tuple(layer for layer in self.layers if plan.get(layer.node) == precision)

    def _narrowed(self, layer: WeightedLayer) -> NarrowWeights:
        bias = self.model.constants.get(layer.bias)
        weights = rounded(self.model.constants[layer.weights])
        return NarrowWeights(weights, None if bias is None else rounded(bias))
