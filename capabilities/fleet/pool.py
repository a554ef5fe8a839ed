"""`RayWorkerPool`: the actors of a job, one for each slot of every node, as nodes come and go.

Speaks Ray and nothing else: who is there, who is lost and by what, and messages to and fro. Actors
are bound to the node they are made for; Ray restarts one whose process died, and it says hello
again before it is given work. A node that joins the cluster is taken in use at the next look.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tilesmith.capabilities.fleet.actor import Request, WorkerActor, installed

_LOOK_S = 1.0
"""Seconds between two looks at which nodes there are."""
_DOUBT_S = 30.0
"""Seconds that a worker which does not come back is in doubt: its machine may be gone, which Ray
finds out by not hearing from it for some time."""
_DEATHS = 10
"""Deaths of a worker without a piece done between them after which it is set aside."""


@dataclass(frozen=True)
class WorkerJoined:
    """A worker is ready for work."""

    worker: str


@dataclass(frozen=True)
class Lost:
    """A worker is not there any more, perhaps for a moment; `settled` follows."""

    worker: str
    reason: str


@dataclass(frozen=True)
class WorkerLoss:
    """Why a lost worker was lost."""

    worker: str
    machine: bool


@dataclass(frozen=True)
class Done:
    """What came of a message: its answers."""

    ticket: int
    answers: list[dict[str, Any]]


@dataclass(frozen=True)
class Refused:
    """A message, or a worker as a whole, failed by itself: an error, not a death."""

    ticket: int
    reason: str


Event = WorkerJoined | Lost | WorkerLoss | Done | Refused


@dataclass
class Member:
    """One actor.

    Attributes:
        state: "lost" for a moment, while Ray starts its process again; or for good: `is_over`.
        message: why it is not ready.
        greeting: what it said of itself when it came.
        deaths: of its process since it last did anything.
    """

    worker: str
    actor: Any
    node: str
    state: Literal["starting", "ready", "lost", "set aside"] = "starting"
    message: str = ""
    host: str = ""
    machine: str = ""
    deaths: int = 0
    hello: Any = None
    tickets: dict[Any, int] = field(default_factory=dict)
    is_over: bool = False
    doubted: float = float("inf")
    greeting: Mapping[str, Any] = field(default_factory=dict)


class RayWorkerPool:
    """See the module's docstring.

    Args:
        setup: of actors, see `actor.WorkerActor`.
        most: workers in all; None: as many as the cluster has cores.
        check: raises where Ray is not there. Asked before every look: a question to a head that is
            gone waits for a minute, and then ends the process.
    """

    def __init__(
        self, setup: dict[str, Any], most: int | None, check: Callable[[], None] | None = None
    ) -> None:
        self._setup = setup
        self._check = check
        self._most = most
        self._cores = setup["threads"] if setup.get("measures") else 1
        self._actor = ray.remote(max_restarts=-1, num_cpus=self._cores)(WorkerActor)
        self._looked = float("-inf")
        self._nodes: dict[str, Mapping[str, Any]] = {}
        self._ticket = 0
        self.members: dict[str, Member] = {}

    # -- to and fro -------------------------------------------------------------------------------
    def send(self, worker: str, requests: Sequence[Request]) -> int:
        """Have a worker run requests; the ticket that `Done` will bear."""
        self._ticket += 1
        member = self.members[worker]
        member.tickets[member.actor.run.remote(list(requests))] = self._ticket
        return self._ticket

    def set_aside(self, worker: str, reason: str) -> list[Event]:
        """Use a worker no more, since it cannot be believed; what it holds is nobody's fault."""
        member = self.members[worker]
        if member.is_over:
            return []
        *lost, _ = self._ended(member, "set aside", reason)
        return [*lost, WorkerLoss(worker, machine=True)]

    def events(self, now: float, timeout_s: float) -> list[Event]:
        """What happened; waits for something to happen for so long at most.

        Args:
            now: of the caller's steady clock.
        """
        events: list[Event] = []
        if now - self._looked >= _LOOK_S:
            self._looked = now
            events += self._look()
        expected = {ref: m for m in self.members.values() for ref in self._refs(m)}
        timeout_s = 0.0 if events else min(timeout_s, max(0.0, self._looked + _LOOK_S - now))
        if expected:
            refs = list(expected)
            ready, _ = ray.wait(refs, num_returns=1, timeout=timeout_s)
            if ready:
                ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            for ref, answer in zip(ready, _answers(ready), strict=True):
                events += self._received(expected[ref], ref, answer)
        elif timeout_s:
            time.sleep(timeout_s)
        return events

    def close(self) -> None:
        """Let go of all actors."""
        for member in self.members.values():
            with contextlib.suppress(RayError, ValueError):
                ray.kill(member.actor)
        self.members.clear()

    # -- nodes ------------------------------------------------------------------------------------
    def _look(self) -> list[Event]:
        """Take new nodes in use, and give up workers whose node is gone."""
        if self._check is not None:
            self._check()
        listed: list[dict[str, Any]] = ray.nodes()
        self._nodes = {node["NodeID"]: node for node in listed if node["Alive"]}
        events: list[Event] = []
        for member in list(self.members.values()):
            if not member.is_over and member.node not in self._nodes:
                events += self._ended(member, "lost", "its machine went away")
            elif not member.is_over and self._looked - member.doubted > _DOUBT_S:
                events += self._ended(member, "set aside", member.message)
        for node, facts in self._nodes.items():
            slots = int(facts["Resources"].get("CPU", 0)) // self._cores
            here = sum(member.node == node for member in self.members.values())
            for _ in range(here, slots):
                if self._most is None or self._present() < self._most:
                    self._start(node, facts["NodeManagerHostname"])
        return events

    def _present(self) -> int:
        return sum(not member.is_over for member in self.members.values())

    def _start(self, node: str, host: str) -> None:
        number = 1 + sum(member.host == host for member in self.members.values())
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = self._actor.options(scheduling_strategy=strategy).remote(self._setup)
        member = Member(f"{host}/{number}", actor, node, host=host)
        self.members[member.worker] = member
        self._greet(member)

    def _greet(self, member: Member) -> None:
        member.hello = member.actor.hello.options(max_task_retries=-1).remote()

    # -- what comes back --------------------------------------------------------------------------
    @staticmethod
    def _refs(member: Member) -> list[Any]:
        return [*member.tickets, *([] if member.hello is None else [member.hello])]

    def _received(self, member: Member, ref: Any, answer: Any) -> list[Event]:
        if ref != member.hello and ref not in member.tickets:
            return []  # of a worker that was lost meanwhile
        if isinstance(answer, RayTaskError):
            return self._failed(member, ref, _last_line(answer))
        if isinstance(answer, RayError):
            return self._died(member, ref, answer)
        if ref == member.hello:
            return self._greeted(member, answer)
        member.deaths = 0
        return [Done(member.tickets.pop(ref), answer)]

    def _greeted(self, member: Member, greeting: Mapping[str, Any]) -> list[Event]:
        member.hello, member.machine, member.greeting = None, greeting["machine"], greeting
        if differing := _differing(greeting["versions"]):
            return self._ended(member, "set aside", f"has {differing}")
        if greeting["refusal"]:
            return self._ended(member, "set aside", greeting["refusal"])
        again, member.state, member.message = member.state == "lost", "ready", ""
        settled: list[Event] = [WorkerLoss(member.worker, machine=False)] if again else []
        return [*settled, WorkerJoined(member.worker)]

    def _failed(self, member: Member, ref: Any, reason: str) -> list[Event]:
        """An error was raised there."""
        if ref == member.hello:
            return self._ended(member, "set aside", reason)
        return [Refused(member.tickets.pop(ref), reason)]

    def _died(self, member: Member, ref: Any, error: RayError) -> list[Event]:
        """Its process died, or its node did: the next hello, or the next look, will tell."""
        reason, member.tickets = _why(error), {}
        if ref == member.hello:  # it does not come back; `_look` finds out what that means
            member.hello, member.doubted = None, self._looked
            was, member.state, member.message = member.state, "lost", reason
            return [Lost(member.worker, reason)] if was == "ready" else []
        member.deaths += 1
        if member.deaths >= _DEATHS:
            return self._ended(
                member, "set aside", f"died {_DEATHS} times in a row, last: {reason}"
            )
        member.state, member.message = "lost", reason
        self._greet(member)
        return [Lost(member.worker, reason)]

    @staticmethod
    def _ended(member: Member, state: Literal["lost", "set aside"], reason: str) -> list[Event]:
        was, member.state, member.message = member.state, state, reason
        member.hello, member.tickets, member.is_over = None, {}, True
        with contextlib.suppress(RayError, ValueError):
            ray.kill(member.actor)
        lost: list[Event] = [Lost(member.worker, reason)] if was == "ready" else []
        return [*lost, WorkerLoss(member.worker, machine=state == "lost")]


def _answers(refs: Sequence[Any]) -> list[Any]:
    """What came of calls that are done: an answer or a `RayError` each; asked for together, since
    asking costs more than reading."""
    try:
        return list(ray.get(list(refs)))
    except RayError as error:
        if len(refs) == 1:
            return [error]
        half = len(refs) // 2
        return _answers(refs[:half]) + _answers(refs[half:])


def _differing(theirs: Mapping[str, str]) -> str:
    """Which versions of a worker are not ours; "" if all are."""
    mine = installed()
    names = [name for name in mine if theirs.get(name) != mine[name]]
    return ", ".join(f"{name} {theirs.get(name, '?')} (here {mine[name]})" for name in names)


def _why(error: RayError) -> str:
    """A sentence from what Ray says of a death."""
    text = " ".join(str(error).split())
    if "node" in text and "died" in text and "its node has died" in text:
        return "its machine went away"
    if "memory" in text and "OOM" in text:
        return "its process was killed for lack of memory on its machine"
    return "its process died"


def _last_line(error: RayTaskError) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
