"""Precisions chosen for each layer: the integer program, errors, plans, and the whole job."""

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tilesmith as ts
from tests.compiler.model_builder import model_of, random
from tests.end_to_end.command import invoke, refuse
from tilesmith.capabilities.quantisation.jobs import file_of
from tilesmith.capabilities.quantisation.numbers.block_weights import Blocks
from tilesmith.capabilities.quantisation.numbers.narrow import OPSET
from tilesmith.capabilities.quantisation.numbers.ranges import Method
from tilesmith.capabilities.quantisation.precisions import times
from tilesmith.capabilities.quantisation.precisions.choosing import Data, reason, split
from tilesmith.capabilities.quantisation.precisions.mixed import MixedModel
from tilesmith.capabilities.quantisation.precisions.neighbours import Neighbours, owners
from tilesmith.capabilities.quantisation.precisions.page import best_of
from tilesmith.capabilities.quantisation.precisions.program import (
    Edge,
    PrecisionOption,
    PrecisionProblem,
    solved,
)
from tilesmith.capabilities.quantisation.preparation.float_model import float_model
from tilesmith.capabilities.quantisation.preparation.plan import OPERATORS, layers_of
from tilesmith.capabilities.quantisation.search.emulation import Emulation, Floats
from tilesmith.capabilities.quantisation.search.ways import WithBytes
from tilesmith.codegen.host.machine import host_target
from tilesmith.search_space.support.errors import DependencyError, InputError, JobError, ModelError

TEXT = """agraph (float[4,16] x) => (float[4,8] y)
{ a = MatMul(x, first) r = Relu(a) b = MatMul(r, second) s = Add(b, r) y = MatMul(s, third) }"""
ROWS = np.random.default_rng(0).standard_normal((6, 4, 16)).astype(np.float32)


def model() -> onnx.ModelProto:
    return model_of(TEXT, first=random(16, 16) / 4, second=random(16, 16) / 4, third=random(16, 8))


@pytest.fixture(scope="module")
def mixed() -> MixedModel:
    read = float_model(file_of(model()), OPSET)
    whole = WithBytes(
        read, layers_of(read), OPERATORS, frozenset(), Method.parse("minmax"), False, True
    )
    samples = [{"x": row} for row in ROWS]
    whole.calibrate(Floats(read, whole.seen, host_target()), samples)
    return MixedModel.of(whole, Blocks(4, 16), len(samples))


def nodes(mixed: MixedModel) -> list[str]:
    return [layer.node for layer in mixed.layers]


# -- the integer program --------------------------------------------------------------------------


def problem(seed: int) -> PrecisionProblem:
    rng = np.random.default_rng(seed)
    names = ("fp32", "bf16", "int8", "int4")
    layers = []
    for _ in range(5):
        count = int(rng.integers(2, 5))
        errors = [0.0, *np.sort(rng.uniform(0.001, 0.02, count - 1))]
        layers.append(
            [PrecisionOption(names[n], float(rng.uniform(1, 9)), errors[n]) for n in range(count)]
        )
    pairs = list(itertools.permutations(names, 2))
    edges = [
        Edge(n - 1 if n else None, n, {pair: float(rng.uniform(0, 2)) for pair in pairs})
        for n in range(5)
    ]
    edges.append(Edge(0, 3, {pair: float(rng.uniform(0, 2)) for pair in pairs}))
    return PrecisionProblem(layers, edges, 3.0)


def cheapest(problem: PrecisionProblem, budget: float) -> float:
    every = itertools.product(*(range(len(own)) for own in problem.layers))
    return min(problem.cost(one) for one in every if problem.error(one) <= budget)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [0.0, 0.008, 0.02, 1.0])
def test_the_program_finds_what_trying_everything_finds(seed: int, budget: float) -> None:
    pytest.importorskip("ortools")
    own = problem(seed)
    found = solved(own, budget)
    assert own.error(found.chosen) <= budget
    assert found.cost == own.cost(found.chosen)
    assert found.cost == pytest.approx(cheapest(own, budget), rel=1e-6)
    assert found.gap == 0


def test_what_no_choice_keeps_is_said() -> None:
    pytest.importorskip("ortools")
    with pytest.raises(JobError, match=r"within an error of 0\.01"):
        solved(PrecisionProblem([[PrecisionOption("int8", 1.0, 0.5)]]), 0.01)


def test_the_cost_of_a_choice_has_its_conversions() -> None:
    layers = [[PrecisionOption("fp32", 4.0, 0.0), PrecisionOption("int8", 1.0, 0.1)]] * 2
    edges = [Edge(None, 0, {("fp32", "int8"): 0.5}), Edge(0, 1, {("int8", "fp32"): 0.25})]
    own = PrecisionProblem(layers, edges, 10.0)
    costs = [own.cost(one) for one in itertools.product(range(2), repeat=2)]
    assert costs == [18.0, 15.0, 15.75, 12.5]
    assert own.error((1, 1)) == pytest.approx(math.sqrt(0.02))


# -- models ---------------------------------------------------------------------------------------


def narrow(values: Any) -> Any:
    return np.asarray(values).astype(ml_dtypes.bfloat16).astype(np.float32)


def run(proto: onnx.ModelProto, x: Any) -> Any:
    return ts.compile(proto).run({"x": x})["y"]


@pytest.mark.parametrize("layer", range(3))
def test_the_error_of_a_layer_in_bf16_is_numpys(mixed: MixedModel, layer: int) -> None:
    weights = [mixed.model.constants[name] for name in ("first", "second", "third")]

    def by_hand(x: Any) -> Any:
        def product(number: int, a: Any) -> Any:
            b = weights[number]
            return narrow(a) @ narrow(b) if number == layer else a @ b

        r = np.maximum(product(0, x), 0)
        return product(2, product(1, r) + r)

    emulation = Emulation(mixed.model, mixed.whole.full, host_target(), narrow=True)
    chosen = mixed.parameters({nodes(mixed)[layer]: "bf16"})
    for row in ROWS[:2]:
        found = emulation.run({"x": row}, chosen)["y"]
        np.testing.assert_allclose(found, by_hand(row), rtol=1e-4, atol=1e-5)


def test_the_error_of_a_layer_in_int4_is_that_of_its_weights(mixed: MixedModel) -> None:
    node = nodes(mixed)[0]
    chosen = mixed.parameters({node: "int4"})
    first, second, third = (mixed.model.constants[n] for n in ("first", "second", "third"))
    coded = chosen.layers[node].floats()
    assert 0.01 < np.linalg.norm(coded - first) / np.linalg.norm(first) < 0.2
    emulation = Emulation(mixed.model, mixed.whole.full, host_target(), narrow=True)
    r = np.maximum(ROWS[0] @ coded, 0)
    found = emulation.run({"x": ROWS[0]}, chosen)["y"]
    np.testing.assert_allclose(found, (r @ second + r) @ third, rtol=1e-4, atol=1e-5)


PLANS: list[Sequence[str]] = [
    ("bf16", "bf16", "bf16"), ("int8", "bf16", "fp32"), ("bf16", "int8", "int4"),
    ("int4", "fp32", "bf16"), ("fp32", "int8", "bf16"),
]  # fmt: skip


@pytest.mark.parametrize("precisions", PLANS)
def test_a_mixed_model_is_valid_and_near_the_float_one(
    mixed: MixedModel, precisions: Sequence[str]
) -> None:
    plan = dict(zip(nodes(mixed), precisions, strict=True))
    proto = mixed.written({name: p for name, p in plan.items() if p != "fp32"})
    (wanted,) = ReferenceEvaluator(model()).run(None, {"x": ROWS[0]})
    found = run(proto, ROWS[0])
    limit = 0.3 if "int4" in precisions else 0.05
    assert 0 < np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < limit
    if "int4" not in precisions:
        onnx.checker.check_model(proto, full_check=True)
        (other,) = ReferenceEvaluator(proto).run(None, {"x": ROWS[0]})
        assert np.linalg.norm(found - other) / np.linalg.norm(other) < 0.03


def test_a_plan_of_nothing_is_the_float_model(mixed: MixedModel) -> None:
    proto = mixed.written({})
    assert {node.op_type for node in proto.graph.node} == {"MatMul", "Relu", "Add"}
    (wanted,) = ReferenceEvaluator(model()).run(None, {"x": ROWS[0]})
    np.testing.assert_allclose(run(proto, ROWS[0]), wanted, rtol=1e-4, atol=1e-5)


def test_work_without_weights_goes_with_the_layer_before_it(mixed: MixedModel) -> None:
    first, second, third = nodes(mixed)
    makers = Neighbours.of(mixed.model, mixed.layers).makers
    assert makers == {first: None, second: first, third: second}
    proto = mixed.written(mixed.uniform("int8"))
    owned = owners(proto, mixed.layers)
    readers = {n.name: owned[n.name] for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    assert readers["x_bytes/QuantizeLinear"] == first
    assert {owned[n.name] for n in proto.graph.node if n.op_type == "Relu"} == {first}


def test_weights_take_what_their_precision_says(mixed: MixedModel) -> None:
    layer = mixed.layers[0]
    sizes = {p: mixed.bytes_of(layer, p) for p in mixed.precisions(layer)}
    assert sizes == {"fp32": 1024, "bf16": 512, "int8": 256 + 64, "int4": 128 + 64 + 16}


def test_samples_that_judge_had_no_part_in_the_choice() -> None:
    samples = [{"x": row} for row in ROWS]
    drawn, calibrating = split(samples, 16, [3, 1, 0, 2, 5, 4])
    assert (len(drawn), calibrating) == (6, 5)
    data = Data(drawn, drawn, calibrating)
    assert data.error(lambda sample: {"x": 2 * sample["x"]}) == pytest.approx(1.0)
    assert data.error(lambda sample: sample, held_out=True) == 0


def test_reasons_name_what_was_saved_and_what_was_left() -> None:
    costs, errors = (
        {"fp32": 9.0, "bf16": 5.0, "int8": 2.0},
        {"fp32": 0.0, "bf16": 0.01, "int8": 0.1},
    )
    said = reason("bf16", costs, errors, 0.1, "us")
    assert said == "saves 4 us for 1.0% of the budget; int8 would save 3 us more for 100.0%"
    assert reason("fp32", {"fp32": 1.0, "bf16": 2.0}, errors, 0.1, "us").startswith("nothing is")


def test_the_front_leaves_out_what_is_slower_and_less_exact() -> None:
    assert best_of([(0.2, 3.0), (0.0, 9.0), (0.1, 5.0), (0.15, 6.0)]) == [
        (0.0, 9.0), (0.1, 5.0), (0.2, 3.0),
    ]  # fmt: skip


# -- the job --------------------------------------------------------------------------------------


def chosen(**asked: Any) -> Any:
    return ts.quantize(model(), ROWS, database=None, **asked).report.precisions


def test_the_chosen_model_keeps_the_budget(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    report = chosen(budget=0.02, minimise="size")
    assert report.bytes < report.fp32_bytes
    assert max(report.error, report.held_out) <= 0.02
    assert {point.gap for point in report.front} == {0.0}
    fitting = [p.bytes for p in report.front if max(p.error, p.held_out) <= 0.02]
    assert report.bytes == min(fitting)


def test_times_are_kept_in_the_database(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    database = tmp_path / "tuning.db"
    both = [
        ts.quantize(model(), ROWS, budget=0.02, minimise="latency", database=database)
        for _ in range(2)
    ]
    first, second = (one.report.precisions for one in both)
    assert first.kernels_measured > 0  # type: ignore[union-attr]
    assert second.kernels_measured == 0  # type: ignore[union-attr]
    assert second.kernels_known > 0  # type: ignore[union-attr]


def test_what_was_measured_stays_when_the_user_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ortools")
    asked: dict[str, Any] = {"budget": 0.02, "minimise": "latency"}

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(times, "_conversions", stop)
        with pytest.raises(KeyboardInterrupt):
            ts.quantize(model(), ROWS, database=tmp_path / "tuning.db", **asked)
    report: Any = ts.quantize(model(), ROWS, database=tmp_path / "tuning.db", **asked)
    assert report.report.precisions.kernels_known > 0


def test_a_plan_that_exceeds_the_budget_is_taken_and_said_so(mixed: MixedModel) -> None:
    plan = dict.fromkeys(nodes(mixed), "int4")
    report: Any = chosen(plan=plan, budget=1e-6, minimise="size")
    assert report.plan == plan
    assert report.front[0].verdict.startswith("given, though error")


def test_a_plan_is_written_and_read_back(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    source, plan, page = (tmp_path / name for name in ("m.onnx", "plan.json", "page.html"))
    onnx.save(model(), source)
    np.save(tmp_path / "rows.npy", ROWS)
    words = ("quantize", source, "-o", tmp_path / "out.onnx", "--data", tmp_path / "rows.npy")
    more = ("--for", "size", "--budget", "0.02", "--plan-out", plan, "--page", page)
    first = invoke(*words, *more)
    assert first.exit_code == 0, first.stderr
    assert "<svg" in page.read_text()
    whole = json.loads(plan.read_text())
    layers = {name: layer["precision"] for name, layer in whole["layers"].items()}
    assert len(layers) == 3
    edited = {**whole, "layers": {**layers, next(iter(layers)): "fp32"}}
    plan.write_text(json.dumps(edited))
    again = invoke(*words, "--plan", plan, "--json")
    assert again.exit_code == 0, again.stderr
    found = json.loads(again.stdout)["precisions"]
    assert found["layers"][0]["precision"] == "fp32"
    assert [la["precision"] for la in found["layers"][1:]] == list(layers.values())[1:]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "is no plan of precisions"),
        ('{"format": "tilesmith precisions", "version": 9}', "version 9"),
        ('{"format": "tilesmith precisions", "version": 1}', "no 'layers'"),
        ('{"format": "tilesmith precisions", "version": 1, "layers": {"a": 3}}', "no precision"),
        ('{"format": "tilesmith precisions", "version": 1, "layers": {"a": "int8"}}', "no layer"),
    ],
)
def test_files_that_are_no_plans_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        ts.quantize(model(), ROWS, plan=path, database=None)


def test_precisions_that_a_layer_does_not_have_are_refused(mixed: MixedModel) -> None:
    with pytest.raises(InputError, match="it may be in fp32, bf16, int8, int4"):
        ts.quantize(model(), ROWS, plan={nodes(mixed)[0]: "int3"}, database=None)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"minimise": "latency"}, "needs the error allowed"),
        ({"minimise": "latency", "budget": -0.1}, "out of range"),
        ({"minimise": "speed", "budget": 0.1}, "'work', 'latency' or 'size'"),
        ({"minimise": "size", "budget": 0.1, "weights": "int4"}, "one precision"),
    ],
)
def test_options_that_do_not_fit_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ts.quantize(model(), ROWS, database=None, **asked)


def test_one_sample_cannot_choose_and_judge() -> None:
    with pytest.raises(InputError, match="two samples"):
        ts.quantize(model(), ROWS[0], minimise="size", budget=0.1)


def test_no_data_is_refused() -> None:
    with pytest.raises(InputError, match="needs calibration data"):
        ts.quantize(model(), minimise="latency", budget=0.1)


def test_a_model_without_weights_is_refused() -> None:
    plain = model_of("agraph (float[4,16] x) => (float[4,16] y) { y = Relu(x) }")
    with pytest.raises(ModelError, match="can be quantised"):
        ts.quantize(plain, ROWS, minimise="size", budget=0.1)


def test_without_ortools_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesmith.jobs.extras.find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"tilesmith\[ortools\]"):
        ts.quantize(model(), ROWS, minimise="size", budget=0.1)


def test_outputs_are_of_precisions_alone(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(model(), source)
    message = refuse(
        "quantize",
        source,
        "-o",
        tmp_path / "o.onnx",
        "--random",
        "4",
        "--page",
        tmp_path / "p.html",
    )
    assert "--for latency" in message
