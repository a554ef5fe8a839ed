"""Sharded models as one instruction stream a core: they compute what the model does, and meet."""

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
from tests.capabilities.sharding.test_sharding import assert_same
from tests.compiler.model_builder import inputs_of
from tilesmith.capabilities.sharding.cores import streams
from tilesmith.capabilities.sharding.cores.exchanges import CoreTensor, Seat, exchanges, needs_spare
from tilesmith.capabilities.sharding.cores.execution import execute
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
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.search_space.support.errors import InputError, JobError, ModelError, TargetError
from tilesmith.simulator.collectives import collective_cost

MACHINE = load_mesh("trn1.32xlarge")
SHAPE = (8, 12)
SPECS = ("-,-", "a,-", "b,a", "-,a/3", "a+b,-", "b/2,-", "a/2,b")
PARTIAL = (("-,b", "a"), ("-,-", "ab"))


def moved(
    source: Spec, wanted: Spec, mesh: LogicalMesh
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What the cores hold after the steps from a spec to another: by streams, and by their
    meaning."""
    rng = np.random.default_rng(3)
    held = [
        rng.integers(-9, 9, local_shape(source, SHAPE, mesh.sizes)).astype(np.float32)
        if source.partial
        else part(np.arange(96, dtype=np.float32).reshape(SHAPE), source, SHAPE, mesh, at)
        for at in mesh.coordinates()
    ]
    steps = steps_between(source, wanted, SHAPE, mesh)
    programs, memories, room = {}, {}, 4 * 96
    for number, core in enumerate(mesh.cores):
        order: list[Exchange] = []
        for n, step in enumerate(steps):
            move = Move(step, "x", "y", "x", SHAPE)
            sizes = [local_shape(s, SHAPE, mesh.sizes) for s in (step.before, step.after)]
            counts = [*(int(np.prod(size)) for size in sizes), needs_spare(move, mesh)]
            places = [Place("arena", room * at) for at in (2 * n, 2 * n + 2, 2 * n + 1)]
            here = [CoreTensor(p, "float32", c) for p, c in zip(places, counts, strict=True)]
            order += exchanges(move, Seat(mesh, number), *here)
        shape = local_shape(wanted, SHAPE, mesh.sizes)
        last = TensorRef(TensorInfo("y", "float32", shape), Place("arena", 2 * room * len(steps)))
        arena = np.zeros(room * (2 * len(steps) + 1), np.uint8)
        arena[: held[number].nbytes] = held[number].reshape(-1).view(np.uint8)
        memories[core] = {"arena": arena}
        programs[core] = CoreProgram(
            "moves",
            MACHINE.target,
            tuple(order),
            (),
            np.zeros(0, np.uint8),
            arena.size,
            (),
            (last,),
        )
    backend_of(MACHINE.target).link_cores(programs, MACHINE).run(memories)
    size = 4 * int(np.prod(shape))
    found = [
        memories[core]["arena"][last.place.offset :][:size].view(np.float32).reshape(shape)
        for core in mesh.cores
    ]
    for step in steps:
        held = run_step(step, held, SHAPE, mesh)
    return found, held


def test_every_move_is_what_it_means() -> None:
    mesh = LogicalMesh.of({"a": 2, "b": 2}, (4, 5, 6, 7))
    specs = [parse(text, SHAPE, mesh.sizes, "x") for text in SPECS]
    specs += [parse(text, SHAPE, mesh.sizes, "x").summing(tuple(axes)) for text, axes in PARTIAL]
    kinds = set()
    for source, wanted in list(itertools.permutations(specs, 2))[::13]:
        kinds |= {step.kind for step in steps_between(source, wanted, SHAPE, mesh)}
        found, meant = moved(source, wanted, mesh)
        for one, other in zip(found, meant, strict=True):
            assert np.array_equal(one, other), f"{source} to {wanted}"
    assert len(kinds) == 6


def test_a_perceptron_over_two_cores_is_one_stream_each(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(16, 32, 64)
    found = ts.shard(
        model,
        MACHINE,
        degrees={"tensor": 2},
        specs={"w0.up": "-,tensor"},
        timeline=True,
    )
    assert found.streams is not None
    assert found.played is not None
    graph = graph_of(model)
    given = inputs_of(graph)
    assert_same(found.streams.run(given), run_reference(graph, given))
    cost = collective_cost(MACHINE, "all_reduce", 4 * 16 * 32, (0, 1))
    played = found.played
    assert played.collectives == 1
    for core in played.cores.values():
        assert core.collectives_us == pytest.approx(cost.seconds * 1e6)
        assert core.waiting_us == pytest.approx(0.0), "they do the same"
        assert core.end_us >= core.collectives_us + core.computing_us - core.hidden_us
    monkeypatch.setattr(streams, "PIECES", (4,))
    monkeypatch.setattr(streams, "PIECE_BYTES", 1)
    pieces = streams.streams_of(found.program, MACHINE)
    assert_same(pieces.run(given), run_reference(graph, given))
    assert pieces.play().collectives == 4
    assert json.loads(json.dumps(found.to_json()))["timeline"]["makespan_us"] == played.makespan_us


def test_a_transformer_block_cut_in_heads_and_its_sequence() -> None:
    model = transformer(1, 16, 32, 2, fused=True)
    specs = {"l0.attention.qkv": "-,tensor/3", "l0.mlp.up": "-,tensor", "x": "-,tensor"}
    specs |= {"l0.attention.residual": "-,tensor", "y": "-,tensor"}
    found = ts.shard(model, MACHINE, cores=2, specs=specs, timeline=True)
    assert found.streams is not None
    kinds = [row.kind for row in found.account.collectives]
    assert kinds == ["all_gather", "reduce_scatter"] * 2
    given = inputs_of(graph_of(model))
    assert_same(found.streams.run(given), run_reference(graph_of(model), given))


def test_the_command_plays(tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    onnx.save(mlp(16, 32, 64), path)
    asked = ["shard", str(path), "--mesh", "trn1.32xlarge", "--cores", "2", "--timeline"]
    done = CliRunner().invoke(main, [*asked, "--spec", "w0.up=-,tensor"])
    assert done.exit_code == 0, done.output
    assert "played: " in done.output
    assert "behind computing" in done.output


def test_stages_of_a_pipeline_send_each_microbatch_on() -> None:
    model = mlp(8, 16, 32, 2)
    graph = graph_of(model)
    spans = {}
    for batches in (1, 2, 4):
        found = ts.shard(
            model, MACHINE, degrees={"pipeline": 2, "tensor": 2}, specs={"w0.up": "-,tensor"},
            microbatches=batches, timeline=True,
        )  # fmt: skip
        assert found.streams is not None
        assert found.played is not None
        spans[batches] = found.played
    given = [inputs_of(graph, seed) for seed in range(4)]
    for inputs, made in zip(given, found.streams.run_batches(given), strict=True):
        assert_same(made, run_reference(graph, inputs))
    with pytest.raises(InputError, match="takes 4 microbatches at a time, not 1"):
        found.streams.run_batches(given[:1])
    assert list(spans[4].cores) == [0, 1, 2, 3]
    first, second = spans[1].cores[0], spans[1].cores[2]
    assert first.end_us < second.end_us == pytest.approx(spans[1].makespan_us)
    assert second.waiting_us > 0
    each = (spans[4].makespan_us - spans[2].makespan_us) / 2
    assert each < 0.7 * spans[1].makespan_us, "stages work on different microbatches"
    assert each >= spans[1].makespan_us - first.end_us, "and each on one at a time"
    assert spans[4].collectives == 4 * spans[1].collectives


def test_outputs_stay_in_the_stage_that_makes_them() -> None:
    b = ModelBuilder("early")
    x = b.input("x", 8, 16)
    early = b.node("MatMul", x, b.weight("w", 16, 16), to="early")
    b.node("Relu", b.node("MatMul", early, b.weight("v", 16, 16)), to="y")
    found = ts.shard(
        b.model("early", "y"), MACHINE, degrees={"pipeline": 2, "tensor": 2},
        specs={"x": "tensor,-"}, timeline=True,
    )  # fmt: skip
    assert found.streams is not None
    assert [found.program.made_in(p.local) for p in found.program.outputs] == [0, 1]
    assert [len(found.program.crossing(stage)) for stage in range(2)] == [1, 0]
    graph = graph_of(b.model("early", "y"))
    given = inputs_of(graph)
    assert_same(found.streams.run(given), run_reference(graph, given))


@pytest.mark.parametrize("cut", ["ids=tensor,-", "t=tensor,-", "t=-,tensor"])
def test_rows_are_looked_up_in_a_table_that_is_cut(cut: str) -> None:
    name, _, spec = cut.partition("=")
    b = ModelBuilder("embedding")
    ids = b.input("ids", 2, 6, dtype=onnx.TensorProto.INT64)
    rows = b.node("Gather", b.weight("t", 12, 16), ids)
    b.node("MatMul", b.node("Concat", rows, rows, axis=1), b.weight("w", 16, 8), to="y")
    model = b.model("y")
    found = ts.shard(model, MACHINE, cores=2, specs={name: spec}, timeline=True)
    assert found.streams is not None
    given = {"ids": np.random.default_rng(5).integers(-12, 12, (2, 6))}
    wanted = run_reference(graph_of(model), given)
    assert_same(found.streams.run(given), wanted)
    assert_same(execute(found.program, given), wanted)
    given["ids"][1, 3] = 12
    with pytest.raises(JobError, match="takes index 12 of an axis"):
        found.streams.run(given)


def test_whole_numbers_of_the_caller_are_prepared_before() -> None:
    """Moves of them, too: the table's cores want all of the indices, which come cut."""
    b = ModelBuilder("moved")
    ids = b.input("ids", 4, 6, dtype=onnx.TensorProto.INT64)
    many = b.node("Mul", ids, b.constant("three", np.array(3)))
    less = b.node("Mod", many, b.constant("n", np.array(12)), to="less")
    b.node("MatMul", b.node("Gather", b.weight("t", 12, 16), less), b.weight("w", 16, 8), to="y")
    model = b.model("y")
    specs = {"ids": "tensor,-", "less": "-,-", "t": "tensor,-"}
    found = ts.shard(model, MACHINE, cores=2, specs=specs, timeline=True)
    assert found.streams is not None
    assert found.played is not None
    moves = [item for item in found.streams.divided.ahead if isinstance(item, Move)]
    assert [move.step.kind for move in moves] == ["all_gather"]
    assert found.played.collectives == 1, "of rows, which the cores sum"
    given = {"ids": np.random.default_rng(5).integers(0, 99, (4, 6))}
    assert_same(found.streams.run(given), run_reference(graph_of(model), given))


def test_what_cannot_be_played_is_said() -> None:
    b = ModelBuilder("sorted")
    x = b.input("x", 8, 16)
    b.node("Det", b.node("Reshape", x, b.shape(8, 4, 4)), to="y")
    with pytest.raises(ModelError, match="runs on the host"):
        ts.shard(b.model("y"), MACHINE, cores=2, specs={"x": "tensor,-"}, timeline=True)
    with pytest.raises(TargetError, match="whose programs have no collectives"):
        backend_of(ts.resolve_target("cpu")).link_cores({}, MACHINE)
