"""Small models written as text, each compiled for a simulated core: what is printed of one.

A line has latency and roofline of the model, how many kernels it became, how many operators are
left on the host, and the error max|a - b| / max|b| against ONNX Runtime on the same random inputs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper, parser

import tilesmith
from tilesmith.jobs.compilation.compiling import random_inputs


def model_of(text: str, weights: Mapping[str, Any]) -> onnx.ModelProto:
    """A model of one graph in ONNX's text form, with the weights that it names."""
    graph = parser.parse_graph(f"g {text}")
    used = {name for node in graph.node for name in node.input}
    for name in sorted(used & weights.keys()):
        graph.initializer.append(numpy_helper.from_array(np.asarray(weights[name]), name))
    opset = onnx.helper.make_opsetid("", 21)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def line(name: str, model: onnx.ModelProto, path: Path, target: str, precision: str) -> str:
    """What is printed of one model, whose output is called y."""
    onnx.save(model, str(path))
    try:
        executable = tilesmith.compile(path, target, precision=precision)
    except tilesmith.TilesmithError as error:
        return f"{name:36s} refused: {error}"
    inputs = random_inputs(executable)
    found = executable.run(inputs)["y"].astype(np.float64)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, dict(inputs))
    error = np.abs(found - wanted).max() / np.abs(wanted.astype(np.float64)).max()
    simulated = tilesmith.simulate(path, target, precision=precision)
    host = simulated.details["host"]
    roofline = simulated.details["model_roofline_us"]
    where = f", {host} on the host" if host else ""
    return (
        f"{name:36s} {simulated.latency_us:8.1f} us, roofline {roofline:6.1f} us, "
        f"{executable.report.default} kernels{where}, error {error:.1e}"
    )


def main(doc: str | None, cases: Mapping[str, str], weights: Mapping[str, Any]) -> None:
    """Print a line for each case, a graph by name; `doc`: of the module whose cases they are."""
    arguments = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    arguments.add_argument("--target", default="trn1")
    arguments.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    arguments.add_argument("--only", default="", help="words, comma-separated, of names to show")
    asked = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in cases.items():
            if any(word in name for word in asked.only.split(",")):
                model, path = model_of(text, weights), Path(folder) / "case.onnx"
                print(line(name, model, path, asked.target, asked.precision), flush=True)
