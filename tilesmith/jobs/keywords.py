"""Misspelt keyword arguments of the Python API, refused by the function that was called.

What jobs may be told beside subject and target goes on to a request, whose constructor would name
itself. Functions say by `takes` which of these there are; whoever calls them meets a sentence.
"""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.suggestions import did_you_mean

Given = ParamSpec("Given")
Found = TypeVar("Found")


class KeywordError(InputError, TypeError):
    """A function has no argument of some name; what Python calls a `TypeError`."""


def takes(
    asked: type[Any] | None = None,
) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """Refuse keyword arguments that are neither the function's own nor keys of `asked`.

    Args:
        asked: the typed dictionary that the function's `**asked` unpacks; None if it has none.

    Raises (when the function is called):
        KeywordError: a name that there is not; what looks like it is suggested.
    """

    def checked(function: Callable[Given, Found]) -> Callable[Given, Found]:
        own = [
            name for name, parameter in signature(function).parameters.items()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]  # fmt: skip
        known = [*own, *(asked.__annotations__ if asked else ())]

        @wraps(function)
        def called(*args: Given.args, **given: Given.kwargs) -> Found:
            for name in given:
                if name not in known:
                    there = did_you_mean(name, known) or f"; it has {', '.join(known)}"
                    raise KeywordError(f"{function.__name__}() has no argument '{name}'{there}")
            return function(*args, **given)

        return called

    return checked
