"""Jobs that run at the same time do not measure the same twice.

Before a batch is measured the ledger is asked what other jobs measured of it since this one began.
Those results are taken as this job's own: they count as its trials and are learnt from, and no
second row is written for them. A job that runs alone is never answered, so that its trials follow
from its seed; two jobs that have a configuration under way at the same moment both measure it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.tuner.measurement.runner import Begun, Candidate, Runner
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.ledger import Ledger


@dataclass(frozen=True, eq=False)
class _PartlyKnown(Begun):
    """A batch of which other jobs measured some.

    Attributes:
        known: their results.
        rest: what the runner was told to measure, None if nothing is left.
    """

    known: Mapping[Candidate, MeasureResult]
    rest: Begun | None


class SharedMeasuring:
    """A runner's `begin`, `finish` and `abandon`, for what no other job has measured."""

    def __init__(self, runner: Runner, ledger: Ledger) -> None:
        self._runner = runner
        self._ledger = ledger

    def begin(self, batch: Sequence[Candidate], cancel: CancelToken | None = None) -> Begun:
        known = self._ledger.meanwhile(batch, self._runner.measured_by)
        if not known:
            return self._runner.begin(batch, cancel)
        rest = [candidate for candidate in batch if candidate not in known]
        begun = self._runner.begin(rest, cancel) if rest else None
        return _PartlyKnown(tuple(batch), known, begun)

    def finish(
        self, begun: Begun, cancel: CancelToken | None = None, deadline: float | None = None
    ) -> list[MeasureResult]:
        if not isinstance(begun, _PartlyKnown):
            return self._runner.finish(begun, cancel, deadline)
        rest = [] if begun.rest is None else self._runner.finish(begun.rest, cancel, deadline)
        measured, results = iter(rest), []
        for candidate in begun.batch:
            result = begun.known.get(candidate) or next(measured, None)
            if result is None:
                break
            results.append(result)
        return results

    def abandon(self, begun: Begun) -> None:
        rest = begun.rest if isinstance(begun, _PartlyKnown) else begun
        if rest is not None:
            self._runner.abandon(rest)
