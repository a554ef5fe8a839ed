"""Two small models for the examples: `classifier.onnx` and `embedder.onnx`, with random weights.

python make_models.py [FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

CLASSIFIER = """classifier (float[1, 1, 28, 28] image) => (float[1, 10] probabilities) {
    c = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(image, w0, b0)
    r = Relu(c)
    d = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(r, w1, b1)
    s = Relu(d)
    f = Flatten(s)
    logits = Gemm(f, w2, b2)
    probabilities = Softmax(logits)
}"""

EMBEDDER = """embedder (int64[1, 16] tokens) => (float[1, 64] embedding) {
    rows = Gather(table, tokens)
    hidden = MatMul(rows, w)
    active = Tanh(hidden)
    embedding = ReduceMean<axes=[1], keepdims=0>(active)
}"""


def model(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """A model from its graph's text, with weights of these shapes."""
    rng = np.random.default_rng(0)
    graph = parser.parse_graph(text)
    for name, shape in shapes.items():
        scale = 1 / np.sqrt(max(1, np.prod(shape[1:])))
        array = (rng.standard_normal(shape) * scale).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(array, name))
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="here unless given")
    folder = parser.parse_args().folder
    classifier = model(
        CLASSIFIER, w0=(8, 1, 3, 3), b0=(8,), w1=(16, 8, 3, 3), b1=(16,), w2=(784, 10), b2=(10,)
    )
    onnx.save(classifier, str(folder / "classifier.onnx"))
    onnx.save(model(EMBEDDER, table=(1000, 32), w=(32, 64)), str(folder / "embedder.onnx"))


if __name__ == "__main__":
    main()
