"""What variables `TILESMITH_*` of the environment may say: one table, looked at before a command
does anything, so that no value is taken for another in silence.

Each variable is read where it matters, which other folders and users of the Python API do without
this table. Invariants: an empty variable is one that is not set; a name that is not in the table is
nobody's and left alone; nothing is imported, opened or made.
"""

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilesmith.search_space.support.errors import InputError

_DAY_S = 86400


@dataclass(frozen=True)
class Variable:
    """What a variable may say.

    Attributes:
        wanted: what it has to be, as the sentence about another value ends.
        accepts: whether a value is that; a `ValueError` says no, too.
        secret: whether a value is not to be printed.
    """

    wanted: str
    accepts: Callable[[str], bool]
    secret: bool = False


def _one_of(*words: str) -> Variable:
    named = " or ".join((", ".join(map(repr, words[:-1])), repr(words[-1])))
    return Variable(named, words.__contains__)


def _is_file(text: str) -> bool:
    return Path(text).is_file()


def _may_be_folder(text: str) -> bool:
    """Whether a folder is there, or nothing is and it could be made."""
    path = Path(text).absolute()
    return next(place for place in (path, *path.parents) if place.exists()).is_dir()


def _are_packs(text: str) -> bool:
    return text == "none" or all(map(_is_file, filter(None, text.split(os.pathsep))))


_FOLDER = "a folder, or the name of one to be made"

VARIABLES: Mapping[str, Variable] = {
    "TILESMITH_CACHE": Variable(_FOLDER, _may_be_folder),
    "TILESMITH_CACHE_MIB": Variable("a whole number of MiB, 0 or more", lambda n: int(n) >= 0),
    "TILESMITH_CALIBRATION": Variable(
        f"'off' or {_FOLDER}", lambda text: text == "off" or _may_be_folder(text)
    ),
    "TILESMITH_CORES": Variable(_FOLDER, _may_be_folder),
    "TILESMITH_CPU": Variable("a file that describes a CPU", _is_file),
    "TILESMITH_DASHBOARD_TOKEN": Variable(
        "16 printable characters or more", lambda t: len(t) >= 16 and t.isprintable(), secret=True
    ),
    "TILESMITH_DATABASE": Variable("a file or a URL", str.isprintable, secret=True),
    "TILESMITH_HOST": _one_of("auto", "onnxruntime", "reference"),
    "TILESMITH_LINKER": Variable(
        "a command that is installed", lambda text: bool(shutil.which(shlex.split(text)[0]))
    ),
    "TILESMITH_MACHINE": Variable(
        "a name of at most 200 printable characters",
        lambda text: text.isprintable() and len(text) <= 200,
    ),
    "TILESMITH_PACKS": Variable("'none', or files of packs with ':' between them", _are_packs),
    "TILESMITH_RAY_START_SECONDS": Variable(
        "a number of seconds above 0, a day at most", lambda text: 0 < float(text) <= _DAY_S
    ),
    "TILESMITH_TRUSTED_KEY": Variable("a file with a public key", _is_file),
    "TILESMITH_TUNE": _one_of("background", "never"),
}


def stated(name: str) -> str:
    """What a variable of the table says, "" where it is not set.

    Raises:
        InputError: it says what it may not; the sentence names it, and what is wanted.
    """
    given, variable = os.environ.get(name, ""), VARIABLES[name]
    if given and not _accepted(variable, given):
        shown = "something else" if variable.secret else repr(given)[:100]
        raise InputError(f"{name} is {shown}, not {variable.wanted}")
    return given


def check_environment() -> None:
    """See that every variable that is set says what it may; errors as `stated`."""
    for name in VARIABLES:
        stated(name)


def _accepted(variable: Variable, given: str) -> bool:
    try:
        return variable.accepts(given)
    except (ValueError, IndexError, OSError):
        return False
