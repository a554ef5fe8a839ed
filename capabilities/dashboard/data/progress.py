"""What a job tells of itself in `jobs.progress`, read with care: anything may stand there."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilesmith.search_space.results.gain import gain_of


@dataclass(frozen=True)
class JobProgress:
    """What a job last told; None where it did not, or not in numbers.

    Attributes:
        measured_by: the way of measuring at work, "" if unknown.
        trials, limit: spent and allowed by this way of measuring.
        rate: trials a second, lately.
        left_s: seconds to its estimated end.
        gain: the untuned model's latency over the tuned one's: sums over its tasks, weighted.
        weights: how often the model runs each workload.
    """

    measured_by: str = ""
    trials: int | None = None
    limit: int | None = None
    rate: float | None = None
    left_s: float | None = None
    gain: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, progress: object) -> "JobProgress":
        """From the JSON of the database."""
        if not isinstance(progress, Mapping):
            return cls()
        entries = progress.get("tasks")
        tasks = [t for t in entries if isinstance(t, Mapping)] if isinstance(entries, list) else []
        trials, limit = _number(progress, "trials"), _number(progress, "trials_limit")
        return cls(
            str(progress.get("measured_by") or "")[:20],
            None if trials is None else int(trials),
            int(limit) if limit else None,
            _number(progress, "trials_per_s"),
            _number(progress, "left_s"),
            _gain(tasks),
            {str(task.get("workload")): w for task in tasks if (w := _number(task, "weight"))},
        )


def _gain(tasks: list[Mapping[str, Any]]) -> float | None:
    """Over the tasks whose default and best are both known."""
    gain = gain_of(
        (_number(t, "weight") or 1.0, _number(t, "default_us"), _number(t, "best_us"))
        for t in tasks
    )
    return None if gain is None else gain.times


def _number(entry: Mapping[str, Any], name: str) -> float | None:
    """A number that is finite, not negative and of a size that means something."""
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < 1e15 else None
