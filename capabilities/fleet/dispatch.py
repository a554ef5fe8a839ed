"""`Dispatch`: which worker does which trials next, and what becomes of those whose worker is lost.

A state machine without clock, transport or threads: it is told what happened and when, and says
what to send. Whoever drives it (the actors of a cluster, a simulated fleet) carries messages:

- *Order in, any order out.* Trials are begun in the order they were added; their results are kept
  until the caller, who knows the order, asks.
- *Back-pressure.* A worker holds at most `depth` pieces; everything else waits here. A piece is as
  many trials as take about `piece_s` by the fleet's pace, and never more than an even share.
- *Lost trials are done again.* What a lost worker held goes back to the front; what it was at work
  on one trial a piece, to another worker if there is one. A machine that went away is nobody's
  fault; a process that dies again and again under one trial alone is the trial's. Which of the
  two it was may take a while to tell (`settled`): a trial is begun again at once, but one that may
  have killed as often as that waits.
- *Stragglers.* When nothing waits, idle workers get a second copy of what takes much longer than it
  should; the first result counts.

Times are seconds of one steady clock, the caller's.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

_SMOOTH = 0.2
"""Weight of the newest piece in a pace."""


@dataclass(frozen=True)
class DispatchRules:
    """How trials are shared out.

    Attributes:
        depth: pieces that a worker holds at once, the one it works on among them.
        piece_s: seconds that a piece takes, about; 0: a piece is one trial.
        most: trials of one piece, at most.
        blamed: deaths of a process under one trial alone after which the trial is said to be why.
        lost: workers that a trial may be lost with, in all.
        late: a piece is a straggler after so many times the seconds it should take.
        late_s: and after so many seconds at least.
    """

    depth: int = 2
    piece_s: float = 0.1
    most: int = 64
    blamed: int = 4
    lost: int = 12
    late: float = 4.0
    late_s: float = 0.2


@dataclass(frozen=True)
class Kind:
    """What sort of work it is.

    Attributes:
        name: work of one name takes about as long.
        single: each is a message of its own, not a part of a piece.
    """

    name: str
    single: bool = False


TRIAL = Kind("trial")
LONE_TRIAL = Kind("trial", single=True)


@dataclass
class OpenTrial:
    """One trial, or other work, on its way. `reasons`: why it was lost, each time."""

    number: int
    kind: Kind = TRIAL
    deaths: int = 0
    doubts: int = 0
    copied: bool = False
    avoid: set[str] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TrialBatch:
    """Trials that a worker was sent together, at a moment."""

    worker: str
    trials: tuple[int, ...]
    sent: float
    kind: str = TRIAL.name


@dataclass
class WorkerLoad:
    """A worker as dispatch sees it.

    Attributes:
        pieces: held, the one at work first.
        trials, failures: done, and lost with it.
    """

    pieces: list[TrialBatch] = field(default_factory=list)
    trials: int = 0
    failures: int = 0
    freed: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """A trial that is not tried again. `blamed`: it kills processes; else machines were lost."""

    trial: int
    blamed: bool
    reasons: tuple[str, ...]


class Dispatch:
    """See the module's docstring.

    Attributes:
        workers: those there are, by name; `known`: those there ever were.
        repeated: trials done again because a worker was lost; `copied`: because one was slow.
    """

    def __init__(self, rules: DispatchRules | None = None) -> None:
        self.rules = rules or DispatchRules()
        self.workers: dict[str, WorkerLoad] = {}
        self.known: dict[str, WorkerLoad] = {}
        self.repeated = 0
        self.copied = 0
        self._open: dict[int, OpenTrial] = {}
        self._waiting: deque[int] = deque()
        self._again: list[int] = []
        """Of those that wait, the ones that were lost while at work, first come first."""
        self._doubtful: dict[str, int] = {}
        """By lost worker, the trial that it was at work on alone."""
        self._paces: dict[str, float] = {}
        """Seconds that work takes, by kind, smoothed."""

    # -- what happens -----------------------------------------------------------------------------
    def add(self, trials: Iterable[int], kind: Kind = TRIAL) -> None:
        """More work, by numbers of the caller's, in the order it is to be begun."""
        for number in trials:
            self._open[number] = OpenTrial(number, kind)
            self._waiting.append(number)

    def forget(self, trials: Iterable[int]) -> None:
        """Nobody waits for these any more; what is at work is left to end."""
        for number in trials:
            self._open.pop(number, None)
        self._waiting = deque(number for number in self._waiting if number in self._open)
        self._again = [number for number in self._again if number in self._open]

    def join(self, worker: str) -> None:
        """A worker is there, or there again."""
        self.workers[worker] = self.known.setdefault(worker, WorkerLoad())

    def finished(self, piece: TrialBatch, now: float) -> list[int]:
        """A piece was done; the trials of it that were not known yet."""
        load = self.known.get(piece.worker)
        if load is not None and piece in load.pieces:
            load.pieces.remove(piece)
            load.trials += len(piece.trials) if piece.kind == TRIAL.name else 0
            seconds = (now - max(piece.sent, load.freed)) / len(piece.trials)
            load.freed = now
            self._paces[piece.kind] = _smoothed(self._paces.get(piece.kind), seconds)
        return [n for n in piece.trials if self._open.pop(n, None) is not None]

    def lost(self, worker: str, reason: str) -> list[Verdict]:
        """A worker is gone, perhaps to join again, with what it held; trials that are given up.

        `settled` has to be told of it before the worker joins again.
        """
        load = self.workers.pop(worker)
        pieces, load.pieces = load.pieces, []
        given_up: list[Verdict] = []
        for piece in reversed(pieces[1:]):  # it had not come to these
            self._waiting.extendleft(n for n in reversed(piece.trials) if self._is_left(n))
        at_work = pieces[0].trials if pieces else ()
        for open_trial in filter(None, map(self._open.get, at_work)):
            load.failures += 1
            open_trial.copied = False
            open_trial.avoid.add(worker)
            open_trial.reasons.append(f"{worker}: {reason}")
            if len(open_trial.reasons) >= self.rules.lost:
                given_up.append(self._given_up(open_trial, blamed=False))
                continue
            if len(at_work) == 1:
                self._doubtful[worker] = open_trial.number
                open_trial.doubts += 1
            self._begin_again(open_trial)
        return given_up

    def settled(self, worker: str, *, machine: bool) -> list[Verdict]:
        """What a lost worker was lost by: its machine went away, or its process died.

        Returns:
            the trial that is given up, if there is one.
        """
        open_trial = self._open.get(self._doubtful.pop(worker, -1))
        if open_trial is None:
            return []
        open_trial.doubts -= 1
        open_trial.deaths += not machine
        if open_trial.deaths >= self.rules.blamed:
            return [self._given_up(open_trial, blamed=True)]
        self._begin_again(open_trial)
        return []

    # -- what to do -------------------------------------------------------------------------------
    def assign(self, now: float) -> list[TrialBatch]:
        """Pieces to send now, each to its worker."""
        sent: list[TrialBatch] = []
        for held in range(self.rules.depth):
            for worker, load in self.workers.items():
                if len(load.pieces) == held and (trials := self._share(worker)):
                    sent.append(self._sent(worker, load, trials, now))
        if not self.waiting:
            sent += self._copies(now)
        return sent

    @property
    def waiting(self) -> int:
        """Trials that no worker holds."""
        return len(self._waiting) + len(self._again)

    @property
    def at_work(self) -> int:
        """Trials that workers hold, or held when they were lost."""
        return len(self._open) - self.waiting

    def is_open(self, trial: int) -> bool:
        """Whether a trial has no result yet and is not given up."""
        return trial in self._open

    # -- inside -----------------------------------------------------------------------------------
    def _sent(
        self, worker: str, load: WorkerLoad, trials: tuple[int, ...], now: float
    ) -> TrialBatch:
        piece = TrialBatch(worker, trials, now, self._open[trials[0]].kind.name)
        load.pieces.append(piece)
        return piece

    def _share(self, worker: str) -> tuple[int, ...]:
        """The next trials for a worker: one that was lost elsewhere, else its share in order."""
        for number in self._again:
            avoid = self._open[number].avoid
            if worker not in avoid or avoid >= self.workers.keys():
                self._again.remove(number)
                return (number,)
        taken: list[int] = []
        size, queue = self._size(), self._waiting
        while queue and len(taken) < size:
            single = self._open[queue[0]].kind.single
            if not (single and taken):
                taken.append(queue.popleft())
            if single:
                break
        return tuple(taken)

    def _size(self) -> int:
        """Trials of a piece: about `piece_s`, and an even share of what waits."""
        rules = self.rules
        if not rules.piece_s:
            return 1
        share = -(-len(self._waiting) // (rules.depth * len(self.workers)))
        pace = self._paces.get(TRIAL.name)
        by_pace = 4 if pace is None else int(rules.piece_s / max(pace, 1e-9))
        return max(1, min(share, by_pace, rules.most))

    def _copies(self, now: float) -> list[TrialBatch]:
        """Second copies of stragglers, the oldest first, for workers that have nothing to do."""
        idle = [(name, load) for name, load in self.workers.items() if not load.pieces]
        held = [piece for load in self.workers.values() for piece in load.pieces]
        sent = []
        for piece in sorted(held, key=lambda piece: piece.sent):
            if not idle or now - piece.sent < self._late_after(piece):
                continue
            slow = [self._open[n] for n in piece.trials if n in self._open]
            slow = [open_trial for open_trial in slow if not open_trial.copied]
            if slow:
                worker, load = idle.pop(0)
                for open_trial in slow:
                    open_trial.copied = True
                self.copied += len(slow)
                sent.append(self._sent(worker, load, tuple(e.number for e in slow), now))
        return sent

    def _late_after(self, piece: TrialBatch) -> float:
        pieces = self.workers[piece.worker].pieces
        before = pieces[: pieces.index(piece) + 1]
        due = sum(len(one.trials) * self._paces.get(one.kind, 0.0) for one in before)
        return max(self.rules.late_s, self.rules.late * due)

    def next_look(self, now: float) -> float:
        """Seconds until something may have become a straggler; infinity if nothing can."""
        if self.waiting or all(load.pieces for load in self.workers.values()):
            return float("inf")
        due = [
            piece.sent + self._late_after(piece) - now
            for load in self.workers.values()
            for piece in load.pieces
            if any(n in self._open and not self._open[n].copied for n in piece.trials)
        ]
        return max(0.0, min(due, default=float("inf")))

    def _begin_again(self, open_trial: OpenTrial) -> None:
        waits = open_trial.deaths + open_trial.doubts >= self.rules.blamed
        if not waits and self._is_left(open_trial.number):
            self._again.append(open_trial.number)
            self.repeated += 1

    def _given_up(self, open_trial: OpenTrial, *, blamed: bool) -> Verdict:
        del self._open[open_trial.number]
        if open_trial.number in self._again:
            self._again.remove(open_trial.number)
        return Verdict(open_trial.number, blamed, tuple(open_trial.reasons))

    def _is_left(self, trial: int) -> bool:
        """Whether a trial of a lost piece is open, and neither waits nor has a copy at work."""
        held = (piece for load in self.workers.values() for piece in load.pieces)
        at_work = any(trial in piece.trials for piece in held)
        waits = trial in self._again or trial in self._waiting
        return trial in self._open and not waits and not at_work


def _smoothed(pace: float | None, seconds: float) -> float:
    return seconds if pace is None else (1 - _SMOOTH) * pace + _SMOOTH * seconds
