"""How much a measurement of a candidate promises: expected improvement, in logarithms.

EI(x) = s (z Phi(z) + phi(z)), z = (incumbent - mean) / s (Jones, Schonlau and Welch, 1998), for
scores to be minimised. Its logarithm is used because EI itself underflows a few deviations above
the incumbent, where candidates would no longer be told apart (Ament et al., 2023).
"""

import numpy as np

from tilesmith.tuner.surrogates.cost_model import Floats, Joint

_FAR = -6.0
"""Below this z the asymptotic form is used: log(phi(z) / z^2)."""


def log_expected_improvement(mean: Floats, deviation: Floats, incumbent: float) -> Floats:
    """Logarithm of the expected improvement over `incumbent`, shape (n,); higher is better.

    Args:
        mean, deviation: of the scores, shape (n,), lower scores are better.
        incumbent: the best score so far.
    """
    from scipy.special import ndtr

    spread = np.maximum(deviation, 1e-9)
    z = (incumbent - mean) / spread
    density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    near = np.log(np.maximum(z * ndtr(z) + density, 1e-300))
    far = -0.5 * z * z - 0.5 * np.log(2 * np.pi) - 2.0 * np.log(np.maximum(-z, 1.0))
    return np.asarray(np.log(spread) + np.where(z > _FAR, near, far))


def batch_by_improvement(joint: Joint, incumbent: float, count: int, greedy: int) -> list[int]:
    """Numbers of the samples to measure together, best first.

    Picks one by one: after each pick its own score is taken for its result (the "kriging
    believer", Ginsbourger et al., 2010), which leaves no doubt of its likes, so that a batch
    spreads over what is promising in different ways. Every `greedy`-th pick is the best score
    among those of which doubt is left.

    Args:
        incumbent: the best score so far.
        count: samples wanted; all are given where there are fewer.
    """
    variance = np.maximum(joint.deviation, 1e-9) ** 2
    before = variance.copy()
    left = np.ones(len(variance), np.bool_)
    updates: list[Floats] = []
    picked: list[int] = []
    while len(picked) < min(count, len(variance)):
        if len(picked) % greedy == greedy - 1:
            fresh = left & (variance > 0.25 * before)
            worth = np.where(fresh if fresh.any() else left, -joint.mean, -np.inf)
        else:
            gain = log_expected_improvement(joint.mean, np.sqrt(variance), incumbent)
            worth = np.where(left, gain, -np.inf)
        chosen = int(np.argmax(worth))
        picked.append(chosen)
        left[chosen] = False
        incumbent = min(incumbent, float(joint.mean[chosen]))
        shared = joint.covariance(chosen)
        for update in updates:
            shared = shared - update[chosen] * update
        update = shared / np.sqrt(max(float(shared[chosen]), 1e-12))
        updates.append(update)
        variance = np.maximum(variance - update**2, 1e-18)
    return picked
