"""The example of quantisation trains what it exports: its slopes are those of the loss there."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import numpy as np
import onnxruntime
import pytest

from tests.docs.documents import ROOT


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quantise", ROOT / "examples" / "quantise.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_slopes_are_differences_of_the_exported_networks_loss(example: ModuleType) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((8, 1, 8, 8)).astype(np.float32)
    labels = rng.integers(0, 10, 8)
    weights = example.trained(x, labels, epochs=0)

    def loss(name: str, place: tuple[int, ...], step: float) -> float:
        changed = {key: value.copy() for key, value in weights.items()}
        changed[name][place] += step
        model = example.model_of(changed).SerializeToString()
        (scores,) = onnxruntime.InferenceSession(model).run(None, {"image": x})
        scores = scores.astype(np.float64)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return float(-np.log(odds[range(8), labels] / odds.sum(axis=1)).mean())

    slopes = example.gradients(weights, x, labels)
    assert slopes.keys() == weights.keys()
    for name, slope in slopes.items():
        place = np.unravel_index(np.abs(slope).argmax(), slope.shape)
        wanted = (loss(name, place, 2e-3) - loss(name, place, -2e-3)) / 4e-3
        assert slope[place] == pytest.approx(wanted, rel=0.1, abs=1e-3), name
