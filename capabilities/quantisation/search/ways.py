"""`Way`: how the layers of a model are quantised, to those who choose which.

`WithBytes` calibrates and writes Q/DQ pairs; `WithBlocks` takes the weights alone and writes
products with weights in blocks. Whoever looks for sensitive layers, or compares, sees one thing: of
a set of layers the numbers, and of the numbers a model.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from tilesmith.capabilities.quantisation.numbers.block_weights import (
    DOMAIN,
    Blocks,
    BlockWeights,
    block_weights,
    node_of,
)
from tilesmith.capabilities.quantisation.numbers.insertion import with_pairs
from tilesmith.capabilities.quantisation.numbers.parameters import Calibration, Parameters
from tilesmith.capabilities.quantisation.numbers.ranges import Method
from tilesmith.capabilities.quantisation.numbers.weights import checked_finite
from tilesmith.capabilities.quantisation.preparation.float_model import (
    FloatModel,
    readers_of,
    with_constants,
)
from tilesmith.capabilities.quantisation.preparation.plan import (
    QuantisationPlan,
    WeightedLayer,
    multiplications,
)
from tilesmith.capabilities.quantisation.search.calibration import observed
from tilesmith.capabilities.quantisation.search.emulation import Arrays, Floats


class Way(ABC):
    """See the module's docstring.

    Attributes:
        model: in float32.
        layers: all that may be quantised.
        full: the plan with all of them.
    """

    model: FloatModel
    layers: tuple[WeightedLayer, ...]
    full: QuantisationPlan

    @abstractmethod
    def chosen(self, layers: Iterable[WeightedLayer]) -> Parameters:
        """The scales and integers of some layers."""

    @abstractmethod
    def work(self, layer: WeightedLayer) -> int:
        """The work of a layer, in a unit that all layers share."""

    @abstractmethod
    def written(self, chosen: Parameters) -> onnx.ModelProto:
        """The model with these numbers."""


class WithBytes(Way):
    """Activations and weights in bytes.

    Args:
        operators, kept, fuse_residuals: as `QuantisationPlan.of`.
        method, symmetric: as `Calibration`.

    Attributes:
        seen: the tensors that calibration looks at.
    """

    def __init__(
        self,
        model: FloatModel,
        layers: tuple[WeightedLayer, ...],
        operators: tuple[str, ...],
        kept: frozenset[str],
        method: Method,
        symmetric: bool,
        fuse_residuals: bool = False,
    ) -> None:
        self.model, self.layers = model, layers
        self._operators, self._kept = operators, kept
        self._fuse_residuals = fuse_residuals
        self._method, self._symmetric = method, symmetric
        self.full = self._plan(layers)
        self.seen = tuple(self.full.groups)

    def calibrate(self, floats: Floats, samples: Sequence[Arrays]) -> None:
        """Observe samples. It is called before every other method."""
        seen = observed(floats, self.seen, samples)
        self._calibration = Calibration(
            self.model, seen, self._method, self._symmetric, self._fuse_residuals
        )

    def _plan(self, layers: Iterable[WeightedLayer]) -> QuantisationPlan:
        return QuantisationPlan.of(
            self.model, layers, self._operators, self._kept, self._fuse_residuals
        )

    def chosen(self, layers: Iterable[WeightedLayer]) -> Parameters:
        return self._calibration.parameters(self._plan(layers))

    def work(self, layer: WeightedLayer) -> int:
        return multiplications(self.model, layer, self.elements(layer))

    def elements(self, layer: WeightedLayer) -> int:
        """Elements of what a layer reads, in all samples that calibrated."""
        return self._calibration.seen[layer.source].total

    def written(self, chosen: Parameters) -> onnx.ModelProto:
        return with_pairs(self.model, chosen)


class WithBlocks(Way):
    """Weights of products in blocks; nothing else changes."""

    def __init__(
        self, model: FloatModel, layers: tuple[WeightedLayer, ...], blocks: Blocks
    ) -> None:
        self.model, self.layers = model, layers
        self.full = QuantisationPlan(layers, (), {})
        self._blocks = blocks
        self._known: dict[str, BlockWeights] = {}

    def chosen(self, layers: Iterable[WeightedLayer]) -> Parameters:
        wanted = tuple(layers)
        return Parameters(
            QuantisationPlan(wanted, (), {}),
            {},
            {layer.node: self._weights(layer) for layer in wanted},
        )

    def _weights(self, layer: WeightedLayer) -> BlockWeights:
        if layer.node not in self._known:
            weights = self.model.constants[layer.weights]
            checked_finite(layer, weights, None)
            self._known[layer.node] = block_weights(layer, weights, self._blocks)
        return self._known[layer.node]

    def work(self, layer: WeightedLayer) -> int:
        return int(self.model.constants[layer.weights].size)

    def written(self, chosen: Parameters) -> onnx.ModelProto:
        proto = onnx.ModelProto()
        proto.CopyFrom(self.model.proto)
        self.write(proto, chosen)
        read = readers_of(proto.graph)
        with_constants(proto, {n: v for n, v in self.model.constants.items() if read[n]})
        return proto

    def write(self, proto: onnx.ModelProto, chosen: Parameters) -> None:
        """Put products with weights in blocks in a model's layers' places."""
        graph, constants = proto.graph, dict[str, NDArray[Any]]()
        layers = {layer.node: layer for layer in chosen.plan.layers}
        for node in graph.node:
            if node.name in layers:
                names = self._write(node.name, constants)
                weights, bias = self._weights(layers[node.name]), layers[node.name].bias
                node.CopyFrom(node_of(node, weights, names, bias))
        with_constants(proto, constants)
        if DOMAIN not in {e.domain for e in proto.opset_import}:
            proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))

    def bytes_of(self, layer: WeightedLayer) -> int:
        """What a layer's weights take."""
        weights = self._weights(layer)
        zeros = 0 if weights.blocks.symmetric else weights.packed_zeros().nbytes
        return weights.packed().nbytes + weights.scales.nbytes + zeros

    def _write(self, node: str, constants: dict[str, NDArray[Any]]) -> tuple[str, str, str]:
        """Add a layer's constants; their names."""
        weights = self._known[node]
        taken: Mapping[str, Any] = {**self.model.constants, **self.model.producers}
        stem = f"{node}_weights"
        while any(f"{stem}_{part}" in taken for part in ("blocks", "scales", "zero_points")):
            stem += "_"
        constants[f"{stem}_blocks"] = weights.packed()
        constants[f"{stem}_scales"] = weights.scales
        if weights.blocks.symmetric:
            return f"{stem}_blocks", f"{stem}_scales", ""
        constants[f"{stem}_zero_points"] = weights.packed_zeros()
        return f"{stem}_blocks", f"{stem}_scales", f"{stem}_zero_points"
