"""Models over several LPU-like chips: cuts against exhaustive search, what is kept, what fits."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from tests.compiler.model_builder import model_of, random
from tilesmith.command_line import command_line
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.driver.build import BuildOptions, build, scheduled
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import HostStep
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.families.kit.simulation.host_costs import host_time
from tilesmith.families.lpu.backend import backend
from tilesmith.families.lpu.backend.capacity import fewest_chips, needs
from tilesmith.families.lpu.backend.chips.pipeline import ChipPipeline, Cutter, best_cuts
from tilesmith.families.lpu.backend.programs import program as programs
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import LANES, Dataflow
from tilesmith.families.lpu.codegen.isa.bursts import BurstSchedule
from tilesmith.families.lpu.codegen.scheduling.scheduler import SchedulerOptions, ordered
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.search_space.support.errors import ModelError
from tilesmith.simulator.collectives.cost import collective_cost

TARGET = load_target("lpu1")
LAYERS = 12


@pytest.mark.parametrize("seed", range(12))
def test_cuts_are_the_best_of_all_cuts(seed: int) -> None:
    chance = np.random.default_rng(seed)
    kernels, chips = int(chance.integers(1, 9)), int(chance.integers(1, 6))
    costs = chance.integers(1, 40, (kernels, kernels + 1)).astype(float)
    costs[chance.random(costs.shape) < 0.2] = math.inf
    every = [
        max(costs[a, b] for a, b in zip((0, *ends), (*ends, kernels), strict=True))
        for count in range(min(chips, kernels))
        for ends in combinations(range(1, kernels), count)
    ]
    least, ends = best_cuts(kernels, chips, lambda first, end: costs[first, end])
    assert least == min(every)
    if least < math.inf:
        assert ends[-1] == kernels and len(ends) <= chips
        assert max(costs[a, b] for a, b in zip((0, *ends), ends, strict=False)) == least


def perceptron() -> onnx.ModelProto:
    body, weights = "", {}
    for n in range(LAYERS):
        weights |= {f"w{n}": random(320, 320, seed=n) / np.float32(18)}
        weights |= {f"b{n}": random(320, seed=n)}
        body += f"h{n} = Gemm(a{n}, w{n}, b{n}) a{n + 1} = Relu(h{n}) "
    body = body.replace("a0,", "x,").replace(f"a{LAYERS} ", "y ")
    return model_of(f"mlp (float[16, 320] x) => (float[16, 320] y) {{ {body} }}", **weights)


@pytest.fixture(scope="module")
def built() -> Executable:
    return build(import_model(perceptron()), TARGET)


@dataclass
class Chained:
    """All stages of a pipeline, one after the other, in the place of a model's program."""

    pipeline: ChipPipeline

    def run(self, memory: RunMemory) -> None:
        for stage in self.pipeline.stages:
            for program in stage.programs:
                program.run(memory)


def test_stages_hold_every_kernel_once_and_compute_what_the_whole_does(
    built: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutter = Cutter(built.recipe, links=16)
    found = cutter.cut(3)
    steps = [step for stage in found.stages for step in stage.kernels]
    assert steps == list(cutter.kernels) and 1 < len(found.stages) <= 3
    whole = cutter.weights(0, len(cutter.kernels))
    shared = sum(stage.weights for stage in found.stages) - whole  # constants that stages both have
    assert 0 <= shared < whole / 100
    given = {"x": random(16, 320)}
    wanted = built.run(given)["y"]
    monkeypatch.setattr(backend, "linked", lambda *_: Chained(found))
    assert np.array_equal(build(import_model(perceptron()), TARGET).run(given)["y"], wanted)


def test_stages_that_are_alike_are_searched_for_once(
    built: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []

    def noted(
        flow: Dataflow, chip: Chip, options: SchedulerOptions
    ) -> tuple[BurstSchedule, SchedulerOptions]:
        searched.append(not options.units)
        return ordered(flow, chip, options)

    monkeypatch.setattr(programs, "ordered", noted)
    recipe = build(import_model(perceptron()), TARGET).recipe
    kernels = Cutter(recipe, TARGET).kernels
    first, second = (programs.linked(recipe, kernels[n : n + 3]) for n in (3, 6))
    assert searched.count(True) == len(programs.TRIES) and searched.count(False) == 1
    assert first.schedule.cycles == second.schedule.cycles
    assert first.joined.flow.tensors.keys() != second.joined.flow.tensors.keys()


def test_the_slowest_of_stages_and_transfers_makes_the_period(built: Executable) -> None:
    for links in (1, 16):
        cutter = Cutter(built.recipe, links=links)
        pipelines = [cutter.cut(chips) for chips in (1, 2, 4)]
        periods = [found.period for found in pipelines]
        assert periods == sorted(periods, reverse=True)
        assert pipelines[0].latency == periods[0]
        link = -(-LANES * 9 // 150)  # cycles of 0.9 GHz for a plane of bytes at 15 GB/s
        for found in pipelines:
            sent = [stage.sent for stage in found.stages]
            assert sent[:-1] == [-(-16 * 2 // links) * link] * (len(sent) - 1) and not sent[-1]
            cycles = [stage.cycles for stage in found.stages]
            assert found.period == max(*cycles, *sent)
            flights = TARGET.integer("delay.link") * (len(sent) - 1)
            assert found.latency == sum(cycles) + sum(sent) + flights
            assert found.per_second == pytest.approx(0.9e9 / found.period)


def test_weights_that_one_chip_does_not_hold_take_more(built: Executable) -> None:
    words = 80  # 88 slices of 80 words of 320 bytes: 2.15 MiB, and the layers take 2.34
    small = TARGET.with_settings({"mem.words": str(words)})
    cutter = Cutter(built.recipe, small)
    room, whole = 88 * words * LANES, cutter.weights(0, len(cutter.kernels))
    needed = -(-whole // room)
    assert needed >= 2
    for chips in range(1, needed):
        with pytest.raises(ModelError, match=r"'mlp' does not fit on .* of MEM each, however"):
            cutter.cut(chips)
    found = cutter.cut(LAYERS)
    assert len(found.stages) >= needed
    assert all(stage.weights <= room for stage in found.stages)
    tiny = TARGET.with_settings({"mem.words": "4"})
    with pytest.raises(ModelError, match=r"12 chips .* one of its kernels alone has 0\.2 MiB"):
        Cutter(built.recipe, tiny).cut(LAYERS)


@pytest.mark.parametrize("seed", range(8))
def test_kernels_take_the_fewest_chips_that_hold_them_in_their_order(seed: int) -> None:
    chance = np.random.default_rng(seed)
    kernels = [(int(a), int(b)) for a, b in chance.integers(1, 30, (int(chance.integers(1, 8)), 2))]
    room = int(chance.integers(35, 80))

    def hold(ends: tuple[int, ...]) -> bool:
        runs = [kernels[a:b] for a, b in zip((0, *ends), (*ends, len(kernels)), strict=True)]
        return all(sum(w for w, _ in run) + max(m for _, m in run) <= room for run in runs)

    ways = (
        count + 1
        for count in range(len(kernels))
        if any(map(hold, combinations(range(1, len(kernels)), count)))
    )
    assert fewest_chips(kernels, room) == next(ways, None)


def test_a_refusal_names_the_fewest_chips_that_would_do(built: Executable) -> None:
    """Before a program is made of a model, and behind it: rows count, not bytes."""
    small = TARGET.with_settings({"mem.words": "80"})
    cutter = Cutter(built.recipe, small)
    with pytest.raises(ModelError) as refused:
        cutter.cut(1)
    enough = int(re.findall(r"(\d+) chips would", str(refused.value))[0])
    assert cutter.cut(enough).stages
    with pytest.raises(ModelError):
        cutter.cut(enough - 1)
    kernels = needs(scheduled(import_model(perceptron()), small), small)
    found = fewest_chips(kernels, cutter.chip.sram_bytes)
    assert found is not None and enough - 1 <= found <= enough
    assert fewest_chips(kernels, max(map(sum, kernels)) - 1) is None


def test_one_command_says_throughput_over_chips_beside_linear(tmp_path: Path) -> None:
    onnx.save(perceptron(), tmp_path / "mlp.onnx")
    asked = ["simulate", str(tmp_path / "mlp.onnx"), "--target", "lpu1", "--chips", "3"]
    said = CliRunner().invoke(command_line, [*asked, "--json"])
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    rows = found["pipelines"]
    assert [row["at_most"] for row in rows] == [1, 2, 3] and rows[0]["of_linear"] == 1.0
    for row in rows:
        assert row["per_second"] == pytest.approx(1e6 / row["period_us"])
        share = row["per_second"] / rows[0]["per_second"] / row["at_most"]
        assert row["of_linear"] == pytest.approx(share)
        assert sum(len(stage["kernels"]) for stage in row["stages"]) == LAYERS
    assert found["period_us"] == rows[-1]["period_us"]
    assert "of linear" in CliRunner().invoke(command_line, asked).stdout


def test_an_artifact_for_several_chips_runs_on_them(tmp_path: Path, built: Executable) -> None:
    small = TARGET.with_settings({"mem.words": "80"})
    model = perceptron()
    with pytest.raises(ModelError, match=r"MiB more than the .* 3 chips would hold it \(chips=\)"):
        build(import_model(model), TARGET.with_settings({"mem.words": "40"}))
    executable = build(import_model(model), small, options=BuildOptions(chips=3))
    executable.save(tmp_path / "mlp.tsm")
    loaded = Executable.load(tmp_path / "mlp.tsm")
    assert loaded.recipe.chips == 3
    given = {"x": random(16, 320)}
    assert np.array_equal(loaded.run(given)["y"], built.run(given)["y"])
    simulated = backend_of(TARGET).simulate(loaded.recipe)
    assert len(simulated.details["pipelines"]) == 2 and "1 chip" in simulated.notes[0]


def test_activations_that_do_not_live_at_once_are_no_reason_to_refuse() -> None:
    body = "".join(f"t{n + 1} = Softmax(t{n}) " for n in range(12))
    graph = import_model(
        model_of(f"deep (float[512, 320] t0) => (float[512, 320] t12) {{ {body} }}")
    )
    one = 512 * LANES * 2  # bytes of each of the 13 tensors, in float16
    word = 2 * TARGET.integer("mem.slices") * LANES
    for tensors in (3, 12):
        room = TARGET.with_settings({"mem.words": str(2 * (tensors * one // word // 2))})
        assert len(build(graph, room).recipe.steps) == 12
    with pytest.raises(ModelError, match=r"MiB more than .* too large for any number of chips"):
        build(graph, TARGET.with_settings({"mem.words": str(2 * (one // word // 2))}))


def test_what_is_not_cut_over_chips_says_why(tmp_path: Path) -> None:
    onnx.save(perceptron(), tmp_path / "mlp.onnx")
    for target, why in (("trn1", "tilesmith shard"), ("lp30", "roofline only")):
        asked = ["simulate", str(tmp_path / "mlp.onnx"), "--target", target, "--chips", "2"]
        said = CliRunner().invoke(command_line, asked)
        assert said.exit_code == 2 and why in said.stderr
    said = CliRunner().invoke(
        command_line, ["simulate", "--op", "softmax shape=4x8", "--target", "lpu1", "--chips", "2"]
    )
    assert said.exit_code == 2 and "operator 'softmax' is not cut over chips" in said.stderr


def test_steps_on_the_host_stay_with_the_stage_before_them() -> None:
    text = (
        "parted (float[4, 96] x) => (float[4, 96] y) { a = MatMul(x, w) b = Mod<fmod = 1>(a, one) "
        "c = MatMul(b, w) d = Relu(c) e = Mod<fmod = 1>(d, one) f = MatMul(e, w) y = Add(f, d) }"
    )
    model = model_of(text, w=random(96, 96), one=np.float32(1))
    whole = build(import_model(model), TARGET)
    parts = build(import_model(model), TARGET, options=BuildOptions(chips=3))
    hosts = [step for step in parts.recipe.steps if isinstance(step, HostStep)]
    given = {"x": random(4, 96)}
    assert len(hosts) == 2 and np.array_equal(parts.run(given)["y"], whole.run(given)["y"])
    simulated = backend_of(TARGET).simulate(parts.recipe)
    row = simulated.details["pipelines"][-1]
    named = [name for stage in row["stages"] for name in stage["host"]]
    assert named == [step.name for step in hosts] and len(row["stages"]) > 1
    expected = sum(host_time(step, TARGET) for step in hosts) / 1e3
    assert sum(stage["host_us"] for stage in row["stages"]) == pytest.approx(expected, rel=1e-3)
    slowest = max(stage["us"] for stage in row["stages"])
    assert row["period_us"] == pytest.approx(slowest) and slowest > expected / 2
    assert "on the host" in "".join(simulated.remarks)


def test_sums_over_a_node_are_two_exchanges_between_all_of_its_chips() -> None:
    node = load_mesh("lpu1.node")
    assert (node.chips, node.cores, node.target.name) == (8, 8, "lpu1")
    (level,) = node.levels
    assert level.hop_us == pytest.approx(node.target.number("delay.link") / 0.9e3), "said once"
    hop, link = level.hop_us * 1e-6, level.gbps / 7 * 0.97e9
    cost = collective_cost(node, "all_reduce", 64 << 10, tuple(range(8)))
    assert cost.seconds == pytest.approx(2 * (hop + (64 << 10) / 8 / link), rel=0.1)
