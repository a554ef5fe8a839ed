"""Bayesian optimisation: a Gaussian process over the knobs, expected improvement.

The process (Matern 5/2 kernel with noise, scikit-learn) is fitted to the logarithms of the
latencies of up to `_MOST` measurements: the best half and the latest. Candidates are neighbours of
the best measured configurations and random ones; a batch is built by the "constant liar": after
each pick the process is told that the pick came out as its mean predicts, so that a batch spreads
out. Expected improvement: EI(x) = s (z Phi(z) + phi(z)), z = (best - mean) / s (Jones et al.,
1998).
"""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.population import Breeder
from tilesmith.tuner.surrogates.knob_features import BareKnobs
from tilesmith.tuner.tasks.strategy import Strategy, new_random, strategies
from tilesmith.tuner.tasks.task import TuningState

_FIRST = 12
_MOST = 200
_CANDIDATES = 512
_REFITS_IN_BATCH = 4


@strategies.register("bayesian")
class Bayesian(Strategy):
    """See the module's docstring. Stateless: the process is fitted anew for each batch."""

    guided = False

    def propose(self, state: TuningState, count: int) -> list[Config]:
        if not count or state.exhausted:
            return []
        ranked = state.ranked()
        if len(ranked) < _FIRST:
            seeds = [c for c in (state.default, *state.seeds) if c in state.space]
            first = [c for c in dict.fromkeys(seeds) if state.is_new(c)][: count // 2]
            return first + new_random(state, count - len(first), taken=first)
        breeder = state.space.breeder
        candidates = self._candidates(state, breeder, [config for config, _ in ranked])
        knobs = BareKnobs.of(state.space)
        picked = _pick(knobs, _training(state), candidates, count, state.rng)
        return picked + new_random(state, count - len(picked), taken=picked)

    def _candidates(
        self, state: TuningState, breeder: Breeder, ranked: list[Config]
    ) -> list[Config]:
        parents = breeder.encode(ranked[:16])
        pool = breeder.sample(state.rng, _CANDIDATES // 4, balanced=True)
        while len(parents) and len(pool) < _CANDIDATES:
            chosen = state.rng.integers(0, len(parents), _CANDIDATES // 4)
            pool = pool.joined(breeder.mutate(parents.take(chosen), state.rng))
        return [c for c in dict.fromkeys(breeder.decode(pool)) if state.is_new(c)]


def _training(state: TuningState) -> list[tuple[Config, float]]:
    """Configurations and log latencies to fit to: the best half, then the latest."""
    ranked = state.ranked()
    latency = dict(ranked)
    latest = [config for config in reversed(state.results) if config in latency]
    chosen = dict.fromkeys([c for c, _ in ranked[: _MOST // 2]] + latest)
    return [(c, float(np.log(latency[c]))) for c in list(chosen)[:_MOST] if c in state.space]


def _pick(
    knobs: BareKnobs,
    training: list[tuple[Config, float]],
    candidates: list[Config],
    count: int,
    rng: np.random.Generator,
) -> list[Config]:
    """Up to `count` candidates by expected improvement."""
    if not candidates:
        return []
    inputs = knobs.rows([c for c, _ in training]).astype(np.float64)
    targets = np.array([t for _, t in training])
    pool = knobs.rows(candidates).astype(np.float64)
    scale = np.maximum(np.ptp(np.concatenate([inputs, pool]), axis=0), 1e-9)
    inputs, pool = inputs / scale, pool / scale
    process = _process(len(targets), int(rng.integers(1 << 31)))
    left = np.arange(len(candidates))
    picked: list[int] = []
    chunk = max(1, -(-count // _REFITS_IN_BATCH))
    while len(picked) < count and len(left):
        _fit(process, inputs, targets)
        mean, deviation = process.predict(pool[left], return_std=True)
        gain = _expected_improvement(mean, deviation, float(targets.min()))
        best = np.argsort(-gain, kind="stable")[: min(chunk, count - len(picked))]
        picked += left[best].tolist()
        inputs = np.concatenate([inputs, pool[left[best]]])
        targets = np.concatenate([targets, mean[best]])
        left = np.delete(left, best)
        process.optimizer = None
    return [candidates[i] for i in picked]


def _process(count: int, seed: int) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel(1.0) * Matern(length_scale=1.0, nu=2.5) + WhiteKernel(0.05)
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)


def _fit(process: Any, inputs: NDArray[np.float64], targets: NDArray[np.float64]) -> None:
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(inputs, targets)
    if process.optimizer is not None:
        process.kernel = process.kernel_


def _expected_improvement(
    mean: NDArray[np.float64], deviation: NDArray[np.float64], best: float
) -> NDArray[np.float64]:
    from scipy.special import ndtr

    spread = np.maximum(deviation, 1e-9)
    z = (best - mean) / spread
    density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return np.asarray(spread * (z * ndtr(z) + density))
