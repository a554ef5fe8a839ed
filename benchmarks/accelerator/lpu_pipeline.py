"""Throughput of models split in a pipeline over 1 to 8 LPU-like chips, against linear.

    python benchmarks/accelerator/lpu_pipeline.py [--links 4] [--chips 8] [--set KEY=VALUE]

A perceptron of 16 layers and a small convolutional network, in float16. Links between neighbours
are those of the mesh; `--links 4` spreads a transfer over ways through other chips of the node too,
of which there are enough for seven transfers at once (7 x (1 + 3 x 2) of 56 links). Everything is
scheduled and checked, nothing is measured on hardware. The last table gives every chip a fraction
of its MEM, so that one does not hold the weights; linear is there from the fewest chips that do.
"""

from __future__ import annotations

import argparse

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.families.lpu.backend.chips.pipeline import Cutter
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.meshes.mesh import Mesh, load_mesh
from tilesmith.search_space.support.errors import ModelError


def _model(text: str, weights: dict[str, NDArray[np.float32]]) -> onnx.ModelProto:
    graph = parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(value, n) for n, value in weights.items())
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def _random(layer: int, *shape: int) -> NDArray[np.float32]:
    """Weights of a layer, other ones in each: equal weights would be kept once."""
    made = np.random.default_rng([layer, *shape]).standard_normal(shape).astype(np.float32)
    return made / np.float32(np.prod(shape[1:]) ** 0.5)


def perceptron(layers: int = 16, rows: int = 64, width: int = 640) -> onnx.ModelProto:
    """`layers` of Gemm and Relu, all `width` wide."""
    weights, body = {}, ""
    for n in range(layers):
        weights[f"w{n}"], weights[f"b{n}"] = _random(n, width, width), _random(n, 1, width)[0]
        body += f"h{n} = Gemm(a{n}, w{n}, b{n}) a{n + 1} = Relu(h{n}) "
    body = body.replace("a0,", "x,").replace(f"a{layers} ", "y ")
    shapes = f"(float[{rows}, {width}] x) => (float[{rows}, {width}] y)"
    return _model(f"mlp {shapes} {{ {body} }}", weights)


def convolutional(layers: int = 8, side: int = 8, channels: int = 64) -> onnx.ModelProto:
    """`layers` of 3 x 3 Conv and Relu on images of `side` by `side`."""
    weights, body, depth = {}, "", 3
    for n in range(layers):
        weights[f"w{n}"] = _random(n, channels, depth, 3, 3)
        weights[f"b{n}"] = _random(n, 1, channels)[0]
        body += f"h{n} = Conv<pads=[1,1,1,1]>(a{n}, w{n}, b{n}) a{n + 1} = Relu(h{n}) "
        depth = channels
    body = body.replace("a0,", "x,").replace(f"a{layers} ", "y ")
    shapes = f"(float[1, 3, {side}, {side}] x) => (float[1, {channels}, {side}, {side}] y)"
    return _model(f"cnn {shapes} {{ {body} }}", weights)


def links_between(mesh: Mesh) -> int:
    """Links of the core's target between two chips of the mesh."""
    level = mesh.levels[0]
    each = level.gbps / max(1, level.members - 1)
    return max(1, round(each / mesh.target.number("c2c.gbps")))


def report(model: onnx.ModelProto, target: Target, links: int, most: int) -> None:
    """One table: a line for each number of chips."""
    whole = target.with_settings({"mem.words": str(int(target.number("mem.words")) * 16)})
    built = build(import_model(model), whole)
    cutter, first = Cutter(built.recipe, target, links), 0.0
    mib = cutter.weights(0, len(cutter.kernels)) / 2**20
    print(f"\n{model.graph.name}: {len(cutter.kernels)} kernels, {mib:.1f} MiB of weights, "
          f"{cutter.chip.sram_bytes / 2**20:.1f} MiB of MEM a chip")  # fmt: skip
    print("| chips | period, cycles | slowest transfer | inferences/s | of linear | latency, us |")
    print("|---|---|---|---|---|---|")
    for chips in range(1, most + 1):
        try:
            found = cutter.cut(chips)
        except ModelError as error:
            print(f"{chips}: {error}")
            continue
        first = first or found.per_second / chips
        print(
            f"| {chips} | {found.period:,} | {max(stage.sent for stage in found.stages):,} "
            f"| {found.per_second:,.0f} | {found.per_second / first / chips:.1%} "
            f"| {found.latency / found.ghz / 1e3:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", type=int, default=8, help="at most")
    parser.add_argument("--target", default="lpu1.node", help="a mesh of chips")
    parser.add_argument("--links", type=int, help="between neighbours; the mesh's if not given")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    mesh = load_mesh(arguments.target).with_settings(settings)
    links = arguments.links or links_between(mesh)
    print(f"{mesh.name}: {links} link(s) of {mesh.target.number('c2c.gbps'):g} GB/s between chips")
    for model in (perceptron(), convolutional()):
        report(model, mesh.target, links, min(arguments.chips, mesh.chips))
    small = mesh.target.with_settings({"mem.words": "192"})
    report(perceptron(), small, links, min(arguments.chips, mesh.chips))


if __name__ == "__main__":
    main()
