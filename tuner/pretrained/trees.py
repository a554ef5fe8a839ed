"""`Trees`: boosted regression trees as plain arrays, evaluated in numpy.

xgboost grows them; it is not asked to read them again. A database that a team shares is input like
any other, and a loader of another library is no place to find out what is wrong with it: here every
array is checked, so that the worst a stored text can hold is wrong numbers. Invariants: a child
stands behind its parent, so that every walk ends; a row's prediction does not depend on the rows
beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.tuner.pretrained.arrays import array_of, text_of

Floats = NDArray[np.float64]

_WHOLE, _SINGLE = np.dtype("<i4"), np.dtype("<f4")
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
    def of_booster(cls, booster: Any) -> Trees:
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
    def from_json(cls, saved: Mapping[str, Any], columns: int) -> Trees:
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
