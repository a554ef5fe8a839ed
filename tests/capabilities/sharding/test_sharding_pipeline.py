"""Pipelines: the cuts are those of exhaustive search, and stages compute what the model does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.capabilities.sharding.sharded_models import graph_of, mlp, transformer
from tests.compiler.model_builder import inputs_of
from tilesmith.capabilities.sharding.cores.execution import execute
from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import parse
from tilesmith.capabilities.sharding.partitioning.costs import Costs
from tilesmith.capabilities.sharding.partitioning.partition import Sharding, partition
from tilesmith.capabilities.sharding.partitioning.pipeline import pipeline_of
from tilesmith.capabilities.sharding.partitioning.propagation import propagate
from tilesmith.compiler.host.reference import run_reference
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.search_space.support.errors import InputError

MACHINE = load_mesh("trn1.32xlarge")
GRAPHS = {"mlp": graph_of(mlp(8, 16, 32, layers=3)), "transformer": graph_of(transformer(layers=2))}


def cut(name: str) -> tuple[Sharding, Costs]:
    graph = GRAPHS[name]
    costs = Costs(MACHINE, LogicalMesh.of({"tensor": 2}))
    weights = [n for n in graph.constants if n.endswith((".up", ".q", ".k", ".v")) and n[0] != "b"]
    given = {n: parse("-,tensor", graph.info(n).dims, costs.mesh.sizes, n) for n in weights}
    return propagate(graph, costs, given), costs


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_stages_compute_the_model(name: str, stages: int) -> None:
    graph = GRAPHS[name]
    sharding, costs = cut(name)
    found = pipeline_of(sharding, costs, stages, 4)
    program = partition(sharding, found.stage_of(graph))
    assert set(program.stages) == set(range(stages))
    inputs = inputs_of(graph)
    wanted = run_reference(graph, inputs)
    for output, value in execute(program, inputs).items():
        scale = float(np.abs(wanted[output]).max())
        assert float(np.abs(value - wanted[output]).max()) <= 1e-5 * scale


@pytest.mark.parametrize("microbatches", [1, 8])
@pytest.mark.parametrize("stages", [2, 3])
def test_the_cuts_are_those_of_exhaustive_search(stages: int, microbatches: int) -> None:
    sharding, costs = cut("mlp")
    found = pipeline_of(sharding, costs, stages, microbatches)
    size = len(sharding.graph.nodes)
    single = {
        (a, b): stage
        for a, b in itertools.combinations(range(size + 1), 2)
        for stage in (_stage(sharding, costs, a, b),)
    }
    best = min(
        sum(times) + (microbatches - 1) * max(times)
        for cuts in itertools.combinations(range(1, size), stages - 1)
        for times in [[single[pair] for pair in itertools.pairwise((0, *cuts, size))]]
    )
    assert found.latency_us == pytest.approx(best)
    assert 0 <= found.bubble < 1


def _stage(sharding: Sharding, costs: Costs, first: int, last: int) -> float:
    """us of a stage, from the program's own parts: its nodes, the moves they need, what arrives."""
    numbers = {}
    for number, node in enumerate(sharding.graph.nodes):
        numbers[node] = 0 if number < first else 1 if number < last else 2
    program = partition(sharding, numbers)
    local = sharding.graph.nodes[first:last]
    from tilesmith.capabilities.sharding.layouts.dimension_maps import dimension_map

    time = sum(
        costs.node(sharding.graph, n, dimension_map(sharding.graph, n), sharding.strategies[n])
        for n in local
    )
    for item, stage in zip(program.order, program.stages, strict=True):
        if stage == 1 and hasattr(item, "step"):
            time += costs.step(item.step, item.shape, program.tensors[item.source].dtype)
    arrives = 0
    for name in {t for n in sharding.graph.nodes[:first] for t in n.writes}:
        if any(name in n.reads for n in sharding.graph.nodes[first:]):
            arrives += program.tensors[name].nbytes
    return (time + (costs.send(arrives, 2) if first else 0)) / 1e3


def test_more_stages_than_operators_are_refused() -> None:
    sharding, costs = cut("mlp")
    with pytest.raises(InputError, match="at most 15 are possible"):
        pipeline_of(sharding, costs, 16, 1)
