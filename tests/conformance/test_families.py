"""Every registered family of targets keeps its contracts, on the operators' own examples.

The tests walk over the registries, so a family is covered by being there: each has a machine the IR
knows, values that are right, latencies that repeat, and whole models. Its schedulers keep theirs in
`test_schedulers`, its programs the rules of the IR in `tests/property/test_programs`.
"""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of, random
from tests.conformance.family_checks import TARGETS, check_config
from tests.conformance.template_checks import expected, physical, random_inputs
from tilesmith.codegen.programs.structures import lowered
from tilesmith.compiler.backends.backend import backends, measures_models
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.ir.family import families
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.scheduler import is_scheduled, scheduler_of
from tilesmith.search_space.workloads.template import template_of, templates
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge, judges_as_measured, measure, simulate, simulators

SETTLED = ("layout_transform",)
"""Operators on physical layouts, which only settling makes: no model has them by themselves."""


@cache
def first_scheduled(operator: str, family: str) -> Workload | None:
    """The first of an operator's examples that a family has schedules of."""
    workloads = map(Workload.parse, templates[operator].examples)
    return next((w for w in workloads if is_scheduled(w, TARGETS[family])), None)


CASES = [
    pytest.param(family, operator, id=f"{family} {operator}")
    for family in families
    for operator in templates
    if first_scheduled(operator, family) is not None
]


def drawn(family: str, operator: str) -> tuple[Workload, list[Config], np.random.Generator]:
    """The workload of a case, its default and another configuration."""
    workload, target = first_scheduled(operator, family), TARGETS[family]
    assert workload is not None
    rng = np.random.default_rng(zlib.crc32(f"{family} {operator}".encode()))
    scheduler = scheduler_of(workload, target)
    configs = {
        scheduler.default(workload, target),
        *scheduler.space(workload, target).sample(rng, 1),
    }
    return workload, sorted(configs, key=lambda config: config.key), rng


@pytest.mark.parametrize("family", list(families))
def test_a_family_has_a_target_a_machine_and_a_simulator(family: str) -> None:
    target = TARGETS[family]
    assert families[family].name == target.family == family
    assert "global" in families[family].scopes, "where a program's operands are"
    assert set(families[family].memories(target)) <= set(families[family].scopes)
    simulators[family].check(target)
    assert any(first_scheduled(operator, family) for operator in templates)


@pytest.mark.parametrize("family, operator", CASES)
def test_values_are_those_of_the_reference(family: str, operator: str) -> None:
    """Through a backend as a model, without one by the meaning of the program."""
    workload, configs, rng = drawn(family, operator)
    if operator in SETTLED:
        pytest.skip("it is part of models with other operators only")
    for config in configs:
        if family in backends:
            check_config(workload, TARGETS[family], config, rng)
        else:
            inputs = random_inputs(workload, rng)
            program = lowered(workload, TARGETS[family], config)
            template = template_of(operator)
            given = physical(template, workload, config, inputs)
            got = interpret(program, given)[program.parameters[-1].name]
            want = expected(workload, inputs)
            layout = template.layouts(workload, config)[1]
            if layout:
                want = Layout.parse(layout).pack(want)
            np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("family, operator", CASES)
def test_latencies_repeat_and_failures_say_why(family: str, operator: str) -> None:
    workload, configs, _ = drawn(family, operator)
    target = TARGETS[family]
    if simulators[family].covers(workload) or is_scheduled(workload, target):
        judged, again = (judge(workload, target, configs) for _ in range(2))
        measured = measure(workload, target, configs)
        np.testing.assert_array_equal(judged.latency, again.latency)
        np.testing.assert_array_equal(judged.features, again.features)
        assert judges_as_measured(target) == np.array_equal(judged.latency, measured.latency)
        assert all(failure.message for failure in measured.failures.values())
        good = [row for row in range(len(configs)) if row not in measured.failures]
        assert (measured.latency[good] > 0).all()
        fidelity = "analytical" if judges_as_measured(target) else "timeline"
        played = simulate(workload, target, configs[good[0]], fidelity)
        assert played.latency_us == pytest.approx(measured.latency[good[0]] * 1e6)
        assert all(0 <= share <= 1 + 1e-9 for share in played.engines.values())


def perceptron() -> onnx.ModelProto:
    """Two layers, with a softmax at the end that a family may leave to the host."""
    text = (
        "mlp (float[6, 40] x) => (float[6, 10] y) "
        "{ h = Gemm(x, w1, b1) r = Relu(h) z = Gemm(r, w2, b2) y = Softmax(z) }"
    )
    weights = {"w1": random(40, 32), "b1": random(32), "w2": random(32, 10), "b2": random(10)}
    return model_of(text, **weights)


@pytest.mark.parametrize("family", list(backends))
def test_a_whole_model_runs_and_is_timed(family: str) -> None:
    target, model = TARGETS[family], perceptron()
    assert backends[family].family == family
    executable = build(import_model(model), target)
    x = random(6, 40)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    tolerance = 2e-5 if executable.report.precision == "fp32" else 4e-3
    np.testing.assert_allclose(executable.run({"x": x})["y"], want, tolerance, tolerance)
    assert executable.report.default >= 2, "the products have schedules everywhere"
    if measures_models(target, "simulator"):
        played = backends[family].simulate(executable.recipe)
        assert played.latency_us * 1e-6 == pytest.approx(
            backends[family].estimate_model(executable.recipe)
        )
        assert played.latency_us > 0 and played.target == target.name
        assert len(played.ops) >= 2
