"""`Emulation`: one executable that computes a model under any choice of what is quantised.

Rounding to bytes and back is arithmetic on float32,

    min(max(round(x / scale), low - zero), high - zero) * scale,

so it stands in the model wherever a plan may want it, with scale and bounds as inputs; weights and
biases are inputs, too. A choice is then a set of arrays, and to try a hundred of them compiles
nothing. Sums are of float32 here and of integers in the quantised model; both are exact enough that
they differ where a value is at the edge between two bytes only. Where something is not to be
rounded, its scale is so small that nothing is lost. Layers may be in bfloat16 instead, too: what
they read is rounded to it where a flag says so.

`Floats` is the same model with tensors to look at as further outputs.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tilesmith.capabilities.quantisation.numbers.narrow import NarrowWeights
from tilesmith.capabilities.quantisation.numbers.parameters import Parameters
from tilesmith.capabilities.quantisation.preparation.float_model import FloatModel, readers_of
from tilesmith.capabilities.quantisation.preparation.plan import QuantisationPlan, WeightedLayer
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.files.arrays import typed_only
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.hardware.target import Target

Arrays = Mapping[str, NDArray[Any]]

_NOT_ROUNDED = (np.float32(2.0**-60), np.float32(-np.inf), np.float32(np.inf))
"""A scale that is a power of two divides exactly, and no float32 that matters has digits below."""


class CompiledForShapes:
    """A model that is compiled for each combination of shapes that it is given.

    Args:
        threads: that its kernels use.
        constants: initialisers that are not in the model; they are not copied.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        target: Target,
        threads: int = 1,
        constants: Arrays | None = None,
    ) -> None:
        self._proto = proto
        self._held = constants or {}
        for name, value in self._held.items():
            proto.graph.initializer.append(typed_only(name, value))
        self._target = target
        self._options = BuildOptions(threads)
        self._known: dict[tuple[tuple[str, tuple[int, ...]], ...], Executable] = {}

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """The outputs; errors as `import_model`, `build` and `Executable.run`."""
        key = tuple((name, value.shape) for name, value in inputs.items())
        if key not in self._known:
            graph = import_model(self._proto, dict(key), self._held)
            self._known[key] = build(graph, self._target, options=self._options)
        return self._known[key].run(inputs)


class Floats:
    """A model in float32, with further tensors as outputs.

    Args:
        seen: the tensors.
    """

    def __init__(
        self, model: FloatModel, seen: Iterable[str], target: Target, threads: int = 1
    ) -> None:
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        given = {value.name for value in model.inputs}
        self._given = tuple(name for name in seen if name in given)
        for name in seen:
            if name not in given and name not in model.outputs:
                proto.graph.output.append(_given(name))
        self._compiled = CompiledForShapes(proto, target, threads, model.constants)

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """The model's outputs and the tensors, by name."""
        outputs = self._compiled.run(inputs)
        return {**outputs, **{name: inputs[name] for name in self._given}}


class Emulation:
    """See the module's docstring.

    Args:
        plan: with everything that may be quantised.
        narrow: whether layers may be in bfloat16.
    """

    def __init__(
        self,
        model: FloatModel,
        plan: QuantisationPlan,
        target: Target,
        threads: int = 1,
        narrow: bool = False,
    ) -> None:
        self._model = model
        self._plan = plan
        self._narrow = narrow
        self._names = {layer.node: _names(layer, model) for layer in plan.layers}
        proto = self._emulated()
        read = readers_of(proto.graph)
        left = {name: value for name, value in model.constants.items() if read[name]}
        self._compiled = CompiledForShapes(proto, target, threads, left)

    def run(self, inputs: Arrays, chosen: Parameters) -> dict[str, NDArray[Any]]:
        """The outputs under a choice, by name.

        Args:
            chosen: of a plan that is a part of this one's.
        """
        return self._compiled.run({**inputs, **self.arrays(chosen)})

    def arrays(self, chosen: Parameters) -> dict[str, NDArray[Any]]:
        """A choice as inputs."""
        fed: dict[str, NDArray[Any]] = {}
        rounded = frozenset(chosen.plan.reads)
        for number, read in enumerate(self._plan.reads):
            values = _NOT_ROUNDED
            if read in rounded:
                affine = chosen.tensors[read.tensor]
                low, high = (np.float32(end - affine.zero) for end in affine.bounds)
                values = (affine.scale, low, high)
            for name, value in zip(_parts(number), values, strict=True):
                fed[name] = np.asarray(value)
            if self._narrow:
                narrow = isinstance(chosen.layers.get(read.node), NarrowWeights)
                fed[_flag(number)] = np.asarray(narrow)
        for layer in self._plan.layers:
            coded = chosen.layers.get(layer.node)
            weights, bias = self._names[layer.node]
            own = self._model.constants[layer.weights]
            fed[weights] = own if coded is None else coded.floats()
            if bias:
                given = None if coded is None else coded.float_bias()
                was = self._model.constants[layer.bias]
                fed[bias] = was if given is None else given.reshape(was.shape)
        return fed

    def _emulated(self) -> onnx.ModelProto:
        proto = onnx.ModelProto()
        proto.CopyFrom(self._model.proto)
        graph = proto.graph
        numbers = {(r.node, r.position): n for n, r in enumerate(self._plan.reads)}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for position, name in enumerate(node.input):
                if (node.name, position) in numbers:
                    nodes += _rounding(name, numbers[node.name, position], self._narrow)
                    node.input[position] = nodes[-1].output[0]
            if node.name in self._names:
                weights, bias = self._names[node.name]
                node.input[1] = weights
                if bias:
                    node.input[2] = bias
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
        self._declare(graph)
        return proto

    def _declare(self, graph: onnx.GraphProto) -> None:
        number = onnx.TensorProto.FLOAT
        for place in range(len(self._plan.reads)):
            for name in _parts(place):
                graph.input.append(helper.make_tensor_value_info(name, number, ()))
            if self._narrow:
                flag = helper.make_tensor_value_info(_flag(place), onnx.TensorProto.BOOL, ())
                graph.input.append(flag)
        for layer in self._plan.layers:
            for name, constant in zip(
                self._names[layer.node], (layer.weights, layer.bias), strict=True
            ):
                if name:
                    shape = self._model.constants[constant].shape
                    graph.input.append(helper.make_tensor_value_info(name, number, shape))


def _given(name: str) -> onnx.ValueInfoProto:
    """A tensor as an output."""
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


def _names(layer: WeightedLayer, model: FloatModel) -> tuple[str, str]:
    """Of a layer's inputs for weights and bias ("" for a bias that is not constant)."""
    constant = layer.bias in model.constants
    return f"emulated:{layer.node}/weights", f"emulated:{layer.node}/bias" if constant else ""


def _parts(number: int) -> tuple[str, str, str]:
    """The inputs that one rounding takes: scale, least and greatest step."""
    return (
        f"emulated:read{number}/scale",
        f"emulated:read{number}/low",
        f"emulated:read{number}/high",
    )


def _flag(number: int) -> str:
    """The input that says whether one rounding is to bfloat16."""
    return f"emulated:read{number}/narrow"


def _rounding(tensor: str, number: int, narrow: bool) -> list[onnx.NodeProto]:
    scale, low, high = _parts(number)

    def step(operator: str, inputs: list[str], result: str, **stated: Any) -> onnx.NodeProto:
        name = f"emulated:read{number}/{result}"
        return helper.make_node(operator, inputs, [name], f"{name}/node", **stated)

    nodes = [step("Div", [tensor, scale], "steps")]
    for operator, bound, result in (
        ("Round", "", "whole"),
        ("Max", low, "above"),
        ("Min", high, "kept"),
    ):
        nodes.append(step(operator, [nodes[-1].output[0], bound][: 1 + bool(bound)], result))
    nodes.append(step("Mul", [nodes[-1].output[0], scale], "value"))
    if narrow:
        value = nodes[-1].output[0]
        nodes.append(step("Cast", [tensor], "bf16", to=onnx.TensorProto.BFLOAT16))
        nodes.append(step("Cast", [nodes[-1].output[0]], "wide", to=onnx.TensorProto.FLOAT))
        nodes.append(step("Where", [_flag(number), nodes[-1].output[0], value], "either"))
    return nodes
