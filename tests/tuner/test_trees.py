"""Trees as arrays: held against xgboost's own evaluation; what is damaged is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xgboost

from tilesmith.tuner.pretrained.learners import Trees, array_of, text_of

RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((300, 4)).astype(np.float32)
WHOLE, SINGLE = np.dtype("<i4"), np.dtype("<f4")


def grown() -> tuple[Any, Trees]:
    labels = np.abs(INPUTS[:, 0]) - INPUTS[:, 1] * (INPUTS[:, 2] > 0)
    parameters = {"max_depth": 5, "eta": 0.3, "nthread": 1, "base_score": 0.0}
    booster = xgboost.train(parameters, xgboost.DMatrix(INPUTS, labels), 12)
    return booster, Trees.of_booster(booster)


def test_they_say_what_the_library_that_grew_them_says() -> None:
    booster, trees = grown()
    asked = np.vstack([INPUTS, RNG.standard_normal((100, 4)).astype(np.float32) * 10])
    np.testing.assert_allclose(trees.predict(asked), booster.inplace_predict(asked), atol=1e-5)


def test_saved_trees_predict_the_same() -> None:
    trees = grown()[1]
    again = Trees.from_json(json.loads(json.dumps(trees.to_json())), 4)
    np.testing.assert_array_equal(again.predict(INPUTS), trees.predict(INPUTS))


def changed(name: str, dtype: np.dtype[Any], place: int, value: float) -> dict[str, Any]:
    saved = grown()[1].to_json()
    values = array_of(saved[name], dtype).copy()
    values[place] = value
    return {**saved, name: text_of(values, dtype)}


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"roots": 3},
        {**grown()[1].to_json(), "limits": "no base64"},
        {**grown()[1].to_json(), "values": ""},
        changed("roots", WHOLE, 1, 10**6),
        changed("roots", WHOLE, 1, -1),
        changed("children", WHOLE, 0, 0),  # its own child: a walk without end
        changed("children", WHOLE, 1, 10**6),
        changed("children", WHOLE, 1, -1),
        changed("features", WHOLE, 0, 4),
        changed("features", WHOLE, 0, -1),
        changed("limits", SINGLE, 0, np.nan),
        changed("values", SINGLE, -1, np.inf),
    ],
)
def test_what_is_no_tree_is_refused(saved: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Trees.from_json(saved, 4)
