"""Models on one LPU-like chip: what runs, what is left to the host, how long it takes.

    python benchmarks/accelerator/lpu_models.py [NAME | FILE.onnx ...] [--attention 12x512x64]

Names are those of the networks that the onnx package ships; `--attention` is heads x tokens x lanes
of plain products and a softmax, in float16. A line each: microseconds, MXM's share of its peak,
chains, steps on the host, and seconds to compile and to schedule; or why it is refused.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from tilesmith.compiler.backend import backend_of
from tilesmith.compiler.backends.lpu.program import Program, segments
from tilesmith.compiler.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.program import HostStep
from tilesmith.jobs.light_models import light_model_names, save_light_model
from tilesmith.search_space.errors import TilesmithError
from tilesmith.search_space.target import load_target


def attention(heads: int, tokens: int, width: int) -> onnx.ModelProto:
    """softmax(q k^T / sqrt(width)) v, of heads that are rows already."""
    shape = f"float[1, {heads}, {tokens}, {width}]"
    graph = parser.parse_graph(
        f"attention ({shape} q, {shape} k, {shape} v) => ({shape} y) {{ "
        "t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, t) r = Mul(s, scale) "
        "p = Softmax<axis = -1>(r) y = MatMul(p, v) }"
    )
    scale = np.array(width**-0.5, np.float32)
    graph.initializer.append(numpy_helper.from_array(scale, "scale"))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def line(name: str, model: onnx.ModelProto) -> str:
    """What became of a model."""
    target, began = load_target("lpu1"), time.perf_counter()
    try:
        recipe = build(import_model(model), target).recipe
        built = time.perf_counter()
        found = backend_of(target).simulate(recipe)
    except TilesmithError as error:
        return f"{name}: {error}"
    parts = segments(recipe, target)
    chains = sum(len(part.joined.flow.chains) for part in parts if isinstance(part, Program))
    hosts = Counter(step.name.split()[0] for step in recipe.steps if isinstance(step, HostStep))
    peak = found.details["model_roofline_us"] / found.latency_us
    took = f"compiled in {built - began:.0f} s, scheduled in {time.perf_counter() - built:.0f} s"
    host = ", ".join(f"{count} {operator}" for operator, count in hosts.items()) or "nothing"
    return (
        f"{name}: {found.latency_us:.1f} us, {peak:.1%} of peak, {chains} chains; on the host: "
        f"{host}; {took}"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("models", nargs="*", help="names or files")
    arguments.add_argument("--attention", metavar="HEADSxTOKENSxLANES")
    given = arguments.parse_args()
    if given.attention:
        print(line(given.attention, attention(*map(int, given.attention.split("x")))), flush=True)
    for name in given.models or ([] if given.attention else light_model_names()):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(name)
            if path.suffix != ".onnx":
                path = save_light_model(name, Path(folder) / "model.onnx")
            print(line(name, onnx.load(str(path))), flush=True)


if __name__ == "__main__":
    main()
