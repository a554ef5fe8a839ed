"""Workers that are not there: they take made-up times, find made-up latencies, and some die.

`PretendedPool` keeps them in this process, as one queue of what is due when: what the process burns
is what a coordinator does, without transport. `RayPretendedPool` keeps them in a few actors of a
Ray, many workers in each, so that every trial is a message to an actor and back, as for real
workers: `RayWorkerPool`'s own code sends, waits and reads.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray

from tilesmith.capabilities.fleet.actor import Request, installed
from tilesmith.capabilities.fleet.pool import (
    Done,
    Event,
    Lost,
    Member,
    RayWorkerPool,
    WorkerJoined,
    WorkerLoss,
)
from tilesmith.search_space.results.measure import MeasureResult, result_to_json
from tilesmith.tuner.machines.clocks import boot, since_boot

DIED = "it died, as pretended"


@dataclass(frozen=True)
class Fate:
    """What pretended workers are like.

    Attributes:
        trial_s: seconds of a trial, most of the time.
        stragglers, slower: share of the trials that take so many times as long.
        dying: share of the workers that die; `dies_s`: seconds after which they do.
    """

    trial_s: float = 0.06
    stragglers: float = 0.02
    slower: float = 10.0
    dying: float = 1 / 50
    dies_s: float = 3.0
    seed: int = 0

    @property
    def mean_s(self) -> float:
        """Seconds of a trial, on average."""
        return self.trial_s * (1 + self.stragglers * (self.slower - 1))

    def seconds(self, rng: np.random.Generator, count: int) -> float:
        """What so many trials take."""
        slow = rng.random(count) < self.stragglers
        return self.trial_s * float(np.where(slow, self.slower, 1.0).sum())

    def doomed(self, names: Sequence[str]) -> list[str]:
        """Those that die."""
        return list(names[: round(len(names) * self.dying)])


def answer(request: Request, seconds: float, reading: float) -> dict[str, Any]:
    """As a worker that measures answers; latencies of 0.1 to 1 ms, of the candidate's alone."""
    results = []
    for key, values in request["asked"]:
        text = f"{key} {sorted(values.items())}".encode()
        share = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") / 2**32
        latency = 1e-4 + 9e-4 * share
        samples = tuple(latency * (1 + step / 1000) for step in range(-3, 4))
        result = MeasureResult("ok", "hardware", samples, elapsed=seconds, machine="pretended")
        results.append(result_to_json(result))
    return {
        "results": results,
        "totals": [seconds],
        "spent": {},
        "gauge": {"pace": 1.0, "looks": 1, "drift": 0.0},
        "reading": reading,
        "clock": [boot(), since_boot()],
    }


class PretendedPool(RayWorkerPool):
    """Workers by name in this process, each doing what it was sent in turn."""

    def __init__(self, workers: int, fate: Fate) -> None:
        super().__init__({"threads": 1}, workers)
        self._fate = fate
        self._rng = np.random.default_rng(fate.seed)
        names = [f"pretended/{number}" for number in range(workers)]
        self.members = {
            name: Member(name, None, "pretended", "ready", host="pretended") for name in names
        }
        self._free = dict.fromkeys(names, 0.0)
        self._joining = [WorkerJoined(name) for name in names]
        self._due: list[tuple[float, int, str, list[Request]]] = []
        self._doomed = fate.doomed(names)
        self._dies_at = time.monotonic() + fate.dies_s
        self.died = 0

    def send(self, worker: str, requests: Sequence[Request]) -> int:
        """Trials that take their time once those before them are done."""
        self._ticket += 1
        seconds = self._fate.seconds(self._rng, len(requests))
        self._free[worker] = max(self._free[worker], time.monotonic()) + seconds
        heapq.heappush(self._due, (self._free[worker], self._ticket, worker, list(requests)))
        return self._ticket

    def events(self, now: float, timeout_s: float) -> list[Event]:
        """What is due, or will be before the time is out."""
        found: list[Event] = [*self._joining]
        self._joining = []
        if not found and self._due:
            time.sleep(max(0.0, min(timeout_s, self._due[0][0] - time.monotonic())))
        now = time.monotonic()
        if now >= self._dies_at and self._doomed:
            found += self._deaths()
        while self._due and self._due[0][0] <= now:
            _, ticket, _, requests = heapq.heappop(self._due)
            reading = 1e-4 * float(np.exp(self._rng.normal(0.0, 0.01)))
            seconds = self._fate.trial_s
            found.append(Done(ticket, [answer(one, seconds, reading) for one in requests]))
        return found

    def _deaths(self) -> list[Event]:
        found: list[Event] = []
        for name in self._doomed:
            self.members[name].state, self.members[name].message = "lost", DIED
            found += [Lost(name, DIED), WorkerLoss(name, machine=True)]
        self._due = [one for one in self._due if one[2] not in self._doomed]
        heapq.heapify(self._due)
        self.died, self._doomed = len(self._doomed), []
        return found

    def close(self) -> None:
        """Nobody is there."""


class Many:
    """An actor in which many workers live; each takes one trial at a time, in the order sent."""

    def __init__(self, fate: Fate, number: int) -> None:
        self._fate = fate
        self._rng = np.random.default_rng([fate.seed, number])
        self._free: dict[str, float] = {}
        self._begun = time.monotonic()

    async def hello(self) -> dict[str, Any]:
        """As `actor.WorkerActor.hello`."""
        versions, host = installed(), "pretended"
        told = {"versions": versions, "host": host, "process": os.getpid(), "machine": host}
        return {**told, "refusal": ""}

    async def run(self, worker: str, requests: list[Request], is_doomed: bool) -> list[Any]:
        """As `actor.WorkerActor.run`; one that died says so, which is where pretending ends."""
        now, seconds = time.monotonic(), self._fate.seconds(self._rng, len(requests))
        self._free[worker] = max(self._free.get(worker, 0.0), now) + seconds
        await asyncio.sleep(self._free[worker] - now)
        if is_doomed and time.monotonic() - self._begun > self._fate.dies_s:
            return [{"died": worker}]
        reading = 1e-4 * float(np.exp(self._rng.normal(0.0, 0.01)))
        return [answer(request, self._fate.trial_s, reading) for request in requests]


class RayPretendedPool(RayWorkerPool):
    """`RayWorkerPool` whose workers share `processes` actors of a Ray that is there."""

    def __init__(self, workers: int, fate: Fate, processes: int) -> None:
        super().__init__({"threads": 1}, workers)
        kept = ray.remote(num_cpus=0, max_concurrency=10_000)(Many)
        self._actors = [kept.remote(fate, number) for number in range(processes)]
        ray.get([actor.hello.remote() for actor in self._actors])
        self._doomed = set(fate.doomed([f"pretended/{n}" for n in range(1, workers + 1)]))
        self.died = 0

    def _look(self) -> list[Event]:
        found = super()._look()
        while self._most is not None and len(self.members) < self._most:
            self._start(next(iter(self._nodes)), "pretended")
        return found

    def _start(self, node: str, host: str) -> None:
        number = len(self.members) + 1
        name, actor = f"pretended/{number}", self._actors[number % len(self._actors)]
        is_doomed = name in self._doomed

        def run(requests: list[Request]) -> Any:
            return actor.run.remote(name, requests, is_doomed)

        handle = SimpleNamespace(run=SimpleNamespace(remote=run), hello=actor.hello)
        self.members[name] = Member(name, handle, node, host="pretended")
        self._greet(self.members[name])

    def events(self, now: float, timeout_s: float) -> list[Event]:
        """A death is told by the worker, as if Ray had told it."""
        return list(itertools.chain.from_iterable(map(self._told, super().events(now, timeout_s))))

    def _told(self, event: Event) -> list[Event]:
        if not isinstance(event, Done) or "died" not in event.answers[0]:
            return [event]
        member = self.members[event.answers[0]["died"]]
        if member.is_over:
            return []
        self.died += 1
        return self._ended(member, "lost", DIED)

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self.members.clear()
