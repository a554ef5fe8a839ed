"""Sharded models over chips of a node: one checked program, equal to the whole model in float16."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import tilesmith as ts
from tests.capabilities.sharding.sharded_models import ModelBuilder, graph_of, mlp, transformer
from tests.compiler.model_builder import inputs_of
from tilesmith.capabilities.sharding.cores.exchanges import CoreTensor, Seat, exchanges, needs_spare
from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import Spec, local_shape, parse, part
from tilesmith.capabilities.sharding.partitioning.program import Move
from tilesmith.capabilities.sharding.partitioning.resharding import run_step, steps_between
from tilesmith.command_line import command_line as main
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.backends.many_cores import CoreProgram, Exchange
from tilesmith.compiler.graph.graph import TensorInfo
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.recipe.program import Place, TensorRef
from tilesmith.families.lpu.backend.chips.cores import LinkedChips
from tilesmith.families.lpu.codegen.fabric import ChipFabric
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.search_space.support.errors import ModelError

NODE = load_mesh("lpu1.node")
SHAPE = (6, 12, 48)
SPECS = ("-,-,-", "a,-,-", "-,-,a", "b,a,-", "a+b,-,-", "-,-,b/2", "b,-,a/2")
PARTIAL = (("-,-,-", "ab"), ("b,-,-", "a"))


@pytest.mark.parametrize("extents", [(8,), (2, 3), (2, 2, 2)])
def test_ways_lead_there_and_back(extents: tuple[int, ...]) -> None:
    fabric = ChipFabric(extents)
    for chip in range(fabric.chips):
        ends = [fabric.there(chip, way) for way in range(1, fabric.chips)]
        assert sorted([chip, *ends]) == list(range(fabric.chips)), "one way to every other"
        for way, end in enumerate(ends, 1):
            assert fabric.there(end, fabric.back(way)) == chip
    for size in range(1, len(extents) + 1):
        for axes in itertools.combinations(range(len(extents)), size):
            group = fabric.group(axes)
            for chip in range(fabric.chips):
                members = [fabric.member(chip, axes, turn) for turn in range(group.size)]
                assert sorted(members) == list(range(group.size))
                for turn, way in enumerate(group.ways, 1):
                    other = fabric.there(chip, way)
                    assert fabric.member(other, axes, 0) == members[turn], "counted alike"


def moved(
    source: Spec, wanted: Spec, mesh: LogicalMesh, dtype: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What chips hold after the steps from a spec to another: by bursts, and by their meaning."""
    rng = np.random.default_rng(3)
    whole = rng.integers(-9, 9, SHAPE).astype(dtype)
    held = [part(whole, source, SHAPE, mesh, at).copy() for at in mesh.coordinates()]
    if source.partial:
        held = [rng.integers(-9, 9, one.shape).astype(dtype) for one in held]
    steps = steps_between(source, wanted, SHAPE, mesh)
    size = np.dtype(dtype).itemsize
    programs, memories, room = {}, {}, size * int(np.prod(SHAPE))
    shape = local_shape(wanted, SHAPE, mesh.sizes)
    last = TensorRef(TensorInfo("y", dtype, shape), Place("arena", 2 * room * len(steps)))
    for number, core in enumerate(mesh.cores):
        order: list[Exchange] = []
        for n, step in enumerate(steps):
            move = Move(step, "x", "y", "x", SHAPE)
            sizes = [local_shape(s, SHAPE, mesh.sizes) for s in (step.before, step.after)]
            counts = [*(int(np.prod(each)) for each in sizes), needs_spare(move, mesh)]
            places = [Place("arena", room * at) for at in (2 * n, 2 * n + 2, 2 * n + 1)]
            here = [CoreTensor(p, dtype, c) for p, c in zip(places, counts, strict=True)]
            order += exchanges(move, Seat(mesh, number), *here)
        first = TensorRef(TensorInfo("x", dtype, held[number].shape), Place("arena", 0))
        arena = np.zeros(room * (2 * len(steps) + 1), np.uint8)
        arena[: held[number].nbytes] = held[number].reshape(-1).view(np.uint8)
        memories[core] = {"arena": arena, "constant": np.zeros(0, np.uint8)}
        programs[core] = CoreProgram(
            "moves", NODE.target, tuple(order), (), np.zeros(0, np.uint8), arena.size,
            (first,), (last,), tuple(length for _, length in mesh.axes),
        )  # fmt: skip
    backend_of(NODE.target).link_cores(programs, NODE).run(memories)
    taken = size * int(np.prod(shape))
    found = [
        memories[core]["arena"][last.place.offset :][:taken].view(dtype).reshape(shape)
        for core in mesh.cores
    ]
    for step in steps:
        held = run_step(step, held, SHAPE, mesh)
    return found, held


def test_every_move_is_what_it_means() -> None:
    mesh = LogicalMesh.of({"a": 2, "b": 3}, (0, 1, 2, 3, 4, 5))
    specs = [parse(text, SHAPE, mesh.sizes, "x") for text in SPECS]
    specs += [parse(text, SHAPE, mesh.sizes, "x").summing(tuple(axes)) for text, axes in PARTIAL]
    kinds = set()
    for number, (source, wanted) in enumerate(list(itertools.permutations(specs, 2))[::14]):
        kinds |= {step.kind for step in steps_between(source, wanted, SHAPE, mesh)}
        found, meant = moved(source, wanted, mesh, "float32" if number % 3 else "float16")
        for one, other in zip(found, meant, strict=True):
            np.testing.assert_array_equal(one, other, f"{source} to {wanted}")
    assert len(kinds) == 6


def assert_same_in_half(model: onnx.ModelProto, found: ts.Sharded) -> None:
    """What the chips compute is what the model does, rounded on the way."""
    graph = graph_of(model)
    given = inputs_of(graph)
    assert found.streams is not None
    made = found.streams.run(given)
    for name, wanted in run_reference(graph, given).items():
        np.testing.assert_allclose(made[name], wanted, rtol=0, atol=4e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("cores", [2, 4])
def test_a_perceptron_by_columns_and_rows(cores: int) -> None:
    """13 rows of two vectors: parts that do not divide among four are padded."""
    model = mlp(13, 400, 640)
    found = ts.shard(model, NODE, cores=cores, specs={"w0.up": "-,tensor"}, timeline=True)
    assert [move.step.kind for move in found.program.moves] == ["all_reduce"]
    assert_same_in_half(model, found)
    assert found.played is not None and found.streams is not None
    linked = found.streams.linked
    assert isinstance(linked, LinkedChips)
    flight_us = linked.program.flight / linked.program.schedule.chip.ghz / 1e3
    hops = 1 if cores == 2 else 2
    assert hops * flight_us < found.played.makespan_us < hops * flight_us + 3
    assert found.played.collectives == 1
    (one, *others) = found.played.cores.values()
    assert all(other == one for other in others) and len(others) == cores - 1
    assert one.waiting_us == 0 < one.hidden_us < one.collectives_us


def test_a_transformer_block_by_heads_over_data_and_tensor() -> None:
    model = transformer(2, 16, 64, 4)
    specs = {f"l0.attention.{part}": "-,tensor" for part in "qkv"} | {"l0.mlp.up": "-,tensor"}
    found = ts.shard(
        model, NODE, degrees={"data": 2, "tensor": 2}, specs={**specs, "x": "data,-,-"},
        timeline=True,
    )  # fmt: skip
    assert "all_reduce" in [move.step.kind for move in found.program.moves]
    assert_same_in_half(model, found)


def test_rows_gathered_for_keys_lie_as_weights() -> None:
    """A sum over four chips that is multiplied by lies in parts, and is laid out anew for it."""
    b = ModelBuilder("scores")
    x = b.input("x", 16, 64)
    keys = b.node("MatMul", x, b.weight("w", 64, 32), to="keys")
    turned = b.node("Transpose", keys, perm=[1, 0])
    b.node("MatMul", b.input("q", 8, 32), turned, to="y")
    model = b.model("y")
    found = ts.shard(model, NODE, cores=4, specs={"x": "-,tensor", "q": "-,-"}, timeline=True)
    assert_same_in_half(model, found)


def test_the_command_plays_it_and_says_what_it_does_not(tmp_path: Path) -> None:
    path = str(tmp_path / "mlp.onnx")
    onnx.save(mlp(8, 64, 128, 2), path)
    asked = ["shard", path, "--mesh", "lpu1.node", "--timeline", "--json"]
    cut = ["--spec", "w0.up=-,tensor", "--spec", "w1.up=-,tensor"]
    done = CliRunner().invoke(main, [*asked, "--cores", "4", *cut])
    assert done.exit_code == 0, done.output
    played = json.loads(done.stdout)["timeline"]
    assert played["collectives"] == 2 and len(played["cores"]) == 4
    refused = CliRunner().invoke(main, [*asked, "--tensor", "2", "--pipeline", "2", *cut])
    assert refused.exit_code == 2, refused.output
    assert "'--chips' cuts a model into a pipeline" in refused.output


def test_chips_that_differ_in_a_number_run_no_single_program() -> None:
    b = ModelBuilder("scaled")
    x = b.input("x", 4, 2)
    b.node("Mul", x, b.constant("s", np.array([2.0, 3.0], np.float32)), to="y")
    specs = {"x": "-,tensor"}
    with pytest.raises(ModelError, match="a number in which they differ"):
        ts.shard(b.model("y"), NODE, cores=2, specs=specs, timeline=True)


def test_positions_become_floating_numbers_before_the_run() -> None:
    """A step of decoding turns queries by the position, a whole number of the caller's."""
    b = ModelBuilder("turned")
    x = b.input("x", 4, 64)
    position = b.input("position", 4, 1, dtype=onnx.TensorProto.INT64)
    b.nodes.append(onnx.helper.make_node("Cast", [position], ["at"], to=onnx.TensorProto.FLOAT))
    turned = b.node("Mul", x, b.node("Cos", b.node("Mul", "at", b.weight("rates", 1, 64))))
    b.node("MatMul", turned, b.weight("w", 64, 64), to="y")
    model = b.model("y")
    found = ts.shard(model, NODE, cores=2, specs={"w": "-,tensor"}, timeline=True)
    assert found.streams is not None and found.streams.divided.operators == 1
    given = {
        "x": np.random.default_rng(2).standard_normal((4, 64), np.float32),
        "position": np.array([[3], [0], [77], [9]]),
    }
    made = found.streams.run(given)
    (wanted,) = run_reference(graph_of(model), given).values()
    np.testing.assert_allclose(made["y"], wanted, rtol=0, atol=4e-3 * np.abs(wanted).max())
