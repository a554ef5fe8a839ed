"""Layout settlement: the best of all choices, conversions where they are due, the same numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.model_builder import assert_close, expected, inputs_of, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of, simulated, space_of
from tilesmith.compiler.backends.cpu.evaluator import GraphEvaluator
from tilesmith.compiler.driver.build import build, extract_tasks, prepared
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.layouts import normal, pack, physical_shape, same_bytes
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.compiler.settling.settlement import TRANSFORM, _Settlement, conversion, settle
from tilesmith.records import TuningRecord
from tilesmith.records.database import Database
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

LANES = vector_width(host_target())
BLOCKED = f"NCHW{LANES}c"

RESIDUAL = model_of(
    f"g (float[1, {LANES}, 6, 6] x) => (float[1, {LANES}, 6, 6] y) "
    "{ a = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w1) b = Relu(a) "
    "c = Conv<kernel_shape=[1, 1]>(b, w2) d = Add(c, b) e = Sigmoid(d) "
    "f = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(e) s = Mul(f, e) "
    "y = Conv<kernel_shape=[1, 1]>(s, w3) }",
    w1=random(LANES, LANES, 3, 3),
    w2=random(LANES, LANES, 1, 1, seed=1),
    w3=random(LANES, LANES, 1, 1, seed=2),
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(str(tmp_path / "t.db")) as opened:
        yield opened


def layout_records(workload: Workload, seconds: dict[tuple[str, str], float]) -> list[TuningRecord]:
    """A record for each layout pair given that the space has, as if measured."""
    target = host_target()
    by_pair: dict[tuple[str, str], Config] = {}
    for config in space_of(workload, target).sample(np.random.default_rng(0), 200):
        pair = config.text("input_layout"), config.text("output_layout")
        by_pair.setdefault(pair, config)
    found = []
    for pair, latency in seconds.items():
        if pair not in by_pair:
            continue
        config = by_pair[pair]
        measured = MeasureResult("ok", "hardware", (latency,) * 3)
        found.append(TuningRecord.of(workload, target, config, measured))
    return found


def convolutions(*more: str) -> list[Workload]:
    """The workloads of convolutions, and of other operators."""
    tasks = extract_tasks(import_model(RESIDUAL), host_target())
    return [task.workload for task in tasks if task.workload.operator in ("conv2d", *more)]


def test_a_model_stays_blocked_where_that_pays(database: Database) -> None:
    for workload in convolutions():
        slow = {("NCHW", "NCHW"): 9e-4, ("NCHW", BLOCKED): 5e-4, (BLOCKED, "NCHW"): 5e-4}
        database.add(layout_records(workload, {**slow, (BLOCKED, BLOCKED): 1e-6}))
    settled = settle(prepared(import_model(RESIDUAL)), ScheduleChooser(host_target(), database, 1))
    conversions = [
        n for n in settled.graph.nodes if n.workload and n.workload.operator == TRANSFORM
    ]
    assert [node.workload["dst"] for node in conversions if node.workload] == [BLOCKED, "NCHW"]
    assert settled.exact
    between = [node for node in settled.graph.nodes if node not in conversions]
    assert {settled.options[node].output for node in between} == {BLOCKED}


def test_a_model_stays_plain_where_conversions_cost_more(database: Database) -> None:
    for workload in convolutions("pool2d"):
        pairs = itertools.product(("NCHW", BLOCKED), repeat=2)
        costs = {p: 1e-6 if p == ("NCHW", "NCHW") else 9e-4 for p in pairs}
        database.add(layout_records(workload, costs))
    settled = settle(prepared(import_model(RESIDUAL)), ScheduleChooser(host_target(), database, 1))
    assert not settled.layouts
    assert all(n.workload is None or n.workload.operator != TRANSFORM for n in settled.graph.nodes)


@settings(max_examples=8)
@given(st.integers(0, 2**31))
def test_the_choice_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chooser = ScheduleChooser(host_target(), None, 1)
    settlement = _Settlement(prepared(import_model(RESIDUAL)), chooser)
    for node, options in settlement.options.items():
        settlement.options[node] = [
            type(option)(**{**vars(option), "seconds": float(rng.uniform(0, 2e-6))})
            for option in options
        ]
    solution, _ = settlement._solved()
    costs = []
    for choice in itertools.product(*(settlement.options[node] for node in settlement.nodes)):
        chosen = dict(zip(settlement.nodes, choice, strict=True))
        costs.append(total_cost(settlement, chosen))
    assert solution.cost == pytest.approx(min(costs))


def total_cost(settlement: _Settlement, chosen: dict) -> float:  # type: ignore[type-arg]
    """Kernels, and a conversion on every edge that needs one."""
    total = sum(option.seconds for option in chosen.values())
    for node, option in chosen.items():
        for name, wanted in zip(node.inputs, option.operands, strict=True):
            producer = settlement.graph.producers.get(name)
            present = chosen[producer].output if producer in chosen else ""
            if name not in settlement.graph.constants:
                total += settlement.seconds(name, present, wanted)
        if settlement.needs_plain(node.outputs[0]):
            total += settlement.seconds(node.outputs[0], option.output, "")
    return total


def test_every_pair_of_layouts_gives_the_same_numbers(database: Database) -> None:
    graph = import_model(RESIDUAL)
    inputs = inputs_of(graph)
    pairs = list(itertools.product(("NCHW", BLOCKED), repeat=2))
    for number, favourites in enumerate(([3, 0, 1], [1, 2, 3], [2, 3, 0])):
        with Database.open(str(Path(database.name).parent / f"{number}.db")) as records:
            for workload, favourite in zip(convolutions(), favourites, strict=True):
                costs = {p: 1e-9 if i == favourite else 1.0 for i, p in enumerate(pairs)}
                records.add(layout_records(workload, costs))
            executable = build(graph, host_target(), records)
        with executable.workspace() as work:
            work.memory.arena.view(np.float32)[:] = np.nan
        assert executable.report.measured == 3
        assert executable.report.conversions > 0
        assert_close(executable.run(inputs), expected(RESIDUAL, inputs))


def test_channels_are_split_and_joined_in_blocks(database: Database) -> None:
    wide = 2 * LANES
    model = model_of(
        f"g (float[1, {wide}, 5, 5] x) => (float[1, {wide}, 5, 5] y) "
        "{ a = Conv(x, w0) b, c = Split<axis=1>(a) d = Conv(b, w1) "
        "e = Conv(c, w2) f = Concat<axis=1>(d, e) y = Conv(f, w3) }",
        w0=random(wide, wide, 1, 1), w1=random(LANES, LANES, 1, 1),
        w2=random(LANES, LANES, 1, 1, seed=1), w3=random(wide, wide, 1, 1),
    )  # fmt: skip
    graph = import_model(model)
    for task in extract_tasks(graph, host_target()):
        pairs = itertools.product(("NCHW", BLOCKED), repeat=2)
        costs = {p: 1e-6 if p == (BLOCKED, BLOCKED) else 1e-3 for p in pairs}
        database.add(layout_records(task.workload, costs))
    executable = build(graph, host_target(), database)
    with executable.workspace() as work:
        work.memory.arena.view(np.float32)[:] = np.nan
    inputs = inputs_of(graph)
    assert_close(executable.run(inputs), expected(model, inputs))
    moved = [s.workload.split()[0] for s in executable.recipe.steps if hasattr(s, "workload")]
    assert moved.count("layout_transform") == 2
    assert moved.count("conv2d") == 4


def test_the_evaluator_times_the_choices_it_is_given(database: Database) -> None:
    kernels = prepared(import_model(RESIDUAL))
    evaluator = GraphEvaluator(kernels, host_target(), database, runs=3)
    workload = convolutions()[0]
    default = default_of(workload, host_target())
    drawn = space_of(workload, host_target()).sample(np.random.default_rng(0), 2)
    choice = {workload: next(config for config in drawn if config != default)}
    recorded, chosen, again = (result.latency for result in evaluator.measure([{}, choice, {}]))
    assert recorded == again > 0 and chosen > 0
    assert len(evaluator._built) == 2


@pytest.mark.parametrize("stride", [1, 2])
def test_a_kernel_between_plain_ends_has_conversions_where_simulation_says_so(stride: int) -> None:
    channels, side = 2 * LANES, 24 // stride
    model = model_of(
        f"g (float[1, {channels}, 24, 24] x) => (float[1, {channels}, {side}, {side}] y) "
        "{ y = Conv<kernel_shape=[7, 7], pads=[3, 3, 3, 3], "
        f"strides=[{stride}, {stride}], group={channels}>(x, w) }}",
        w=random(channels, 1, 7, 7),
    )
    target, graph = host_target(), prepared(import_model(model))
    (node,) = graph.nodes

    def seconds(workload: Workload | None, config: Config | None = None) -> float:
        assert workload is not None
        config = config or default_of(workload, target)
        return simulated(workload, target, config) or 0.0

    costs = {}
    for (source, result), schedule in ScheduleChooser(target, None, 1).schedules(node.work).items():
        before, after = graph.info(node.inputs[0]), graph.info(node.writes[0])
        costs[schedule.config] = seconds(node.work, schedule.config)
        costs[schedule.config] += seconds(conversion(before, "", source)) if source else 0.0
        costs[schedule.config] += seconds(conversion(after, result, "")) if result else 0.0
    settled = settle(graph, ScheduleChooser(target, None, 1))
    (chosen,) = (o.config for o in settled.options.values() if o.workload == node.work)
    assert len(costs) > 1 and chosen == min(costs, key=lambda config: costs[config])


@pytest.mark.parametrize("dims", [(1, 32, 1, 1), (2, 20, 3, 1), (1, 16, 2, 2), (1, 16, 1, 1)])
def test_layouts_with_the_same_bytes_are_known(dims: tuple[int, ...]) -> None:
    array = np.arange(1, 1 + np.prod(dims), dtype=np.float32).reshape(dims)
    blocked = pack("NCHW16c", array)
    assert blocked.shape == physical_shape("NCHW16c", dims)
    same = blocked.size == array.size and bool(np.all(blocked.ravel() == array.ravel()))
    assert same_bytes("", "NCHW16c", dims) == same_bytes("NCHW16c", "NCHW", dims) == same
    assert normal("NCHW") == ""
