"""Files that jobs read, which end, and write: checked before the work, whole or absent after it.

Invariants: a file appears under its name only when all of it is written; a device, a pipe or a
terminal is written into as it is; what went wrong is one sentence that names the path.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tilesmith.search_space.support.errors import InputError, JobError, TilesmithError

_NOT_OF_THE_INPUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EPIPE)


def is_input_mistake(error: OSError) -> bool:
    """Whether another path would mend it; a full disk or a closed pipe it would not."""
    return error.errno not in _NOT_OF_THE_INPUT


def ending(path: Path) -> Path:
    """Return a path whose contents end: reading a device such as /dev/zero, or a pipe that nobody
    writes into, would not.

    Raises:
        OSError: there is nothing, or a device, a pipe or a socket.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading says what folders are
        pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        kind = "a pipe" if pipe else "a device"
        raise OSError(errno.ENODEV, f"it is {kind}, and a file is expected", str(path))
    return path


def check_output(path: Path, *sources: str | Path) -> None:
    """Refuse a path that cannot be written, before any work is done for it.

    Args:
        sources: files that the job reads and that must outlast it.

    Raises:
        InputError: the folder is missing or read-only, or the path is a folder or a source.
    """
    try:
        _check(path, sources)
    except OSError as error:  # a name too long, a loop of links
        raise unwritable(path, error) from error


def _check(path: Path, sources: tuple[str | Path, ...]) -> None:
    folder = path.absolute().parent
    if path.is_dir():
        raise InputError(f"'{path}' cannot be written: it is a folder; name a file in it")
    if not folder.is_dir():
        raise InputError(f"'{path}' cannot be written: its folder does not exist")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"'{path}' cannot be written: it is read-only, or its folder is")
    for source in map(Path, sources):  # a database may be a URL, which is no file
        if path.exists() and source.exists() and path.samefile(source):
            raise InputError(f"'{path}' is what would be read; give the output another name")


def cache_folder(variable: str, name: str) -> Path:
    """Where what can be made again is kept: what an environment variable says, else a folder of
    that name in the user's cache.

    Raises:
        RuntimeError: the user has no home.
    """
    if chosen := os.environ.get(variable):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tilesmith" / name


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A stream for the contents of `path`, which appears when the block ends without an error.

    Raises:
        InputError: the path cannot be written.
        JobError: the disk is full or failed, or a pipe's reader went away.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as stream:
                yield stream
        else:
            with _replacing(path) as stream:
                yield stream
    except OSError as error:
        raise unwritable(path, error) from error


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    final = path.resolve()  # a link stays one: what it points to is replaced
    mode = final.stat().st_mode & 0o777 if final.exists() else 0o644
    handle, name = tempfile.mkstemp(dir=final.parent, prefix=".", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        Path(name).chmod(mode)
        Path(name).replace(final)
    except BaseException:  # Ctrl-C too leaves no half of a file behind
        with suppress(OSError):
            Path(name).unlink()
        raise


def unwritable(path: Path, error: OSError) -> TilesmithError:
    """What to raise for a failed write: the user's mistake, or the machine's failure."""
    sentence = f"'{path}' cannot be written: {error.strerror or error}"
    return InputError(sentence) if is_input_mistake(error) else JobError(sentence)
