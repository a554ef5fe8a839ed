"""A pretended fleet: results of what was begun come in random orders, from several workers."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence

import numpy as np
from problems import TARGET, judge

from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.tuner.choosers.chooser import Chooser
from tilesmith.tuner.measurement.runner import Begun, Candidate, RunnerOptions
from tilesmith.tuner.runners.simulator import SimulatorRunner
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.strategy import Json


class Killed(BaseException):
    """As if the process had been killed."""


class ScatteredChoosers:
    """Several choosers that take what is asked in turn, and are ready when it pleases them.

    What was asked is answered when somebody waits for it; a chooser may be lost any time, and
    another follow what it did. All that is said goes through JSON.
    """

    def __init__(self, count: int, seed: int, losing: bool = True) -> None:
        self._rng = np.random.default_rng(seed)
        self._count, self._losing = count, losing
        self._setup = ""
        self._choosers: list[tuple[Chooser, int]] = []
        self._followed: list[str] = []
        self.answered = 0

    def open(self, setup: Json) -> None:
        self._setup, self._followed = json.dumps(setup), []
        self._choosers = [(Chooser(json.loads(self._setup)), 0) for _ in range(self._count)]

    def follow(self, trials: Sequence[Json]) -> None:
        self._followed += [json.dumps(trial) for trial in trials]

    def ask(self, asked: Json) -> object:
        return json.dumps(asked), len(self._followed)

    def is_ready(self, ticket: object) -> bool:
        return bool(self._rng.random() < 0.5)

    def answer(self, ticket: object, cancel: CancelToken | None = None) -> list[Json]:
        asked, known = ticket  # type: ignore[misc]
        self.answered += 1
        number = int(self._rng.integers(self._count))
        chooser, followed = self._choosers[number]
        if followed > known or (self._losing and self._rng.random() < 0.1):
            chooser, followed = Chooser(json.loads(self._setup)), 0
        while followed < known:
            some = min(known, followed + int(self._rng.integers(1, 50)))
            chooser.follow([json.loads(text) for text in self._followed[followed:some]])
            followed = some
        self._choosers[number] = chooser, followed
        return json.loads(json.dumps(chooser.propose(json.loads(asked))))

    def close(self) -> None:
        self._choosers = []


class Scattered(SimulatorRunner):
    """The judge, asked by `workers` that take candidates in turn and answer in a random order.

    Args:
        killed_after: answers after which whoever waits is killed.
        cancelled_after: answers after which the token of whoever waits is set.
        choosers: how many there are, 0: whoever asks has to choose.
    """

    def __init__(
        self,
        workers: int,
        seed: int = 0,
        killed_after: int | None = None,
        cancelled_after: int | None = None,
        choosers: int = 0,
    ) -> None:
        super().__init__(RunnerOptions(TARGET, judge=judge))
        self._rng = np.random.default_rng(seed)
        self._workers = workers
        self._choosers = ScatteredChoosers(choosers, seed) if choosers else None
        self._killed_after, self._cancelled_after = killed_after, cancelled_after
        self._waiting: deque[tuple[Begun, int]] = deque()
        self._at_work: list[tuple[Begun, int]] = []
        self._answers: dict[Begun, dict[int, MeasureResult]] = {}
        self.begun = 0
        self.answered = 0
        self.most_at_work = 0
        self.asked: list[Candidate] = []

    def measure(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        return self.finish(self.begin(batch, cancel), cancel)

    def choosers(self) -> ScatteredChoosers | None:
        return self._choosers

    def begin(self, batch: Sequence[Candidate], cancel: CancelToken | None = None) -> Begun:
        begun = Begun(tuple(batch))
        self._answers[begun] = {}
        self._waiting += [(begun, place) for place in range(len(batch))]
        self.begun += len(batch)
        self.asked += batch
        return begun

    def finish(
        self, begun: Begun, cancel: CancelToken | None = None, deadline: float | None = None
    ) -> list[MeasureResult]:
        mine = self._answers[begun]
        while len(mine) < len(begun.batch):
            if cancel is not None and cancel.cancelled:
                break
            self._step()
            if self.answered == self._cancelled_after and cancel is not None:
                cancel.cancel("a test")
            if self.answered == self._killed_after:
                raise Killed
        self.abandon(begun)
        prefix = range(next(i for i in range(len(begun.batch) + 1) if i not in mine))
        return [mine[place] for place in prefix]

    def abandon(self, begun: Begun) -> None:
        self._answers.pop(begun, None)
        self._waiting = deque(one for one in self._waiting if one[0] is not begun)
        self._at_work = [one for one in self._at_work if one[0] is not begun]

    def _step(self) -> None:
        """Everybody who is free takes something, and one of those at work answers."""
        while self._waiting and len(self._at_work) < self._workers:
            self._at_work.append(self._waiting.popleft())
        self.most_at_work = max(self.most_at_work, len(self._at_work))
        begun, place = self._at_work.pop(int(self._rng.integers(len(self._at_work))))
        (self._answers[begun][place],) = super().measure([begun.batch[place]])
        self.answered += 1
