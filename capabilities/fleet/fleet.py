"""`RayFleet`: trials done by the workers of a cluster, whatever becomes of some of them.

    with Cluster.open("2") as cluster, Fleet(cluster, target, threads=1) as fleet:
        tickets = fleet.begin(requests)
        answers = fleet.wait(tickets)

`Dispatch` decides, `RayWorkerPool` carries. Nothing runs beside the caller's thread: what the
cluster says is read whenever the fleet is asked for something.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import ray

from tilesmith.capabilities.fleet import dispatch
from tilesmith.capabilities.fleet.actor import Request
from tilesmith.capabilities.fleet.choosers import RayChoosers
from tilesmith.capabilities.fleet.cluster import Cluster
from tilesmith.capabilities.fleet.pool import (
    Done,
    Event,
    Lost,
    Member,
    RayWorkerPool,
    Refused,
    WorkerJoined,
    WorkerLoss,
)
from tilesmith.records.trials.record import WorkerReport, WorkerState
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import JobError
from tilesmith.tuner.machines.clocks import since_boot
from tilesmith.tuner.machines.identity import Machine
from tilesmith.tuner.tasks.cancel import CancelToken

_POLL_S = 0.1
_CHOOSERS = 16
"""Actors that make proposals, at most."""
_NOBODY_S, _TURN_S = 300.0, 1.0
"""Seconds that a job without a worker waits for one, of which a turn counts so many at most: this
process may be stopped for a while, or the machine asleep."""

Answer = dict[str, Any]


def _nothing() -> None:
    """What there is to check without a cluster."""


class RayFleet:
    """See the module's docstring; a context manager.

    Args:
        target: what trials are for.
        threads: that a kernel may use.
        measures: whether workers time trials, each on cores of its own.
        pool: who carries messages, in the place of the cluster's actors.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        target: Target,
        threads: int,
        rules: dispatch.DispatchRules | None = None,
        *,
        measures: bool = False,
        pool: RayWorkerPool | None = None,
    ) -> None:
        setup = {"target": target.to_json(), "threads": threads, "measures": measures}
        self._workers = None if cluster is None else cluster.workers
        self._cluster = cluster
        self.answered = 0
        """Trials that were done."""
        self._check = _nothing if cluster is None else cluster.check
        self._pool = pool or RayWorkerPool(setup, self._workers, self._check)
        self._dispatch = dispatch.Dispatch(rules)
        self._requests: dict[int, Request] = {}
        self._answers: dict[int, Answer] = {}
        self._sent: dict[int, tuple[dispatch.TrialBatch, float]] = {}
        self._number = 0
        self._turned, self._unmanned_s = time.monotonic(), 0.0

    def __enter__(self) -> "RayFleet":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the workers; those of a Ray that is lost are gone."""
        if self._cluster is None or not self._cluster.is_lost:
            self._pool.close()

    def choosers(self) -> RayChoosers:
        """Who makes proposals on this cluster: on each core at most one."""
        cores = self._workers or int(ray.cluster_resources().get("CPU", 1))
        return RayChoosers(max(1, min(cores, _CHOOSERS)), self._check)

    def begin(self, requests: Iterable[Request], kind: dispatch.Kind = dispatch.TRIAL) -> list[int]:
        """Have requests run; their numbers, to `wait` for."""
        numbers = []
        for request in requests:
            self._number += 1
            self._requests[self._number] = request
            numbers.append(self._number)
        self._dispatch.add(numbers, kind)
        self._turn(0.0)
        return numbers

    def wait(
        self,
        numbers: Sequence[int],
        cancel: CancelToken | None = None,
        deadline: float | None = None,
    ) -> list[Answer]:
        """The answers, in order; those of a prefix that are there, if cancelled or late.

        Args:
            deadline: moment of `time.monotonic()`.

        Raises:
            JobError: there has been no worker for long, or a trial was lost again and again.
        """
        while any(number not in self._answers for number in numbers):
            if cancel is not None and cancel.cancelled:
                break
            if deadline is not None and time.monotonic() >= deadline:
                break
            self._turn(_POLL_S)
        answers = []
        for number in numbers:
            if number not in self._answers:
                break
            answers.append(self._answers.pop(number))
        self.forget(numbers)
        return answers

    def forget(self, numbers: Sequence[int]) -> None:
        """Nobody waits for these any more."""
        self._dispatch.forget(numbers)
        for number in numbers:
            self._requests.pop(number, None)
            self._answers.pop(number, None)

    def reports(self) -> list[WorkerReport]:
        """All workers there ever were."""
        return [self._report(member) for member in self._pool.members.values()]

    def set_aside(self, worker: str, reason: str) -> None:
        """Use a worker no more: it cannot be believed, for a reason that follows its name."""
        for event in self._pool.set_aside(worker, reason):
            self._heard(event, time.monotonic())

    def machines(self) -> list[Machine]:
        """The machines that workers have measured on, or offered to."""
        facts = [member.greeting.get("known") for member in self._pool.members.values()]
        return [Machine.from_json(known) for known in dict.fromkeys(facts) if known]

    def hosts(self) -> dict[str, Target]:
        """The machines of the workers that come within some time, as targets, by name."""
        until = time.monotonic() + _NOBODY_S / 2
        while (now := time.monotonic()) < until:
            for event in self._pool.events(now, _POLL_S):
                self._heard(event, now)
            members = self._pool.members.values()
            if members and all(member.greeting or member.is_over for member in members):
                break
        greetings = [
            member.greeting for member in self._pool.members.values() if "is" in member.greeting
        ]
        return {one["machine"]: Target.from_json(one["is"]) for one in greetings}

    @property
    def size(self) -> int:
        """Workers that are ready."""
        return len(self._dispatch.workers)

    # -- inside -----------------------------------------------------------------------------------
    def _turn(self, timeout_s: float) -> None:
        """Send what can be sent, and hear what happened, waiting for it so long at most.

        Raises:
            ClusterLost: Ray is not there any more.
        """
        self._send()
        now = time.monotonic()
        for event in self._pool.events(now, min(timeout_s, self._dispatch.next_look(now))):
            self._heard(event, time.monotonic())
        self._send()
        self._check_manned()

    def _send(self) -> None:
        for piece in self._dispatch.assign(time.monotonic()):
            requests = [self._requests[number] for number in piece.trials]
            self._sent[self._pool.send(piece.worker, requests)] = piece, since_boot()

    def _heard(self, event: Event, now: float) -> None:
        match event:
            case WorkerJoined(worker):
                self._dispatch.join(worker)
            case Lost(worker, reason):
                self._give_up(self._dispatch.lost(worker, reason))
                self._sent = {t: p for t, p in self._sent.items() if p[0].worker != worker}
            case WorkerLoss(worker, machine):
                self._give_up(self._dispatch.settled(worker, machine=machine))
            case Done(ticket, answers):
                piece, sent = self._sent.pop(ticket)
                if "refusal" in answers[-1]:
                    self.set_aside(piece.worker, answers[-1]["refusal"])
                    return
                new = set(self._dispatch.finished(piece, now))
                about = {"worker": piece.worker, "sent": sent, "received": since_boot()}
                for number, answer in zip(piece.trials, answers, strict=True):
                    if number in new:
                        self.answered += 1
                        self._answers[number] = {**answer, **about}
                        del self._requests[number]
            case Refused(ticket, reason):
                worker = self._sent.pop(ticket)[0].worker
                raise JobError(f"worker {worker} could not do a trial: {reason}")

    def _give_up(self, verdicts: Iterable[dispatch.Verdict]) -> None:
        """A trial that kills processes has failed; one that was lost with machines ends the job."""
        for verdict in verdicts:
            request = self._requests.pop(verdict.trial)
            reasons = "; ".join(verdict.reasons)
            if not verdict.blamed:
                raise JobError(
                    f"a trial of '{request['asked'][0][0]}' was lost with "
                    f"{len(verdict.reasons)} workers ({reasons}); see to the machines, then resume "
                    "the job"
                )
            self._answers[verdict.trial] = {"crashed": f"it killed its workers ({reasons})"}

    def _check_manned(self) -> None:
        """Raise once there has been no worker for too long, or none can come."""
        now, members = time.monotonic(), self._pool.members.values()
        gone_s, self._turned = min(_TURN_S, now - self._turned), now
        self._unmanned_s = 0.0 if self._dispatch.workers else self._unmanned_s + gone_s
        if self._dispatch.workers:
            return
        refused = [member for member in members if member.state == "set aside"]
        if refused and all(member.is_over for member in members):
            raise JobError(
                f"no worker can be used: {refused[0].worker} {refused[0].message}"
                + (f", and {len(refused) - 1} more" if len(refused) > 1 else "")
            )
        if self._unmanned_s > _NOBODY_S:
            raise JobError(
                f"the cluster has had no worker for {_NOBODY_S:g} s; add a node with free cores, "
                "then resume the job"
            )

    def _report(self, member: Member) -> WorkerReport:
        hand = self._dispatch.known.get(member.worker)
        at_work: WorkerState = "busy" if hand is not None and hand.pieces else "idle"
        return WorkerReport(
            member.worker,
            member.host,
            member.machine,
            at_work if member.state == "ready" else member.state,
            member.message,
            0 if hand is None else hand.trials,
            0 if hand is None else hand.failures,
        )
