"""What a family's backend answers for the compiler and the front door."""

from __future__ import annotations

import pytest

import tilesmith as ts
from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.backends.backend import backend_of, backends, measures_models
from tilesmith.compiler.driver.build import scheduled
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import TargetError

TARGETS = {"cpu": host_target(), "trainium": load_target("trn1")}
MODEL = "g (float[4, 8] x) => (float[4, 8] y) { y = Softmax(x) }"


@pytest.mark.parametrize("family", sorted(TARGETS))
def test_models_are_timed_in_exactly_one_way(family: str) -> None:
    target = TARGETS[family]
    assert backend_of(target) is backends[family] and backends[family].family == family
    ways = [way for way in ("hardware", "simulator") if measures_models(target, way)]
    assert ways == [backends[family].measured_by]
    kernels = scheduled(import_model(model_of(MODEL)), target)
    evaluator = backends[family].evaluator(kernels, target, None, 1)
    assert evaluator is not None and not evaluator.measure([])


def test_a_family_without_a_backend_says_so() -> None:
    array = load_target("systolic")
    assert not measures_models(array, "simulator") and not measures_models(array, "hardware")
    with pytest.raises(
        TargetError, match=r"models do not run on target 'systolic'.* are cpu, loom, lpu, trainium"
    ):
        backend_of(array)


def test_what_is_timed_here_is_not_played() -> None:
    executable = ts.compile(model_of(MODEL))
    with pytest.raises(NotImplementedError, match="times its models on hardware"):
        backends["cpu"].simulate(executable.recipe)
