"""Sharded models compute what the model computes, however they are cut; the optimum is the best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.capabilities.sharding.sharded_models import (
    ModelBuilder,
    convolutions,
    dispatched,
    experts,
    graph_of,
    mlp,
    routed,
    transformer,
)
from tests.compiler.model_builder import inputs_of
from tilesmith.capabilities.sharding.cores.execution import compiled_for, execute
from tilesmith.capabilities.sharding.layouts.dimension_maps import dimension_map
from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import Spec, parse
from tilesmith.capabilities.sharding.layouts.strategies import (
    ShardingStrategy,
    blocks_of,
    strategies_of,
)
from tilesmith.capabilities.sharding.partitioning.costs import Costs
from tilesmith.capabilities.sharding.partitioning.partition import Sharding, partition
from tilesmith.capabilities.sharding.partitioning.prepare import shardable
from tilesmith.capabilities.sharding.partitioning.propagation import propagate
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.host.reference import run_reference
from tilesmith.search_space.meshes.mesh import load_mesh

MODELS = {
    "mlp": graph_of(mlp(8, 16, 32)),
    "transformer": graph_of(transformer()),
    "fused": graph_of(transformer(fused=True, vocabulary=32)),
    "convolutions": graph_of(convolutions()),
    "experts": graph_of(experts()),
    "routed": graph_of(routed()),
    "dispatched": graph_of(dispatched()),
}
MACHINE = load_mesh("trn1.32xlarge")


def given_inputs(graph: Graph) -> dict[str, NDArray[Any]]:
    """Random inputs; whole numbers are indices, some of them from the end."""
    found = inputs_of(graph)
    generator = np.random.default_rng(5)
    for info in graph.inputs:
        if info.dtype == "int64":
            found[info.name] = generator.integers(-32, 32, info.dims)
    return found


INPUTS = {name: given_inputs(graph) for name, graph in MODELS.items()}
WANTED = {name: run_reference(graph, INPUTS[name]) for name, graph in MODELS.items()}
WAYS: dict[tuple[str, str], Mapping[Node, tuple[ShardingStrategy, ...]]] = {}


def assert_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Equal to 1e-5 of the largest value."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = float(np.abs(value).max())
        assert float(np.abs(found[name] - value).max()) <= 1e-5 * scale, name


def ways(name: str, mesh: LogicalMesh) -> Mapping[Node, tuple[ShardingStrategy, ...]]:
    if (name, str(mesh)) not in WAYS:
        graph = MODELS[name]
        maps = {node: dimension_map(graph, node) for node in graph.nodes}
        blocks = blocks_of(maps, mesh)
        WAYS[name, str(mesh)] = {
            node: strategies_of(found, mesh, blocks[node]) for node, found in maps.items()
        }
    return WAYS[name, str(mesh)]


def at_random(name: str, mesh: LogicalMesh, seed: int) -> Sharding:
    """A random strategy for each node, what is given as one of its readers wants it."""
    graph, generator = MODELS[name], np.random.default_rng(seed)

    def pick(options: Any) -> Any:
        return options[int(generator.integers(len(options)))]

    chosen = {node: pick(options) for node, options in ways(name, mesh).items()}
    return Sharding(graph, mesh, chosen, {})


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from([{"a": 2}, {"a": 4}, {"a": 2, "b": 2}]),
    st.integers(0, 1 << 20),
)
def test_any_legal_sharding_computes_the_model(name: str, axes: dict[str, int], seed: int) -> None:
    sharding = at_random(name, LogicalMesh.of(axes), seed)
    assert_same(execute(partition(sharding), INPUTS[name]), WANTED[name])


def specs_of(graph: Graph, mesh: LogicalMesh, **texts: str) -> dict[str, Spec]:
    names = {name.replace(".", "_"): name for name in graph.tensors}
    return {
        names[key]: parse(text, graph.info(names[key]).dims, mesh.sizes, key)
        for key, text in texts.items()
    }


def propagated(graph: Graph, axes: dict[str, int], **texts: str) -> Sharding:
    mesh = LogicalMesh.of(axes)
    return propagate(graph, Costs(MACHINE, mesh), specs_of(graph, mesh, **texts))


def held(sharding: Sharding) -> dict[str, str]:
    """Specs of the weights as the cores hold them."""
    return {p.info.name: str(p.spec) for p in partition(sharding).weights}


def collectives(sharding: Sharding) -> list[str]:
    return [move.step.kind for move in partition(sharding).moves]


def test_one_cut_weight_cuts_an_mlp_as_megatron_does() -> None:
    sharding = propagated(MODELS["mlp"], {"tensor": 4}, w0_up="-,tensor")
    assert collectives(sharding) == ["all_reduce"]
    assert held(sharding)["w0.down"] == "tensor,-"
    assert held(sharding)["b0.up"] == "tensor"
    assert_same(execute(partition(sharding), INPUTS["mlp"]), WANTED["mlp"])


def test_heads_are_cut_through_reshapes_and_softmax() -> None:
    graph = MODELS["transformer"]
    sharding = propagated(graph, {"tensor": 4}, l0_attention_q="-,tensor", l0_mlp_up="-,tensor")
    softmax = next(node for node in graph.nodes if node.operator == "Softmax")
    assert str(sharding.produced(softmax.outputs[0])) == "-,tensor,-,-"
    assert collectives(sharding) == ["all_reduce", "all_reduce"]
    assert_same(execute(partition(sharding), INPUTS["transformer"]), WANTED["transformer"])


def test_fused_projections_are_cut_by_heads_within_each_third() -> None:
    sharding = propagated(
        MODELS["fused"], {"tensor": 4}, l0_attention_qkv="-,tensor/3", embedding="tensor,-"
    )
    assert held(sharding)["l0.attention.qkv.bias"] == "tensor/3"
    assert collectives(sharding)[:2] == ["all_reduce", "all_reduce"]
    assert_same(execute(partition(sharding), INPUTS["fused"]), WANTED["fused"])


def test_norms_of_a_cut_sequence_are_gathered_and_scattered() -> None:
    graph = graph_of(transformer(width=32))
    sharding = propagated(
        graph, {"tensor": 4}, x="-,tensor,-", l0_attention_residual="-,tensor,-",
        l0_mlp_residual="-,tensor,-", l0_attention_q="-,tensor", l0_attention_k="-,tensor",
        l0_attention_v="-,tensor", l0_mlp_up="-,tensor", l0_mlp_norm_out="-,tensor,-",
        l0_attention_norm_out="-,tensor,-",
    )  # fmt: skip
    assert collectives(sharding) == ["all_gather", "reduce_scatter"] * 2
    inputs = given_inputs(graph)
    assert_same(execute(partition(sharding), inputs), run_reference(graph, inputs))


def test_images_cut_over_a_batch_need_no_collective() -> None:
    sharding = propagated(MODELS["convolutions"], {"data": 4}, x="data")
    assert collectives(sharding) == []
    assert_same(execute(partition(sharding), INPUTS["convolutions"]), WANTED["convolutions"])


def test_experts_are_a_batch_of_products_that_ends_in_a_sum() -> None:
    sharding = propagated(MODELS["experts"], {"expert": 4}, up="expert")
    assert held(sharding)["down"] == "expert,-,-"
    assert "all_reduce" in collectives(sharding)
    program = partition(sharding)
    assert program.weight_bytes < sum(v.nbytes for v in program.values.values()) / 3
    assert_same(execute(program, INPUTS["experts"]), WANTED["experts"])


def test_tokens_are_sent_to_their_experts_and_back() -> None:
    """Groups of tokens and experts on the same cores: an all-to-all there, one back."""
    where = {
        "x": "expert,-,-",
        "waiting": "expert,-,-",
        "done": "expert,-,-",
        "back": "expert,-,-,-",
    }
    sharding = propagated(MODELS["dispatched"], {"expert": 4}, up="expert,-,-", **where)
    program = partition(sharding)
    assert [move.step.kind for move in program.moves] == ["all_to_all", "all_to_all"]
    assert_same(execute(program, INPUTS["dispatched"]), WANTED["dispatched"])


def test_gates_of_routed_tokens_are_made_where_the_tokens_are() -> None:
    sharding = propagated(MODELS["routed"], {"data": 4}, x="data,-")
    program = partition(sharding)
    assert not program.moves
    assert_same(execute(program, INPUTS["routed"]), WANTED["routed"])


def test_attention_is_taken_apart_and_cut_by_heads() -> None:
    b = ModelBuilder("attention")
    q = b.input("q", 2, 8, 32)
    k, v = (b.input(name, 2, 8, 16) for name in "kv")
    y = b.node("Attention", q, k, v, q_num_heads=4, kv_num_heads=2, to="y")
    graph = shardable(graph_of(b.model(y, opset=23)))
    assert "Attention" not in {node.operator for node in graph.nodes}
    sharding = propagated(graph, {"tensor": 2}, q="-,-,tensor", k="-,-,tensor", v="-,-,tensor")
    assert collectives(sharding) == []
    inputs = given_inputs(graph)
    assert_same(execute(partition(sharding), inputs), run_reference(graph, inputs))


def test_a_sharded_model_runs_on_the_cores_of_the_machine() -> None:
    graph = MODELS["mlp"]
    sharding = propagated(graph, {"data": 2, "tensor": 2}, x="data", w0_up="-,tensor")
    found = execute(partition(sharding), INPUTS["mlp"], compiled_for(MACHINE.target))
    assert_same(found, WANTED["mlp"])
