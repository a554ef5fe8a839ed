"""`Ensemble`: a few small multilayer perceptrons as plain arrays, evaluated in numpy.

Trees answer with values they have met; a network follows slopes beyond them, which is what ranking
schedules of a workload nobody trained on takes. It is trained elsewhere
(`tuner/pretrained/model_fitting.py`) and only read here. Invariants: weights are what half
precision holds, so that a saved ensemble (JSON, base64 of little-endian IEEE 754 halves) predicts
what it did
before; a row's prediction does not depend on the rows beside it, so that a resumed job sees what
the interrupted one saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.tuner.pretrained.arrays import array_of, text_of

Floats = NDArray[np.float64]

_HALF, _SINGLE = np.dtype("<f2"), np.dtype("<f4")
_FARTHEST = 6.0
"""Deviations from the mean at which inputs are cut: beyond, nothing was trained."""
_DECIMALS = 6
"""Of predictions: sums of doubles differ in their last digits with the shape of a matrix product,
which this hides."""


@dataclass(frozen=True)
class NeuralNetwork:
    """Hidden layers with max(x, 0), one linear output.

    Attributes:
        weights: of each layer, shapes (inputs, h1), (h1, h2), ..., (h, 1).
        biases: of each layer, shapes (h1,), (h2,), ..., (1,).
    """

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]

    @classmethod
    def of(cls, weights: Sequence[NDArray[Any]], biases: Sequence[NDArray[Any]]) -> NeuralNetwork:
        """A network of these arrays, rounded to what a file holds."""
        return cls(
            tuple(_rounded(w, _HALF) for w in weights), tuple(_rounded(b, _HALF) for b in biases)
        )

    def predict(self, values: Floats) -> Floats:
        """What the network says of standardised rows of shape (n, inputs), shape (n,)."""
        for weights, biases in zip(self.weights[:-1], self.biases[:-1], strict=True):
            values = np.maximum(values @ weights + biases, 0.0)
        outputs = values @ self.weights[-1] + self.biases[-1]
        return np.asarray(np.round(outputs[:, 0], _DECIMALS))


@dataclass(frozen=True)
class Ensemble:
    """Networks of one shape over the same standardised inputs; their mean counts.

    Attributes:
        mean, deviation: of the inputs trained on, shape (inputs,).
        networks: one or more.
    """

    mean: Floats
    deviation: Floats
    networks: tuple[NeuralNetwork, ...]

    @classmethod
    def of(
        cls, mean: NDArray[Any], deviation: NDArray[Any], networks: Sequence[NeuralNetwork]
    ) -> Ensemble:
        """An ensemble of these, rounded to what a file holds."""
        return cls(_rounded(mean, _SINGLE), _rounded(deviation, _SINGLE), tuple(networks))

    def predict(self, inputs: NDArray[np.float32]) -> Floats:
        """The mean of what the networks say of rows of shape (n, inputs), shape (n,)."""
        values = standardised(inputs, self.mean, self.deviation)
        return np.asarray(np.mean([network.predict(values) for network in self.networks], axis=0))

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_json` undoes."""
        return {
            "mean": text_of(self.mean, _SINGLE),
            "deviation": text_of(self.deviation, _SINGLE),
            "widths": [len(biases) for biases in self.networks[0].biases],
            "networks": [
                {
                    "weights": [text_of(weights, _HALF) for weights in network.weights],
                    "biases": [text_of(biases, _HALF) for biases in network.biases],
                }
                for network in self.networks
            ],
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Ensemble:
        """Undo `to_json`; `ValueError` for anything else."""
        try:
            mean, deviation = (_array(saved[name], _SINGLE) for name in ("mean", "deviation"))
            widths = [len(mean), *(int(width) for width in saved["widths"])]
            networks = tuple(_network(network, widths) for network in saved["networks"])
        except (KeyError, TypeError) as error:
            raise ValueError("not a saved ensemble of networks") from error
        fits = len(deviation) == len(mean) and bool((deviation > 0).all())
        if not fits or widths[-1] != 1 or not networks:
            raise ValueError("the parts of a saved ensemble do not fit together")
        return cls(mean, deviation, networks)


def _network(saved: Mapping[str, Any], widths: Sequence[int]) -> NeuralNetwork:
    """One of a saved ensemble's networks, whose inputs and layers have these widths."""
    texts = zip(saved["weights"], pairwise(widths), strict=True)
    weights = tuple(_array(text, _HALF).reshape(shape) for text, shape in texts)
    biases = tuple(_array(text, _HALF) for text in saved["biases"])
    if [len(b) for b in biases] != list(widths[1:]):
        raise ValueError("the biases of a saved network do not fit its layers")
    return NeuralNetwork(weights, biases)


def standardised(inputs: NDArray[Any], mean: Floats, deviation: Floats) -> Floats:
    """Inputs (n, f) in deviations (f,) from their mean (f,), cut far out."""
    return np.asarray(np.clip((inputs - mean) / deviation, -_FARTHEST, _FARTHEST))


def _rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> Floats:
    return np.asarray(values, dtype).astype(np.float64)


def _array(text: str, dtype: np.dtype[Any]) -> Floats:
    """Numbers of a text, flat; `ValueError` for other text, or where one is not finite."""
    numbers = array_of(text, dtype).astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError("a saved ensemble holds numbers that are not finite")
    return numbers
