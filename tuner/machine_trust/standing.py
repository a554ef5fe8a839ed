"""`Standing`: which machines of one identity can be believed, by a control kernel all of them run.

Beside its trials every machine times the same kernel. Four questions are asked of each reading, and
`Evidence` says when the answers are no chance any more:

- slow, fast: is it above (below) the middle of the newest readings of its peers by more than
  `TOLERANCE`? Of two machines that disagree the slower is doubted: a machine is held up by many
  things, and hurried by none but its clock, which is watched elsewhere.
- drift: is it above its own past by more than `DRIFT`? That is what a machine alone has.
- scatter: does it differ from the reading before by more than four times what a peer's does, or,
  alone, by more than `SCATTER`?

Every reading is compared with readings that this machine's question has not seen, so that of
machines alike it is as likely to be above as below, whatever the distribution of the noise: nothing
about it is assumed or estimated. Invariants: a machine that was set aside is nobody's peer; the
same readings in the same order give the same verdicts.

`Evidence`: whether something happens more often than by chance, watched for as long as wanted.

A machine is doubted by yes-or-no questions, each asked of fresh readings and so put that an honest
machine says yes at most half of the time, whatever the noise: was this reading above the middle of
its peers' by more than the tolerance? Against that one bets (a test martingale: Shafer and Vovk,
Game-Theoretic Foundations for Probability and Finance, 2019): a share of the capital on every yes,
starting again from 1 whenever capital is below that, as CUSUM does (Page, Biometrika 1954). Several
shares are played at once, since nobody knows how big a lie is, and their mean counts.

Guarantee: while every answer is yes with a chance of at most 1/2 given the ones before, the chance
that `LIMIT` is reached within n answers is at most n / LIMIT. For what is kept here is at most the
sum of the capital over all beginnings, which grows by at most 1 an answer in the mean, so that
Markov's inequality holds of it where it is stopped (e-detectors: Shin, Ramdas and Rinaldo, New
England Journal of Statistics in Data Science 2023).
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tilesmith.tuner.tasks.options import DRIFT_LIMIT

LIMIT = 1e7
"""Capital at which chance is no explanation: of an honest machine's answers at most one in ten
million, on average, reaches it."""
_SHARES = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)


class Evidence:
    """See the module's docstring.

    Attributes:
        since: answers since the capital of the share that leads last began anew: where what it
            speaks of began, most likely.
    """

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._capital = [1.0] * len(_SHARES)
        self._since = [0] * len(_SHARES)

    @property
    def capital(self) -> float:
        """The mean over all shares."""
        return sum(self._capital) / len(_SHARES)

    @property
    def convincing(self) -> bool:
        """Whether chance is no explanation any more."""
        return self.capital >= self._limit

    @property
    def since(self) -> int:
        leading = max(range(len(_SHARES)), key=self._capital.__getitem__)
        return self._since[leading]

    def answer(self, yes: bool) -> None:
        """One more answer to the question."""
        for place, share in enumerate(_SHARES):
            if self._capital[place] <= 1.0:
                self._capital[place], self._since[place] = 1.0, 0
            self._capital[place] *= 1 + share if yes else 1 - share
            self._since[place] += 1


TOLERANCE = DRIFT_LIMIT
"""Relative difference from its peers that an honest machine may have."""
DRIFT = 0.10
"""Relative change from its own past that one may have."""
SCATTER = 0.30
"""Relative difference between two readings that a machine alone may have, half of the time."""
_WIDER, _FLOOR = 4.0, 0.05
_PEERS = 8
"""Peers that a machine is compared with at most: the cost of a reading does not grow with them."""
_PAST = 30
"""First readings that are a machine's past."""
_NEWEST = 64
"""Readings kept of each machine."""

Lie = Literal["slow", "fast", "drift", "scatter", "clock"]


@dataclass(frozen=True)
class Doubt:
    """Why a machine is set aside.

    Attributes:
        name: the machine's, or the worker's on it.
        lie: which question convicted it.
        since: how many of its last readings speak against it: what it measured beside these is
            doubtful, and was good before.
        reason: a sentence for people, to follow the name.
    """

    name: str
    lie: Lie
    since: int
    reason: str


@dataclass
class _Record:
    """One machine's readings (logarithms of seconds) and what is held against it."""

    number: int
    limit: float
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=_NEWEST))
    past: list[float] = field(default_factory=list)
    count: int = 0
    heard: dict[str, int] = field(default_factory=dict)
    """Of each peer, how many readings had come when one was compared with last."""
    spread: float | None = None
    """Difference of the last two readings."""

    def __post_init__(self) -> None:
        self.evidence = {
            "slow": Evidence(self.limit),
            "fast": Evidence(self.limit),
            "drift": Evidence(self.limit),
            "scatter": Evidence(self.limit),
        }

    def level(self, count: int) -> float:
        """The middle of the last few readings."""
        return statistics.median(list(self.newest)[-max(1, count) :])


class Standing:
    """See the module's docstring; one for each identity (and control kernel)."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._records: dict[str, _Record] = {}
        self._ring: list[str] = []
        """All machines; a record's `number` is its place."""
        self.aside: dict[str, Doubt] = {}
        """Machines that were set aside, and why."""

    @property
    def believed(self) -> list[str]:
        """Machines in good standing, in the order they were first heard of."""
        return [name for name in self._records if name not in self.aside]

    def join(self, name: str) -> None:
        """A machine, before its first reading; nothing if it is known."""
        if name not in self._records:
            self._records[name] = _Record(len(self._records), self._limit)
            self._ring.append(name)

    def leave(self, name: str) -> None:
        """A machine that is gone is compared with no more; what speaks against it is kept."""
        record = self._records.get(name)
        if record is not None:
            record.newest.clear()

    def pace(self, name: str) -> float | None:
        """How long the control kernel takes there, relative to its peers' middle; None if that is
        not known."""
        mine = self._records.get(name)
        others = [self._records[peer].level(_NEWEST) for peer in self._peers(name)]
        if mine is None or not mine.newest or not others:
            return None
        return math.exp(mine.level(_NEWEST) - statistics.median(others))

    def read(self, name: str, seconds: float) -> Doubt | None:
        """Add a machine's reading in seconds; return its doubt once the machine is not believed."""
        if name in self.aside or not (0 < seconds < math.inf):
            return self.aside.get(name)
        self.join(name)
        mine, value = self._records[name], math.log(seconds)
        self._ask(mine, name, value)
        if len(mine.past) < _PAST:
            mine.past.append(value)
        mine.newest.append(value)
        mine.count += 1
        return self._verdict(name, mine)

    def set_aside(self, name: str, reason: str, lie: Lie = "clock") -> Doubt:
        """Set a machine aside for a given reason; what it measured lately becomes doubtful."""
        self.join(name)
        return self.aside.setdefault(name, Doubt(name, lie, self._records[name].count, reason))

    # -- questions --------------------------------------------------------------------------------
    def _ask(self, mine: _Record, name: str, value: float) -> None:
        fresh = self._fresh(mine, name)
        readings = sorted(peer.newest[-1] for peer in fresh)
        if readings:
            middle = len(readings) // 2
            slower = value > readings[middle] + math.log1p(TOLERANCE)
            mine.evidence["slow"].answer(slower)
        if len(readings) > 1:
            middle = (len(readings) - 1) // 2
            faster = value < readings[middle] - math.log1p(TOLERANCE)
            mine.evidence["fast"].answer(faster)
        if len(mine.past) == _PAST:
            before = mine.past[mine.count % _PAST]
            mine.evidence["drift"].answer(value > before + math.log1p(DRIFT))
        if mine.newest and mine.count % 2:  # pairs of readings that do not overlap
            mine.spread = abs(value - mine.newest[-1])
            spreads = [peer.spread for peer in fresh if peer.spread is not None]
            limit = max(_FLOOR, _WIDER * statistics.median(spreads)) if spreads else SCATTER
            mine.evidence["scatter"].answer(mine.spread > limit)

    def _fresh(self, mine: _Record, name: str) -> list[_Record]:
        """Peers that have a reading which this machine was not compared with yet."""
        peers = []
        for other in self._peers(name):
            peer = self._records[other]
            if peer.count > mine.heard.get(other, 0):
                mine.heard[other] = peer.count
                peers.append(peer)
        return peers

    def _peers(self, name: str) -> list[str]:
        """The next few in a ring of those that are believed and have been heard."""
        mine = self._records.get(name)
        if mine is None or name in self.aside:
            return []
        peers: list[str] = []
        for step in range(1, len(self._ring)):
            other = self._ring[(mine.number + step) % len(self._ring)]
            if other not in self.aside and self._records[other].newest:
                peers.append(other)
                if len(peers) == _PEERS:
                    break
        return peers

    # -- verdicts ---------------------------------------------------------------------------------
    def _verdict(self, name: str, mine: _Record) -> Doubt | None:
        for lie, evidence in mine.evidence.items():
            if not evidence.convincing:
                continue
            since = min(mine.count, evidence.since * (2 if lie == "scatter" else 1))
            if lie == "fast" and self._others_slowed(name, mine, since):
                mine.evidence["fast"] = Evidence(self._limit)
                continue
            doubt = Doubt(name, lie, since, self._reason(name, mine, lie, since))  # type: ignore[arg-type]
            self.aside[name] = doubt
            return doubt
        return None

    def _others_slowed(self, name: str, mine: _Record, since: int) -> bool:
        """Whether a machine is ahead because its peers fell behind their own past."""
        unmoved = abs(mine.level(since) - statistics.median(mine.past)) <= math.log1p(TOLERANCE)
        peers = [self._records[other] for other in self._peers(name)]
        moves = [peer.level(since) - statistics.median(peer.past) for peer in peers]
        return unmoved and bool(moves) and statistics.median(moves) > math.log1p(TOLERANCE)

    def _reason(self, name: str, mine: _Record, lie: str, since: int) -> str:
        now = mine.level(since)
        over = f"over its last {since} trials"
        if lie == "scatter":
            return (
                f"measures at random: two turns of the control kernel differ by "
                f"{math.expm1(mine.spread or 0.0):.0%} there, {over}"
            )
        if lie == "drift":
            change = math.expm1(now - statistics.median(mine.past))
            return (
                f"has slowed down: the control kernel takes {change:.0%} longer there "
                f"than at first, {over}"
            )
        others = [self._records[other].level(since) for other in self._peers(name)]
        other = statistics.median(others)
        share = abs(math.expm1(now - other))
        word = "longer" if lie == "slow" else "less time"
        return (
            f"disagrees with {_peers_text(others)} of the same kind: the control kernel "
            f"takes {share:.0%} {word} there ({math.exp(now) * 1e6:.4g} us against "
            f"{math.exp(other) * 1e6:.4g}), {over}"
        )


def _peers_text(others: Sequence[float]) -> str:
    return f"{len(others)} machine{'s' if len(others) > 1 else ''}"
