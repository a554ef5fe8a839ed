"""Sharded models over chips of an LPU-like node: cycles of the one program, and what it computes.

    python -m benchmarks.accelerator.lpu_sharded [--chips 2 4]

A perceptron and a layer of an encoder of BERT-base's sizes, cut as Megatron-LM cuts them (heads,
and the first product of the MLP by columns) and as optimisation finds best: us of the schedule, how
many times as fast as one chip, the estimate it was chosen by, and how far values are from the whole
model's in float32 (max |a - b| over max |b|).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

try:
    import numpy as np
    import onnx

    import tilesmith as ts
    from tests.capabilities.sharding.sharded_models import graph_of, mlp, transformer
    from tests.compiler.model_builder import inputs_of
    from tilesmith.compiler.backends.backend import backend_of
    from tilesmith.compiler.driver.build import build
    from tilesmith.compiler.host.reference import run_reference
    from tilesmith.search_space.meshes.mesh import Mesh, load_mesh
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

COLUMNS = (".q", ".k", ".v", ".up")
"""How names of weights end that are cut by columns."""

HEADER = ("model", "chips", "sharding", "us", "of one chip", "collectives", "estimate", "off")


def rows_of(
    name: str, model: onnx.ModelProto, mesh: Mesh, chips: list[int]
) -> Iterator[list[object]]:
    """A line for one chip, and two for each number of them."""
    graph = graph_of(model)
    given = inputs_of(graph)
    wanted = run_reference(graph, given)
    alone = backend_of(mesh.target).simulate(build(graph, mesh.target).recipe).latency_us
    yield [name, 1, "", f"{alone:.2f}", "", "", "", ""]
    hand = {n: "-,tensor" for n, v in graph.constants.items() if v.ndim > 1 and n.endswith(COLUMNS)}
    for count in chips:
        for how in ("by hand", "best"):
            specs = hand if how == "by hand" else {}
            made = ts.shard(model, mesh, cores=count, specs=specs, timeline=True)
            assert made.streams is not None and made.played is not None
            values = made.streams.run(given)
            off = max(np.abs(values[n] - w).max() / np.abs(w).max() for n, w in wanted.items())
            us = made.played.makespan_us
            yield [
                name, count, how, f"{us:.2f}", f"{alone / us:.2f}", made.played.collectives,
                f"{made.estimate_us:.2f}", f"{off:.1e}",
            ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", type=int, nargs="+", default=[2, 4])
    chips, mesh = parser.parse_args().chips, load_mesh("lpu1.node")
    print("|", " | ".join(HEADER), "|")
    print("|---" * len(HEADER) + "|")
    for name, model in (
        ("perceptron, 64 x 640, 2560", mlp(64, 640, 2560)),
        ("encoder, 128 x 768, 12 heads", transformer(1, 128, 768, 12)),
    ):
        for row in rows_of(name, model, mesh, chips):
            print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
