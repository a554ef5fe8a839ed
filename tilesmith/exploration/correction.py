"""From operators added up to whole models: a correction learnt from the designs that were played.

In a whole program kernels hide each other's latencies and tensors stay on chip, so it is faster
than its operators added up, and by how much depends on the design. The logarithm of that ratio is
fitted as linear in the logarithms of the varied numbers and of the sum itself (ridge regression,
its strength chosen by leaving one out), on the few designs that the timeline has played.

Invariants: deterministic; a design that was played keeps its own latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STRENGTHS = (0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Corrected:
    """A model on every design.

    Attributes:
        latency_us: shape (designs,); those played as played, the others as estimated.
        error: median of the relative errors at designs played, each left out of the fit; NaN where
            too few were.
    """

    latency_us: Floats
    error: float


def corrected(numbers: Floats, added_us: Floats, played_us: Mapping[int, float]) -> Corrected:
    """Estimate whole models.

    Args:
        numbers: the varied numbers of every design, positive, shape (designs, variations).
        added_us: operators added up, shape (designs,); NaN where something does not fit.
        played_us: latency on the timeline, by design.
    """
    known = np.array([n for n in sorted(played_us) if np.isfinite(added_us[n])], dtype=np.int64)
    if not len(known):
        return Corrected(added_us, float("nan"))
    ratios = np.log([played_us[int(n)] / added_us[n] for n in known])
    table = _table(numbers, added_us)
    if len(known) < 4:
        found, error = np.full(len(table), ratios.mean()), float("nan")
    else:
        found, error = _fitted(table, known, ratios)
    latency = added_us * np.exp(found)
    for number, played in played_us.items():
        latency[number] = played
    return Corrected(latency, error)


def _table(numbers: Floats, added_us: Floats) -> Floats:
    columns = np.column_stack([np.log(numbers), np.log(np.where(np.isnan(added_us), 1, added_us))])
    scale = columns.std(axis=0)
    return np.asarray((columns - columns.mean(axis=0)) / np.where(scale > 0, scale, 1.0))


def _fitted(table: Floats, known: NDArray[np.int64], ratios: Floats) -> tuple[Floats, float]:
    from sklearn.linear_model import Ridge, RidgeCV

    rows = table[known]
    strength = float(RidgeCV(STRENGTHS).fit(rows, ratios).alpha_)
    errors = []
    for place in range(len(known)):
        rest = np.arange(len(known)) != place
        guess = Ridge(strength).fit(rows[rest], ratios[rest]).predict(rows[place : place + 1])
        errors.append(abs(float(np.exp(guess[0] - ratios[place])) - 1.0))
    found = Ridge(strength).fit(rows, ratios).predict(table)
    return np.asarray(found), float(np.median(errors))
