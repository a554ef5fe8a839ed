"""Compiled objects on disk, named by the content they were made from.

A file is written under a temporary name and renamed, so readers never see half of one and any
number of processes may share the folder. It starts with the SHA-256 of its key and of the object
behind it: one that was damaged, or put under another's name, is made anew. Objects are machine code
that will be run, so only files that this user (or root) owns and nobody else may write are read. A
full or read-only disk, or no home, costs the cache, never the job.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from tilesmith.search_space.support.files import cache_folder

ENVIRONMENT = "TILESMITH_CACHE"
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Where objects are kept: `$TILESMITH_CACHE`, else the user's cache folder."""
    return cache_folder(ENVIRONMENT, "objects")


def load(key: str) -> bytes | None:
    """The object of that key, or None if there is none, or none to be trusted."""
    try:
        with _path(key).open("rb") as stream:
            if not is_ours(os.fstat(stream.fileno())):
                return None
            stored = stream.read()
    except (OSError, RuntimeError):  # RuntimeError: no home
        return None
    digest, content = stored[:_DIGEST], stored[_DIGEST:]
    return content if _digest(key, content) == digest else None


def store(key: str, content: bytes) -> None:
    """Keep an object; failures to write are ignored (see the module's docstring)."""
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(_digest(key, content) + content)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise


def _path(key: str) -> Path:
    return folder() / key[:2] / f"{key}.o"


def _digest(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).digest()


def is_ours(status: os.stat_result) -> bool:
    """Whether nobody but this user (or root) can have written the file."""
    if not hasattr(os, "getuid"):  # Windows: the profile folder's own rights have to do
        return True
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid in (os.getuid(), 0) and not others_write
