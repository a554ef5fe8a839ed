"""What a new version or another database made slower, beyond what noise explains.

Two bests of one workload, machine and thread count, measured in one way, are compared by their
samples: the medians' standard errors (by median absolute deviation, on logarithms) say how far
apart chance can bring them. A *regression* is slower by more than `SIGMAS` of both errors together
and by more than a near-tie; else it is noise. One sample tells no spread: then the near-tie alone
decides, as it does for simulators, which repeat.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tilesmith.records.questions.bests import NEAR_TIE
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.tuner.measurement.timing import uncertainty

if TYPE_CHECKING:
    from tilesmith.records import Best
    from tilesmith.records.upkeep.merging import Difference

SIGMAS = 3.0
"""Standard errors beyond which two medians are apart: chance does that once in 370."""

Verdict = Literal["slower", "faster", "noise", "gone", "other way"]


@dataclass(frozen=True)
class BeforeAndAfter(
    JsonObject,
    keys="workload target threads verdict ratio noise before_us:before_s after_us:after_s "
    "measured_by:_way same_schedule",
):
    """The bests of one workload before and after.

    Attributes:
        before, after: None: nothing that works is on record.
    """

    workload: str
    target: str
    threads: int
    before: "Best | None"
    after: "Best | None"

    @property
    def ratio(self) -> float | None:
        """How many times as long it takes after as before."""
        if self.before is None or self.after is None:
            return None
        return self.after.latency / self.before.latency

    @property
    def noise(self) -> float:
        """The ratio up to which they are the same."""
        if self.before is None or self.after is None:
            return 1.0
        errors = [_error(best) for best in (self.before, self.after)]
        tie = NEAR_TIE[self.after.record.result.measured_by]
        return math.exp(max(math.log1p(tie), SIGMAS * math.hypot(*errors)))

    @property
    def verdict(self) -> Verdict:
        """`gone`: it has no best after; `other way`: they were not measured in the same way."""
        if self.before is None or self.after is None:
            return "gone" if self.after is None else "faster"
        if self._way != self.before.record.result.measured_by:
            return "other way"
        ratio = self.after.latency / self.before.latency
        if max(ratio, 1 / ratio) <= self.noise:
            return "noise"
        return "slower" if ratio > 1 else "faster"

    @property
    def same_schedule(self) -> bool:
        """Whether both run one configuration: then code or machine changed, not the search."""
        if self.before is None or self.after is None:
            return False
        return self.before.record.config == self.after.record.config

    @property
    def _way(self) -> str:
        best = self.after or self.before
        return "" if best is None else best.record.result.measured_by

    @property
    def before_s(self) -> float | None:
        """Median seconds before; None for nothing."""
        return None if self.before is None else self.before.latency

    @property
    def after_s(self) -> float | None:
        """Median seconds after; None for nothing."""
        return None if self.after is None else self.after.latency


def compared(differences: "Iterable[Difference]") -> list[BeforeAndAfter]:
    """What was on record before, beside what is after, the slowed first."""
    pairs = [
        BeforeAndAfter(one.workload, one.target, one.threads, one.ours, one.theirs)
        for one in differences
        if one.ours is not None
    ]
    return sorted(pairs, key=lambda pair: (-(pair.ratio or 0.0), pair.workload, pair.target))


def slowed(pairs: Sequence[BeforeAndAfter]) -> list[BeforeAndAfter]:
    """Those that are slower beyond noise."""
    return [pair for pair in pairs if pair.verdict == "slower"]


def _error(best: "Best") -> float:
    """Standard error of the logarithm of a best's median."""
    samples = [math.log(sample) for sample in best.record.result.samples if sample > 0]
    return uncertainty(samples) if samples else 0.0
