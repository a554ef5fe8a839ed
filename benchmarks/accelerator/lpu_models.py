"""Models on one LPU-like chip: what runs, what is left to the host, how long it takes.

    python benchmarks/accelerator/lpu_models.py [NAME | FILE.onnx ...] [--int8] [--values]
        [--attention 12x512x64]

Names are those of the networks that the onnx package ships, and mobilenet_v2, efficientnet_b0 and
unet, which are built here; `--attention` is heads x tokens x lanes of plain products and a softmax,
in float16. A line each: microseconds, MXM's share of its peak, chains, steps on the host, and
seconds to compile and to schedule; or why it is refused.

With --int8 they are quantised on one random sample first. With --values the schedule is executed on
a random image, and what it computes compared with onnxruntime, in float32 (of --int8: what the same
quantised model gives there, without optimisations): max |a - b| / max |b|, and the norm of the
difference over that of the result; "shaken" is the same of onnxruntime itself on images larger or
smaller by up to three millionths. A final softmax, which would hide errors, is left out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

try:
    import numpy as np
    import onnx
    from onnx import numpy_helper, parser

    from benchmarks.accelerator.subjects.beside_onnxruntime import beside
    from benchmarks.accelerator.subjects.small_networks import efficientnet_b0, unet
    from benchmarks.models import MODELS
    from tilesmith import quantize
    from tilesmith.compiler.backends.backend import backend_of
    from tilesmith.compiler.driver.build import build
    from tilesmith.compiler.onnx.importer import import_model
    from tilesmith.compiler.recipe.program import HostStep
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.families.lpu.backend.programs.program import ChipProgram, segments
    from tilesmith.jobs.compilation.compiling import random_inputs
    from tilesmith.jobs.subjects.light_models import light_model_names, save_light_model
    from tilesmith.search_space.hardware.target import load_target
    from tilesmith.search_space.support.errors import TilesmithError
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None


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


BUILT = {
    "mobilenet_v2": MODELS["mobilenet_v2"], "efficientnet_b0": efficientnet_b0, "unet": unet,
}  # fmt: skip


def without_softmax(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without a final softmax."""
    if model.graph.node[-1].op_type == "Softmax":
        model.graph.output[0].name = model.graph.node.pop().input[0]
        model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """In int8, by one random sample."""
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, Path(folder) / "model.onnx")
        return quantize(Path(folder) / "model.onnx", random=1, fuse_residuals=True).model


def differences(executable: Executable, model: onnx.ModelProto) -> str:
    """What a compiled model computes, beside onnxruntime."""
    found = beside(executable, model, random_inputs(executable))
    return (
        f"off by {found.ours.relative:.1e} (norm {found.ours.norm:.1e}), shaken "
        f"{found.shaken.relative:.1e} (norm {found.shaken.norm:.1e}), executed in "
        f"{found.seconds:.0f} s"
    )


def line(name: str, model: onnx.ModelProto, values: bool = False) -> str:
    """What became of a model."""
    target, began = load_target("lpu1"), time.perf_counter()
    try:
        executable = build(import_model(model), target)
        recipe = executable.recipe
        built = time.perf_counter()
        found = backend_of(target).simulate(recipe)
    except TilesmithError as error:
        return f"{name}: {error}"
    parts = segments(recipe, target)
    chains = sum(len(part.joined.flow.chains) for part in parts if isinstance(part, ChipProgram))
    hosts = Counter(step.name.split()[0] for step in recipe.steps if isinstance(step, HostStep))
    peak = found.details["model_roofline_us"] / found.latency_us
    took = f"compiled in {built - began:.0f} s, scheduled in {time.perf_counter() - built:.0f} s"
    host = ", ".join(f"{count} {operator}" for operator, count in hosts.items()) or "nothing"
    off = f"; {differences(executable, model)}" if values else ""
    return (
        f"{name}: {found.latency_us:.1f} us, {peak:.1%} of peak, {chains} chains; on the host: "
        f"{host} ({found.details['host_us']:.1f} us); {took}{off}"
    )


def model_of(name: str) -> onnx.ModelProto:
    """A network by its name, or of a file."""
    if name in BUILT:
        return BUILT[name]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(name)
        if path.suffix != ".onnx":
            path = save_light_model(name, Path(folder) / "model.onnx")
        return onnx.load(str(path))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("models", nargs="*", help="names or files")
    arguments.add_argument("--attention", metavar="HEADSxTOKENSxLANES")
    arguments.add_argument("--int8", action="store_true", help="quantise them first")
    arguments.add_argument("--values", action="store_true", help="execute them, too")
    given = arguments.parse_args()
    if given.attention:
        print(line(given.attention, attention(*map(int, given.attention.split("x")))), flush=True)
    every = [] if given.attention else [*light_model_names(), *BUILT]
    for name in given.models or every:
        model = model_of(name)
        model = without_softmax(model) if given.values else model
        model = quantised(model) if given.int8 else model
        print(line(name, model, given.values), flush=True)


if __name__ == "__main__":
    main()
