"""What a search tells on `logging`'s channel `tilesmith.tuner` at the level DEBUG, by rounds."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from tilesmith.tuner.tasks.task import Trial, TuningState

_LOG = logging.getLogger("tilesmith.tuner")


def told_of_round(state: TuningState, trials: Sequence[Trial]) -> None:
    """Tell of results that were just committed, and where the task stands."""
    if not _LOG.isEnabledFor(logging.DEBUG):
        return
    ends = Counter(trial.result.status for trial in trials)
    shown = ", ".join(f"{count} {status}" for status, count in sorted(ends.items()))
    best = "nothing works yet" if state.best is None else f"best {state.best[1] * 1e6:.3f} us"
    _LOG.debug("%s: trials %s; %s", state.task.workload, shown, best)
    for trial in trials:
        if not trial.result.ok:
            first = trial.result.message.partition("\n")[0]
            _LOG.debug("%s: %s: %s", trial.config, trial.result.status, first)
