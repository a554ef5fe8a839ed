"""Networks: held against scikit-learn's own evaluation of what it trained."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from sklearn.neural_network import MLPRegressor

from tilesmith.tuner.pretrained.learners import Ensemble, NeuralNetwork

RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((200, 5)).astype(np.float32) * 3 + 1


def trained() -> tuple[MLPRegressor, Ensemble]:
    model = MLPRegressor(hidden_layer_sizes=(16, 8), max_iter=30, random_state=0)
    mean, deviation = INPUTS.mean(axis=0), INPUTS.std(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not to converge
        model.fit((INPUTS - mean) / deviation, np.abs(INPUTS[:, 0]) - INPUTS[:, 1])
    network = NeuralNetwork.of(model.coefs_, model.intercepts_)
    return model, Ensemble.of(mean, deviation, [network])


def test_it_says_what_the_library_that_trained_it_says() -> None:
    model, network = trained()
    expected = model.predict((INPUTS - INPUTS.mean(axis=0)) / INPUTS.std(axis=0))
    np.testing.assert_allclose(network.predict(INPUTS), expected, atol=2e-2)


def test_a_saved_network_predicts_the_same() -> None:
    network = trained()[1]
    again = Ensemble.from_json(json.loads(json.dumps(network.to_json())))
    np.testing.assert_array_equal(again.predict(INPUTS), network.predict(INPUTS))


def test_a_prediction_does_not_depend_on_the_rows_beside_it() -> None:
    network = trained()[1]
    together = network.predict(INPUTS)
    alone = [network.predict(INPUTS[i : i + 1])[0] for i in range(len(INPUTS))]
    np.testing.assert_array_equal(together, alone)


def test_the_mean_of_the_networks_counts() -> None:
    one = trained()[1]
    (network,) = one.networks
    other = NeuralNetwork.of([-w for w in network.weights], network.biases)
    both = Ensemble.of(one.mean, one.deviation, [network, other])
    alone = Ensemble.of(one.mean, one.deviation, [other])
    expected = (one.predict(INPUTS) + alone.predict(INPUTS)) / 2
    np.testing.assert_allclose(both.predict(INPUTS), expected)


def test_far_inputs_are_cut() -> None:
    network = trained()[1]
    far, farther = np.full((1, 5), 1e4, np.float32), np.full((1, 5), 3e38, np.float32)
    assert network.predict(far) == network.predict(farther)


@pytest.mark.parametrize(
    "damage",
    [
        {"networks": [{"weights": ["AAAA"], "biases": []}]},
        {"deviation": "AAAA"},
        {"mean": "no base64"},
        {"widths": "wide"},
        {"networks": []},
        {"widths": [16, 8, 2]},
    ],
)
def test_what_is_no_network_is_refused(damage: dict[str, object]) -> None:
    saved = {**trained()[1].to_json(), **damage}
    with pytest.raises(ValueError, match=r".+"):
        Ensemble.from_json(saved)
