"""How much a measurement of a candidate promises: expected improvement, in logarithms.

EI(x) = s (z Phi(z) + phi(z)), z = (incumbent - mean) / s (Jones, Schonlau and Welch, 1998), for
scores to be minimised. Its logarithm is used because EI itself underflows a few deviations above
the incumbent, where candidates would no longer be told apart (Ament et al., 2023).
"""

from __future__ import annotations

import numpy as np

from tuner.cost_model import Floats

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
