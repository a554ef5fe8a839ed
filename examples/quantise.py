"""Quantisation that can be judged: a small network is trained on handwritten digits in seconds, and
each way of quantising it is asked how many digits it still knows.

    python examples/quantise.py [--epochs 40] [--folder build/quantise]

The 1,797 images of 8 x 8 come with scikit-learn; 1,297 train, 500 test. The network has a depthwise
convolution whose channels differ a thousandfold in scale, as those of mobile networks may. What is
made stays in the folder: digits.onnx, calibration.npz.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from sklearn.datasets import load_digits

import tilesmith as ts

Array = NDArray[np.float32]
Weights = dict[str, Array]

GRAPH = """digits (float[rows, 1, 8, 8] image) => (float[rows, 10] digit)
{
    a = Conv <pads = [1, 1, 1, 1]> (image, w1, b1) r = Relu(a)
    s = Conv <group = 16> (r, spread) d = Conv <pads = [1, 1, 1, 1], group = 16> (s, wd, bd)
    e = Relu(d) p = Conv(e, w2, b2) q = Add(p, r) h = Relu(q)
    m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (h)
    f = Conv <pads = [1, 1, 1, 1]> (m, w3, b3) g = Relu(f)
    k = GlobalAveragePool(g) l = Flatten(k) digit = Gemm(l, w4, b4)
}"""
"""`spread` multiplies each channel by a number of its own; `wd` is divided by it."""


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--epochs", type=int, default=25)
    options.add_argument("--folder", type=Path, default=Path("build/quantise"))
    asked = options.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    x = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:-500], order[-500:]

    weights = trained(x[train], labels[train], asked.epochs)
    model = model_of(weights)
    onnx.save(model, str(folder / "digits.onnx"))
    np.savez(folder / "calibration.npz", image=x[train[:200]])

    def known(what: onnx.ModelProto) -> float:
        compiled = ts.compile(what, shapes={"rows": (500,)})
        found = compiled.run({"image": x[test]})["digit"].argmax(axis=1)
        return float((found == labels[test]).mean())

    print(f"{'':34}digits known   error")
    print(f"{'fp32':34}{known(model):12.1%}")
    report(model, x[train[:200]], known)
    print(f"\n{folder}: digits.onnx and calibration.npz, for 'tilesmith quantize'")


def report(model: onnx.ModelProto, data: Array, known: Callable[[onnx.ModelProto], float]) -> None:
    """Quantise in several ways; what the outputs are off by, and how many digits are known."""
    ways: Mapping[str, Mapping[str, Any]] = {
        "int8, minmax": {},
        "int8, percentile:99.9": {"method": "percentile:99.9"},
        "int8, mse": {"method": "mse"},
        "int8, equalised": {"equalise": True},
        "int8, error of at most 0.05": {"budget": 0.05},
        "products' weights in int4": {"weights": "int4", "block": 16},
    }
    for name, asked in ways.items():
        found = ts.quantize(model, data, samples=200, **asked)
        accuracy = found.report.accuracy
        assert accuracy is not None
        kept = f"   in fp32: {', '.join(found.report.kept)}" if "budget" in asked else ""
        print(f"{name:34}{known(found.model):12.1%}{accuracy.error:8.3f}{kept}")


def model_of(weights: Weights) -> onnx.ModelProto:
    """The network as ONNX; channels of the depthwise convolution's input are spread."""
    spread = np.logspace(-1.5, 1.5, 16, dtype=np.float32).reshape(16, 1, 1, 1)
    constants = {**weights, "spread": spread, "wd": weights["wd"] / spread}
    graph = parser.parse_graph(GRAPH)
    for name, value in constants.items():
        graph.initializer.append(numpy_helper.from_array(value, name))
    for node in graph.node:
        node.name = f"{node.op_type.lower()}_{node.output[0]}"
    opsets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


# -- training, in numpy -------------------------------------------------------------------------
def trained(x: Array, labels: NDArray[Any], epochs: int) -> Weights:
    """Weights by Adam on the cross entropy, 64 images at a time."""
    rng = np.random.default_rng(1)
    shapes = {"w1": (16, 1, 3, 3), "wd": (16, 1, 3, 3), "w2": (16, 16, 1, 1)}
    shapes |= {"w3": (32, 16, 3, 3), "w4": (32, 10)}
    weights: Weights = {
        name: (rng.standard_normal(shape) * (2 / _fan_in(name, shape)) ** 0.5).astype(np.float32)
        for name, shape in shapes.items()
    }
    for name, size in {"b1": 16, "bd": 16, "b2": 16, "b3": 32, "b4": 10}.items():
        weights[name] = np.zeros(size, np.float32)
    first = {name: np.zeros_like(value) for name, value in weights.items()}
    second = {name: np.zeros_like(value) for name, value in weights.items()}
    step = 0
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for part in np.array_split(order, len(x) // 64):
            step += 1
            for name, slope in gradients(weights, x[part], labels[part]).items():
                first[name] = 0.9 * first[name] + 0.1 * slope
                second[name] = 0.999 * second[name] + 0.001 * slope**2
                mean, spread = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
                weights[name] -= (0.003 * mean / (np.sqrt(spread) + 1e-8)).astype(np.float32)
    return weights


def _fan_in(name: str, shape: tuple[int, ...]) -> float:
    return float(shape[0] if name == "w4" else np.prod(shape[1:]))


def gradients(weights: Weights, x: Array, labels: NDArray[Any]) -> Weights:
    """Of the mean cross entropy; forward and backward through the network by hand."""
    w = weights
    a = convolved(x, w["w1"], w["b1"])
    r = np.maximum(a, 0)
    d = depthwise(r, w["wd"]) + w["bd"][:, None, None]
    e = np.maximum(d, 0)
    q = convolved(e, w["w2"], w["b2"]) + r
    h = np.maximum(q, 0)
    cells = h.reshape(len(x), 16, 4, 2, 4, 2)
    m = cells.max(axis=(3, 5))
    f = convolved(m, w["w3"], w["b3"])
    g = np.maximum(f, 0)
    k = g.mean(axis=(2, 3))
    scores = k @ w["w4"] + w["b4"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    odds[np.arange(len(x)), labels] -= 1
    odds /= len(x)
    slopes: Weights = {"w4": k.T @ odds, "b4": odds.sum(axis=0)}
    back = np.broadcast_to((odds @ w["w4"].T)[:, :, None, None] / 16, f.shape) * (f > 0)
    slopes["w3"], slopes["b3"], back = behind(m, w["w3"], back)
    greatest = cells == m[:, :, :, None, :, None]
    back = (greatest * back[:, :, :, None, :, None]).reshape(h.shape) * (q > 0)
    slopes["w2"], slopes["b2"], inner = behind(e, w["w2"], back)
    inner = inner * (d > 0)
    slopes["wd"] = np.einsum("nchwij,nchw->cij", windows(r, 3), inner)[:, None]
    slopes["bd"] = inner.sum(axis=(0, 2, 3))
    back = (back + depthwise(inner, w["wd"][:, :, ::-1, ::-1])) * (a > 0)
    slopes["w1"], slopes["b1"], _ = behind(x, w["w1"], back)
    return slopes


def windows(x: Array, size: int) -> NDArray[Any]:
    """Of every place the window around it: [n, c, h, w, size, size]."""
    edge = size // 2
    padded = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge)))
    return sliding_window_view(padded, (size, size), axis=(2, 3))


def convolved(x: Array, w: Array, b: Array) -> Array:
    """The convolution that keeps height and width."""
    return np.moveaxis(np.tensordot(windows(x, w.shape[2]), w, ((1, 4, 5), (1, 2, 3))) + b, 3, 1)


def depthwise(x: Array, w: Array) -> Array:
    """The convolution of every channel with a window of its own."""
    return np.einsum("nchwij,cij->nchw", windows(x, 3), w[:, 0])


def behind(x: Array, w: Array, slope: NDArray[Any]) -> tuple[Array, Array, Array]:
    """Of a convolution: slopes of its weights, its bias and its input."""
    of_weights = np.tensordot(slope, windows(x, w.shape[2]), ((0, 2, 3), (0, 2, 3)))
    turned = np.ascontiguousarray(np.swapaxes(w, 0, 1)[:, :, ::-1, ::-1])
    of_input = convolved(slope, turned, np.zeros(w.shape[1], np.float32))
    return of_weights, slope.sum(axis=(0, 2, 3)), of_input


if __name__ == "__main__":
    main()
