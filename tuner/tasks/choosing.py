"""`Choosers`: who makes proposals, if not the process that runs the job.

What a job proposes is a function of plain data: what the job is (`setup`), the trials that were
joined, in order, and what is asked for. So it can be found anywhere, several proposals at once, and
is the same wherever it was; a chooser that is lost is replaced by one that follows the same trials.

    choosers.open(setup)
    choosers.follow([[workload's key, configuration, result, pace], ...])  # as they were joined
    ticket = choosers.ask({"workload", "number", "count", "pending"})      # knows what was followed
    choosers.answer(ticket)                                                # configurations

All values are JSON's: configurations as dictionaries, results as `search_space.results.measure` has
them. See `tuner.choosers.chooser` for their meaning.
"""

from collections.abc import Sequence
from typing import Protocol

from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.strategy import Json


class Choosers(Protocol):
    """See the module's docstring. Tickets of `ask` are any objects."""

    def open(self, setup: Json) -> None:
        """Begin anew with a job's way of measuring; nothing is followed yet."""
        ...

    def follow(self, trials: Sequence[Json]) -> None:
        """Pass on trials that were joined; later questions are answered with knowledge of them."""
        ...

    def ask(self, asked: Json) -> object:
        """Have a proposal made of what was followed so far; does not wait for it."""
        ...

    def is_ready(self, ticket: object) -> bool:
        """Whether `answer` would not wait."""
        ...

    def answer(self, ticket: object, cancel: CancelToken | None = None) -> list[Json]:
        """The configurations proposed.

        Raises:
            Cancelled: the token was set first.
        """
        ...

    def close(self) -> None:
        """Nothing is asked any more."""
        ...
