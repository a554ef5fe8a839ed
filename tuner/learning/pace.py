"""`PaceLog`: what a cost model learns while the machine changes its pace.

A runner looks at a baseline kernel now and then. Between two looks that differ by more than
`DRIFT_LIMIT` everything took longer, or less long, by a factor that is known at both ends only, so
latencies measured in between are divided by its geometric mean, and those measured afterwards by
what the last look saw. The records keep what was measured; only what is learned is put right.

Invariants: a pace within `DRIFT_LIMIT` of the one in force changes nothing; `looks` and the trials
in their order give the same corrections again, which is how a resumed job finds them.
"""

import math

from tilesmith.tuner.learning.predictor import Predictor
from tilesmith.tuner.measurement.runner import Runner
from tilesmith.tuner.tasks.options import DRIFT_LIMIT


class PaceLog:
    """See the module's docstring.

    Attributes:
        now: the pace in force: how much longer everything takes than at first.
        looks: (trials remembered at the look before, trials remembered, pace) of each look that
            found another pace.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._counted = 0
        self._since = 0
        self.now = 1.0
        self.looks: list[tuple[int, int, float]] = []

    def follow(self, runner: Runner) -> None:
        """Take in what a runner saw if it looked since the last call."""
        if runner.looks == self._counted:
            return
        self._counted = runner.looks
        if abs(runner.pace / self.now - 1) > DRIFT_LIMIT:
            self._change(self._since, runner.pace)
        self._since = self._predictor.seen

    def replay(self, looks: list[tuple[int, int, float]]) -> None:
        """Apply again the saved `looks` taken up to the present number of trials."""
        while looks and looks[0][1] <= self._predictor.seen:
            since, _, pace = looks.pop(0)
            self._change(since, pace)
            self._since = self._predictor.seen

    def restart(self) -> None:
        """A new runner has a baseline of its own: what it measures first is at pace 1."""
        if self.now != 1.0:
            self._change(self._predictor.seen, 1.0)

    def _change(self, since: int, pace: float) -> None:
        """Another pace, found now; how it was since the look before is in between."""
        seen = self._predictor.seen
        self._predictor.repace(seen - since, math.sqrt(pace / self.now))
        self.now = pace
        self.looks.append((since, seen, pace))
