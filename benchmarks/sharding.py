"""The best shardings of a few models, how long they take to find, and one made by hand beside them.

    python benchmarks/sharding.py [--mesh trn1.32xlarge] [--layers 12]

The hand's cuts products as Megatron-LM does (queries, keys, values and the first product of the MLP
by columns over "tensor", the batch over "data"), the rest follows by propagation. Times are of one
run: computing by rooflines, neighbours fused, and collectives, none hidden.
"""

from __future__ import annotations

import argparse
import time

try:
    import onnx

    from tests.capabilities.sharding.sharded_models import (
        convolutions,
        experts,
        graph_of,
        mlp,
        transformer,
    )
    from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
    from tilesmith.capabilities.sharding.layouts.specs import parse
    from tilesmith.capabilities.sharding.partitioning.costs import Costs
    from tilesmith.capabilities.sharding.partitioning.partition import partition
    from tilesmith.capabilities.sharding.partitioning.prepare import shardable
    from tilesmith.capabilities.sharding.partitioning.propagation import propagate
    from tilesmith.capabilities.sharding.partitioning.report import Account, account
    from tilesmith.capabilities.sharding.search.best import best_sharding
    from tilesmith.display.output import table
    from tilesmith.search_space.meshes.mesh import Mesh, load_mesh
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

COLUMNS = (".qkv", ".q", ".k", ".v", ".up", "up")
"""How names of weights end that Megatron-LM cuts by columns."""


def by_hand(name: str, model: onnx.ModelProto, costs: Costs) -> Account:
    """The account of the sharding a person writes down."""
    graph = shardable(graph_of(model))
    texts = {info.name: "data" for info in graph.inputs} if "data" in costs.mesh.sizes else {}
    if "tensor" in costs.mesh.sizes:
        cut = "tensor,-,-" if name == "experts" else "-,tensor"
        weights = [n for n, value in graph.constants.items() if value.ndim > 1]
        texts |= {weight: cut for weight in weights if weight.endswith(COLUMNS)}
    sizes = costs.mesh.sizes
    given = {n: parse(text, graph.info(n).dims, sizes, n) for n, text in texts.items()}
    return account(partition(propagate(graph, costs, given)), costs)


def row(name: str, model: onnx.ModelProto, machine: Mesh, axes: dict[str, int]) -> list[object]:
    """A line of the table."""
    graph, costs = shardable(graph_of(model)), Costs(machine, LogicalMesh.of(axes))
    started = time.perf_counter()
    best = best_sharding(graph, costs, {})
    seconds = time.perf_counter() - started
    found, hand = account(best.program, costs), by_hand(name, model, costs)
    totals = [a.compute_us + a.communication_us for a in (found, hand)]
    gap = 1 - best.bound / best.objective
    return [
        name, len(graph.nodes), str(costs.mesh), f"{seconds:.1f}", best.objective / 1e3,
        f"{gap:.2%}", totals[0], len(found.collectives), totals[1], len(hand.collectives),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mesh", default="trn1.32xlarge")
    parser.add_argument("--layers", type=int, default=12)
    asked = parser.parse_args()
    machine = load_mesh(asked.mesh)
    blocks = transformer(8, 128, 768, 12, asked.layers)
    long = transformer(1, 1024, 1024, 16, 1, fused=True)
    cases = (
        ("transformer", blocks, {"tensor": 4}),
        ("transformer", blocks, {"data": 4, "tensor": 4}),
        ("one long block", long, {"tensor": 8}),
        ("mlp", mlp(4096, 4096, 16384), {"data": 4, "tensor": 8}),
        ("experts", experts(2048, 1024, 4096, 8), {"tensor": 8}),
        ("convolutions", convolutions(32, 64, 56), {"data": 8}),
    )
    header = ("model", "operators", "cores", "s to find", "objective us", "gap", "best us",
              "collectives", "by hand us", "collectives")  # fmt: skip
    print(table(header, [row(name, model, machine, axes) for name, model, axes in cases]))


if __name__ == "__main__":
    main()
