"""From operators added up to whole models: a correction learnt from the designs that were played.

In a whole program kernels hide each other's latencies and tensors stay on chip, so it is faster
than its operators added up, and by how much depends on the design. The logarithm of that ratio is
fitted by ridge regression, linear in the logarithm of each varied number to its base's, with one
slope below the base and one above: designs where one number is least or greatest, which are played
first, settle them.

Invariants: deterministic; a design that was played keeps its own latency; the base's ratio, if it
was played, is met by all slopes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STRENGTH = 0.01
"""Of the penalty on slopes: little, since each is settled by few designs, and some by one."""


def corrected(numbers: Floats, added_us: Floats, played_us: Mapping[int, float]) -> Floats:
    """Latency of a model on every design, us, shape (designs,): as played, or as estimated.

    Args:
        numbers: the varied numbers of every design, positive, shape (designs, variations); the
            base's first.
        added_us: operators added up, shape (designs,); NaN where something does not fit.
        played_us: latency on the timeline, by design.
    """
    known = np.array([n for n in sorted(played_us) if np.isfinite(added_us[n])], dtype=np.int64)
    latency = added_us.copy()
    if len(known):
        ratios = np.log([played_us[int(n)] / added_us[n] for n in known])
        latency = added_us * np.exp(_fitted(_slopes(numbers), known, ratios))
    for number, played in played_us.items():
        latency[number] = played
    return latency


def _slopes(numbers: Floats) -> Floats:
    distance = np.log(numbers / numbers[0])
    return np.column_stack([np.minimum(distance, 0.0), np.maximum(distance, 0.0)])


def _fitted(table: Floats, known: NDArray[np.int64], ratios: Floats) -> Floats:
    from sklearn.linear_model import Ridge

    base = ratios[0] if known[0] == 0 else ratios.mean()
    fit = Ridge(STRENGTH, fit_intercept=False).fit(table[known], ratios - base)
    return np.asarray(fit.predict(table) + base)
