"""`Gain`: what tuning gained. This is the one definition of it.

The gain of a workload is its default's latency over that of its best on record, both measured alone
and in the same way. The default is a candidate like any other, so that no gain is below one: a best
that ties with it (`bests.NEAR_TIE`) gains nothing. The gain of several workloads is that of their
sums, each as often as the model runs it, over those whose two latencies are known. What schedules
gain inside the whole model is another measurement, of the model, and always called so.
"""

from collections.abc import Iterable
from dataclasses import dataclass

Part = tuple[float, float | None, float | None]
"""How often a model runs a workload, seconds of its default, and of its best; None: not known."""


@dataclass(frozen=True)
class Gain:
    """What tuning gained. See the module's docstring.

    Attributes:
        default_s, best_s: sums over the workloads of which both are known, weighted, in seconds.
        missing: workloads that are left out.
    """

    default_s: float
    best_s: float
    missing: int = 0

    @property
    def times(self) -> float:
        """How many times as fast."""
        return self.default_s / self.best_s

    @property
    def seconds(self) -> float:
        """What a run of the model gains."""
        return self.default_s - self.best_s


def gain_of(parts: Iterable[Part]) -> Gain | None:
    """The gain of some workloads, measured in one way; None where nothing is known."""
    default = best = 0.0
    missing = 0
    for weight, default_s, best_s in parts:
        if default_s and best_s:
            default, best = default + weight * default_s, best + weight * min(default_s, best_s)
        else:
            missing += 1
    return Gain(default, best, missing) if best > 0 else None


def times_of(default_s: float | None, best_s: float | None) -> float | None:
    """How many times as fast a workload's best is; None where that is not known."""
    gain = gain_of([(1.0, default_s, best_s)])
    return None if gain is None else gain.times
