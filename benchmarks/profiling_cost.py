"""What profiling costs the run: ResNet-50, a chain of 120 kernels of some 25 ns, loops of an LSTM.

Plain runs and those that are looked at take turns; medians are compared.

    python -m benchmarks.profiling_cost --threads 1 --seconds 8
"""

from __future__ import annotations

import argparse
import re

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilesmith as ts
from benchmarks.models import resnet50
from tilesmith.display.output import table

PAIRS, WIDTH = 60, 16


def chain() -> onnx.ModelProto:
    """Products of one row with softmax after each: nothing of it fuses."""
    rng, nodes, weights, x = np.random.default_rng(0), [], [], "x"
    for number in range(PAIRS):
        weight = (rng.standard_normal((WIDTH, WIDTH)) / 4).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Softmax", [f"m{number}"], [f"s{number}"]))
        x = f"s{number}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("x", x)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def recurrent(length: int, width: int) -> onnx.ModelProto:
    """An LSTM: a loop of some kernels of about a hundred nanoseconds each."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 4 * width, width), "r": (1, 4 * width, width), "b": (1, 8 * width)}
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    node = helper.make_node("LSTM", ["x", *shapes], ["y"], hidden_size=width)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [length, 1, width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [length, 1, 1, width])
    graph = helper.make_graph([node], f"lstm{length}", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", default="", help="regular expression of the models")
    options = parser.parse_args()
    rows = []
    models = {
        "chain of 120 kernels": chain,
        "LSTM, 20 x 16": lambda: recurrent(20, 16),
        "LSTM, 20 x 64": lambda: recurrent(20, 64),
        "LSTM, 200 x 32": lambda: recurrent(200, 32),
        "ResNet-50": resnet50,
    }
    for name, model in models.items():
        if not re.search(options.only, name):
            continue
        report = ts.profile(
            model(), database=None, seconds=options.seconds, threads=options.threads
        )
        rest = 1 - report.ops_us / report.total_us
        rows.append(
            (name, report.runs, report.plain_us, report.timed_us, f"{report.cost:+.1%}",
             f"{rest:.1%}")
        )  # fmt: skip
    print(table(("model", "runs", "us plain", "us looked at", "cost", "remainder"), rows))


if __name__ == "__main__":
    main()
