"""What capabilities add to commands that are not theirs: options, and what they ask for.

`simulate --set sbuf.mib=24,48,96` compares many machines, which the command itself cannot: whoever
can registers an `Addition` under the command's name, and the command asks it before it begins.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tilesmith.search_space.support.registry import Registry

if TYPE_CHECKING:
    from tilesmith.jobs.subjects.subject import Subject

Command = TypeVar("Command", bound=Callable[..., Any])


class Addition(ABC):
    """Options of one capability on a command, and what they ask for.

    Attributes:
        names: of the options, as the command's function would get them.
    """

    names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def options(self, command: Command) -> Command:
        """The command with the options. They are None unless given."""

    @abstractmethod
    def does(self, subject: "Subject", targets: Sequence[str], asked: Mapping[str, Any]) -> bool:
        """Do what the options ask for, in place of the command.

        Args:
            subject: what the command is about.
            targets: names of targets, at least one.
            asked: the values of all options of the command, these included.

        Returns:
            Whether it did; False: the command goes on, and none of the options is given.

        Raises:
            InputError: one of the options is given and means nothing here.
        """


additions: Registry[type[Addition]] = Registry("addition to a command", "", room="additions")
"""By the command, or "CAPABILITY on COMMAND" where there are several."""


def added_to(name: str) -> Callable[[Command], Command]:
    """Decorator: the command takes the options that capabilities add to it."""

    def add(command: Command) -> Command:
        for addition in _of(name):
            command = addition.options(command)
        return command

    return add


def done_in_place(
    name: str, subject: "Subject", targets: Sequence[str], asked: dict[str, Any], **own: Any
) -> bool:
    """Whether an addition did what was asked for; see `Addition.does`.

    Args:
        asked: the values of options that are handed on; those of additions are taken out.
        own: the values of options that only the command itself and additions look at.
    """
    known = list(_of(name))
    done = any(addition.does(subject, targets, {**asked, **own}) for addition in known)
    for option in (option for addition in known for option in addition.names):
        asked.pop(option)
    return done


def _of(name: str) -> Iterator[Addition]:
    for known in additions:
        if known.rpartition(" on ")[2] == name:
            yield additions[known]()
