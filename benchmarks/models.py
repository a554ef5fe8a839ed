"""Writes the benchmark models as ONNX files: `python benchmarks/models.py --folder build/models`.

ResNet-50 and SqueezeNet are the graphs that the `onnx` package ships, with seeded random weights.
The MLP, MobileNetV2 and the transformer encoder are built here, operator by operator as PyTorch's
exporter writes them (batch normalisation already folded into MobileNetV2's convolutions, GELU as
Erf), so that no deep learning framework is needed. Shapes follow the papers: MobileNetV2 (Sandler
et al. 2018, table 2, width 1.0, 224 x 224), a post-norm encoder (Vaswani et al. 2017; BERT's GELU)
of 6 layers, width 384, 12 heads, hidden size 1536, at sequence length 128.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tilesmith.compiler.graph.seed_weights import seed_weights

OPSET = 17


class Builder:
    """Appends nodes to a graph; every method returns the name of the tensor it makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        result = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [result], result, **attributes))
        return result

    def constant(self, value: NDArray[np.generic] | float | list[int]) -> str:
        array = (
            np.asarray(value, dtype=np.float32) if isinstance(value, float) else np.asarray(value)
        )
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(np.zeros(shape, dtype=np.float32))

    def model(self, name: str, inputs: dict[str, tuple[int, ...]], output: str) -> onnx.ModelProto:
        values = [
            helper.make_tensor_value_info(key, TensorProto.FLOAT, shape)
            for key, shape in inputs.items()
        ]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, name, values, [result], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = 8
        return onnx.shape_inference.infer_shapes(model)


def light(name: str) -> onnx.ModelProto:
    """A network the onnx package ships with constant fills as weights."""
    path = files("onnx") / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
    return onnx.load_model_from_string(path.read_bytes())


def resnet50() -> onnx.ModelProto:
    return seed_weights(light("resnet50"))


def squeezenet() -> onnx.ModelProto:
    return seed_weights(light("squeezenet"))


def mlp() -> onnx.ModelProto:
    """784-512-512-10 at batch 64, ReLU between."""
    b = Builder()
    x = "x"
    for width_in, width_out in ((784, 512), (512, 512), (512, 10)):
        x = b.op("Gemm", x, b.weight(width_out, width_in), b.weight(width_out), transB=1)
        if width_out != 10:
            x = b.op("Relu", x)
    return seed_weights(b.model("mlp", {"x": (64, 784)}, x))


def _convolution(
    b: Builder, x: str, channels: tuple[int, int], kernel: int, stride: int = 1, group: int = 1
) -> str:
    weight = b.weight(channels[1], channels[0] // group, kernel, kernel)
    pad = kernel // 2
    return b.op(
        "Conv", x, weight, b.weight(channels[1]), kernel_shape=[kernel, kernel],
        strides=[stride, stride], pads=[pad] * 4, group=group, dilations=[1, 1],
    )  # fmt: skip


def _relu6(b: Builder, x: str) -> str:
    return b.op("Clip", x, b.constant(0.0), b.constant(6.0))


def mobilenet_v2() -> onnx.ModelProto:
    """Table 2 of the paper: expansion, channels, repeats, stride."""
    b = Builder()
    table = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    )  # fmt: skip
    x, width = _relu6(b, _convolution(b, "x", (3, 32), 3, 2)), 32
    for expansion, channels, repeats, first_stride in table:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            hidden, y = width * expansion, x
            if expansion > 1:
                y = _relu6(b, _convolution(b, y, (width, hidden), 1))
            y = _relu6(b, _convolution(b, y, (hidden, hidden), 3, stride, group=hidden))
            y = _convolution(b, y, (hidden, channels), 1)
            x = b.op("Add", x, y) if stride == 1 and width == channels else y
            width = channels
    x = _relu6(b, _convolution(b, x, (width, 1280), 1))
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    x = b.op("Gemm", x, b.weight(1000, 1280), b.weight(1000), transB=1)
    return seed_weights(b.model("mobilenet_v2", {"x": (1, 3, 224, 224)}, x))


def _linear(b: Builder, x: str, width_in: int, width_out: int) -> str:
    return b.op("Add", b.weight(width_out), b.op("MatMul", x, b.weight(width_in, width_out)))


def _gelu(b: Builder, x: str) -> str:
    erf = b.op("Erf", b.op("Div", x, b.constant(1.4142135381698608)))
    return b.op("Mul", b.op("Mul", x, b.op("Add", erf, b.constant(1.0))), b.constant(0.5))


def _norm(b: Builder, x: str, width: int) -> str:
    return b.op("LayerNormalization", x, b.weight(width), b.weight(width), epsilon=1e-12, axis=-1)


def _attention(b: Builder, x: str, width: int, heads: int, length: int) -> str:
    depth = width // heads
    parts = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):  # query, key (transposed), value
        split = b.constant(np.array([1, length, heads, depth], dtype=np.int64))
        parts.append(
            b.op("Transpose", b.op("Reshape", _linear(b, x, width, width), split), perm=order)
        )
    scores = b.op("Div", b.op("MatMul", parts[0], parts[1]), b.constant(float(np.sqrt(depth))))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), parts[2])
    joined = b.op(
        "Reshape", b.op("Transpose", mixed, perm=[0, 2, 1, 3]),
        b.constant(np.array([1, length, width], dtype=np.int64)),
    )  # fmt: skip
    return _linear(b, joined, width, width)


def encoder(
    layers: int = 6, width: int = 384, heads: int = 12, length: int = 128
) -> onnx.ModelProto:
    """A transformer encoder on embedded tokens, 1 x length x width."""
    b = Builder()
    x = "x"
    for _ in range(layers):
        x = _norm(b, b.op("Add", x, _attention(b, x, width, heads, length)), width)
        hidden = _gelu(b, _linear(b, x, width, 4 * width))
        x = _norm(b, b.op("Add", x, _linear(b, hidden, 4 * width, width)), width)
    return seed_weights(b.model("encoder", {"x": (1, length, width)}, x))


LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
         "squeezenet", "vgg19", "zfnet512")  # fmt: skip
"""Networks that the onnx package ships."""


def _seeded(name: str) -> Callable[[], onnx.ModelProto]:
    return lambda: seed_weights(light(name))


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{name: _seeded(name) for name in LIGHT},
    "resnet50": resnet50,
    "squeezenet": squeezenet,
    "mobilenet_v2": mobilenet_v2,
    "encoder": encoder,
    "mlp": mlp,
}


def write_models(folder: Path, names: list[str]) -> list[Path]:
    """Write the named models into `folder`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in names:
        path = folder / f"{name}.onnx"
        onnx.save(MODELS[name](), path)
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("build/models"))
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MODELS)}; all by default")
    arguments = parser.parse_args()
    for path in write_models(arguments.folder, arguments.names or list(MODELS)):
        print(path)


if __name__ == "__main__":
    main()
