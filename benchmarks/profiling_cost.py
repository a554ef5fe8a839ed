"""What profiling costs the run: ResNet-50, and a chain of 120 kernels of some 25 ns each.

Plain runs and those that are looked at take turns; medians are compared.

    python -m benchmarks.profiling_cost --threads 1 --seconds 8
"""

from __future__ import annotations

import argparse

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    rows = []
    for name, model in (("chain of 120 kernels", chain), ("ResNet-50", resnet50)):
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
