"""`RayChoosers`: proposals of a job, made by actors of the cluster.

Each actor is told all trials in the order they were joined, and makes every so manieth proposal;
Ray hands an actor its messages in order. One that is lost is made anew wherever there is room, told
everything again, and asked again for what it owed: its answers are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from tilesmith.search_space.support.errors import JobError
from tilesmith.tuner.choosers.chooser import Chooser
from tilesmith.tuner.choosers.threads import one_thread
from tilesmith.tuner.tasks.cancel import Cancelled, CancelToken

_POLL_S = 0.1
_LOSSES = 50
"""Lost actors of a job after which it is given up."""


class ChoosingActor:
    """A `Chooser` in a process elsewhere."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._limits = one_thread()
        self._limits.__enter__()
        self._chooser = Chooser(setup)

    def follow(self, trials: list[Any]) -> None:
        """See `Chooser`, as what comes next."""
        self._chooser.follow(trials)

    def propose(self, asked: dict[str, Any]) -> list[Any]:
        return self._chooser.propose(asked)


@dataclass(eq=False)
class _Ticket:
    """One proposal: asked of which actor, and how much had been followed then."""

    asked: dict[str, Any]
    actor: int
    followed: int
    ref: Any = None


@dataclass
class _Actor:
    """One actor, and what it owes in the order it was asked."""

    handle: Any
    owes: list[_Ticket] = field(default_factory=list)


class RayChoosers:
    """See the module's docstring; a `Choosers`.

    Args:
        count: actors. They take turns with the workers on their cores, and reserve none.
        check: raises where Ray is not there; asked before anything is asked of it.
    """

    def __init__(self, count: int, check: Callable[[], None]) -> None:
        self._count = count
        self._check = check
        self._class = ray.remote(num_cpus=0)(ChoosingActor)
        self._setup: Any = None
        self._actors: list[_Actor] = []
        self._log: list[Any] = []
        self._asked = 0
        self._losses = 0

    def open(self, setup: Any) -> None:
        self.close()
        self._setup, self._log, self._asked = ray.put(setup), [], 0
        self._actors = [self._made() for _ in range(self._count)]

    def follow(self, trials: Sequence[Any]) -> None:
        if trials:
            self._check()
            self._log += trials
            reference = ray.put(list(trials))
            for actor in self._actors:
                actor.handle.follow.remote(reference)

    def ask(self, asked: Any) -> object:
        number = self._asked % self._count
        self._asked += 1
        ticket = _Ticket(asked, number, len(self._log))
        actor = self._actors[number]
        ticket.ref = actor.handle.propose.remote(asked)
        actor.owes.append(ticket)
        return ticket

    def is_ready(self, ticket: object) -> bool:
        assert isinstance(ticket, _Ticket), "of `ask`"
        return bool(ray.wait([ticket.ref], timeout=0)[0])

    def answer(self, ticket: object, cancel: CancelToken | None = None) -> list[Any]:
        assert isinstance(ticket, _Ticket), "of `ask`"
        while True:
            if cancel is not None and cancel.cancelled:
                raise Cancelled
            self._check()
            if not ray.wait([ticket.ref], timeout=_POLL_S)[0]:
                continue
            try:
                configs: list[Any] = ray.get(ticket.ref)
            except RayActorError as error:
                self._replace(ticket.actor, error)
            except RayTaskError as error:
                last = (str(error).strip().splitlines() or ["no reason given"])[-1]
                raise JobError(f"a worker could not choose what to measure: {last}") from error
            else:
                self._actors[ticket.actor].owes.remove(ticket)
                return configs

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor.handle)
        self._actors = []

    def _made(self) -> _Actor:
        return _Actor(self._class.options(scheduling_strategy="SPREAD").remote(self._setup))

    def _replace(self, number: int, error: RayActorError) -> None:
        """Another actor in the place of a lost one, asked again for what that owed."""
        self._losses += 1
        if self._losses > _LOSSES:
            raise JobError(f"workers that choose are lost again and again; the last: {error}")
        owes = self._actors[number].owes
        actor = self._actors[number] = self._made()
        sent = 0
        for ticket in owes:
            actor.handle.follow.remote(self._log[sent : ticket.followed])
            sent = ticket.followed
            ticket.ref = actor.handle.propose.remote(ticket.asked)
            actor.owes.append(ticket)
        actor.handle.follow.remote(self._log[sent:])
