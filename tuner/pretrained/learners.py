"""What pretrained models are made of: `Ensemble` and `Trees`, plain arrays evaluated in numpy.

An ensemble is a few small multilayer perceptrons. Trees are boosted regression trees: they answer
with values they have met; a network follows slopes beyond them, which is what ranking schedules of
a workload nobody trained on takes. Both are trained elsewhere (`tuner/pretrained/model_fitting.py`)
and only read here. scikit-learn and xgboost are not asked to read them again: a database that a
team shares is input like any other, and a loader of another library is no place to find out what is
wrong with it. Here every array is checked, so that the worst a stored text can hold is wrong
numbers.

Arrays are kept in JSON as base64 of little-endian numbers. Invariants: weights of networks are what
half precision holds, so that a saved ensemble predicts what it did before; a child of a tree stands
behind its parent, so that every walk ends; a row's prediction does not depend on the rows beside
it, so that a resumed job sees what the interrupted one saw.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


def text_of(values: NDArray[Any], dtype: np.dtype[Any]) -> str:
    """An array's numbers as `dtype`, in order; its shape is not kept."""
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode()


def array_of(text: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Undo `text_of`, flat; `ValueError` or `TypeError` for anything else."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)


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
    def of(cls, weights: Sequence[NDArray[Any]], biases: Sequence[NDArray[Any]]) -> "NeuralNetwork":
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
    ) -> "Ensemble":
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
    def from_json(cls, saved: Mapping[str, Any]) -> "Ensemble":
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


_WHOLE = np.dtype("<i4")
_DEEPEST = 32
"""Levels a tree may have."""


@dataclass(frozen=True)
class Trees:
    """The nodes of all trees under each other; what they say is summed up.

    Attributes:
        roots: the first node of each tree, shape (trees,), int32.
        children: of each node (left, right), shape (nodes, 2), int32; -1: it is a leaf.
        features: the column each node asks for, shape (nodes,), int32.
        limits: go left where the column is below it, shape (nodes,), float32.
        values: what a leaf says, shape (nodes,), float32.
    """

    roots: NDArray[np.int32]
    children: NDArray[np.int32]
    features: NDArray[np.int32]
    limits: NDArray[np.float32]
    values: NDArray[np.float32]

    @classmethod
    def of_booster(cls, booster: Any) -> "Trees":
        """The trees of an `xgboost.Booster`, without its constant."""
        learner = json.loads(bytes(booster.save_raw("json")))["learner"]
        trees = learner["gradient_booster"]["model"]["trees"]
        sizes = [len(tree["left_children"]) for tree in trees]
        roots = np.cumsum([0, *sizes[:-1]]).astype(np.int32)
        pairs = [
            np.where(children < 0, -1, children + root)
            for tree, root in zip(trees, roots.tolist(), strict=True)
            for children in [np.array([tree["left_children"], tree["right_children"]], np.int32).T]
        ]
        columns = ("split_indices", "split_conditions")
        features, limits = (np.concatenate([tree[name] for tree in trees]) for name in columns)
        children = np.concatenate(pairs).astype(np.int32)
        leaf = children[:, 0] < 0
        return cls(
            roots,
            children,
            np.where(leaf, 0, features).astype(np.int32),
            np.where(leaf, 0.0, limits).astype(np.float32),
            np.where(leaf, limits, 0.0).astype(np.float32),
        )

    def predict(self, inputs: NDArray[np.float32]) -> Floats:
        """What the trees say of rows of shape (n, columns), shape (n,)."""
        rows = np.arange(len(inputs))[:, None]
        nodes = np.tile(self.roots, (len(inputs), 1))
        for _ in range(_DEEPEST):
            children = self.children[nodes]
            inner = children[..., 0] >= 0
            if not inner.any():
                break
            below = inputs[rows, self.features[nodes]] < self.limits[nodes]
            nodes = np.where(inner, np.where(below, children[..., 0], children[..., 1]), nodes)
        return np.asarray(self.values[nodes].sum(axis=1, dtype=np.float64))

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_json` undoes."""
        whole = {n: text_of(getattr(self, n), _WHOLE) for n in ("roots", "children", "features")}
        return {**whole, **{n: text_of(getattr(self, n), _SINGLE) for n in ("limits", "values")}}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], columns: int) -> "Trees":
        """Undo `to_json`; `ValueError` for anything else, or trees over more `columns`."""
        try:
            roots, children, features = (
                array_of(saved[n], _WHOLE) for n in ("roots", "children", "features")
            )
            limits, values = (array_of(saved[n], _SINGLE) for n in ("limits", "values"))
        except (KeyError, TypeError) as error:
            raise ValueError("not saved trees") from error
        if len(children) != 2 * len(features):
            raise ValueError("the parts of saved trees do not fit together")
        trees = cls(roots, children.reshape(-1, 2), features, limits, values)
        trees._check(columns)
        return trees

    def _check(self, columns: int) -> None:
        """`ValueError` unless every walk ends and asks for columns that there are."""
        count, own = len(self.features), np.arange(len(self.features))[:, None]
        fits = len(self.limits) == len(self.values) == count > 0 < len(self.roots)
        if not fits or not ((self.roots >= 0) & (self.roots < count)).all():
            raise ValueError("the parts of saved trees do not fit together")
        leaf = (self.children == -1).all(axis=1, keepdims=True)
        if not (leaf | ((self.children > own) & (self.children < count))).all():
            raise ValueError("a node of saved trees has a child that does not stand behind it")
        if not ((self.features >= 0) & (self.features < columns)).all():
            raise ValueError("saved trees ask for columns that there are not")
        if not (np.isfinite(self.limits).all() and np.isfinite(self.values).all()):
            raise ValueError("saved trees hold numbers that are not finite")
