"""Several databases compared: what each holds best, and whose schedule won in a merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilesmith.records.exchange.json_lines import ImportReport
from tilesmith.records.trials.record import Best


@dataclass(frozen=True)
class Difference:
    """What two databases hold best for one workload, target and thread count.

    Attributes:
        ours, theirs: None where a database has nothing that works.
    """

    workload: str
    target: str
    threads: int
    ours: Best | None
    theirs: Best | None

    @property
    def ratio(self) -> float | None:
        """Their latency over ours: above one, ours is the faster; None where one has none."""
        if self.ours is None or self.theirs is None:
            return None
        return self.theirs.latency / self.ours.latency

    @property
    def comparable(self) -> bool:
        """Whether both were measured in the same way."""
        if self.ours is None or self.theirs is None:
            return False
        ours, theirs = self.ours.record.result, self.theirs.record.result
        return ours.measured_by == theirs.measured_by


def diff(ours: Iterable[Best], theirs: Iterable[Best]) -> list[Difference]:
    """Every subject of either overview, the most different first, equal ones last."""
    left, right = ({_subject(best): best for best in bests} for bests in (ours, theirs))
    differences = [
        Difference(*key, left.get(key), right.get(key)) for key in left.keys() | right.keys()
    ]
    return sorted(differences, key=_order)


def _subject(best: Best) -> tuple[str, str, int]:
    return best.record.workload_key, best.record.target_identity, best.record.threads


def _order(difference: Difference) -> tuple[float, str, str, int]:
    ratio = difference.ratio
    far = math.inf if ratio is None else abs(math.log(ratio))
    return -far, difference.workload, difference.target, difference.threads


@dataclass(frozen=True)
class MergeStanding:
    """What a merge made of one workload, target and thread count.

    Attributes:
        best: the best after the merge.
        winner: the database whose best it is: the one merged into ("" in its place) where it was
            there before, else the first by name; None where it was nobody's best (what was best
            alone was overruled by what another one says of it).
        before: the best of the database merged into, None if it had none.
        theirs: the best of each source that has one, by name.
    """

    workload: str
    target: str
    threads: int
    best: Best
    winner: str | None
    before: Best | None
    theirs: Mapping[str, Best]

    @property
    def gain(self) -> float | None:
        """How many times as fast as before; None without a before measured in the same way."""
        return self.over(self.before)

    def over(self, other: Best | None) -> float | None:
        """How many times as fast as another best; None where they cannot be compared."""
        if other is None:
            return None
        ways = {best.record.result.measured_by for best in (self.best, other)}
        return other.latency / self.best.latency if len(ways) == 1 else None


@dataclass(frozen=True)
class MergeReport:
    """What a merge of several databases did.

    Attributes:
        sources: what became of the trials of each, by name.
        standings: whose schedule is best now, the greatest gain first.
    """

    sources: Mapping[str, ImportReport]
    standings: tuple[MergeStanding, ...]

    def wins(self) -> dict[str, int]:
        """Of how many workloads each source holds what is best now and was not here before."""
        won = [s.winner for s in self.standings if s.winner]
        return {name: won.count(name) for name in self.sources}


def standings(
    after: Iterable[Best], before: Iterable[Best], theirs: Mapping[str, Iterable[Best]]
) -> tuple[MergeStanding, ...]:
    """Who holds what is best now, of what each held before."""
    own = {_subject(best): best for best in before}
    others = {name: {_subject(b): b for b in bests} for name, bests in sorted(theirs.items())}
    outcomes = []
    for best in after:
        key = _subject(best)
        asked = {name: bests[key] for name, bests in others.items() if key in bests}
        held = {"": own[key], **asked} if key in own else asked
        winner = next((name for name, other in held.items() if _alike(best, other)), None)
        outcomes.append(MergeStanding(*key, best, winner, own.get(key), asked))
    return tuple(sorted(outcomes, key=_by_gain))


def _alike(one: Best, other: Best) -> bool:
    return (one.record.config, one.latency) == (other.record.config, other.latency)


def _by_gain(standing: MergeStanding) -> tuple[float, str, str, int]:
    new = math.inf if standing.before is None else 0.0
    return -(standing.gain or new), standing.workload, standing.target, standing.threads
