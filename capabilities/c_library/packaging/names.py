"""Names of a library's functions, from whatever a model is called."""

import re

from tilesmith.search_space.support.errors import InputError

_LONGEST = 64
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)


def prefix_of(name: str) -> str:
    """An identifier of C that is like a name: letters, digits and single underscores."""
    identifier = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:_LONGEST].rstrip("_")
    if not identifier:
        return "model"
    return identifier if identifier[0].isalpha() else f"m{identifier}"[:_LONGEST]


def check_prefix(prefix: str) -> str:
    """The prefix a user asks for; `InputError` if it is no identifier."""
    if not _IDENTIFIER.fullmatch(prefix):
        raise InputError(
            f"prefix '{prefix}' is no name that functions of C can begin with; letters, digits and "
            "'_' are expected, a letter first, 64 at most"
        )
    return prefix
