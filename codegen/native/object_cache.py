"""Compiled objects on disk, named by the content they were made from.

A file is written under a temporary name and renamed, so readers never see half of one and any
number of processes may share the folder. It starts with the SHA-256 of the object behind it: one
that was damaged is made anew. A full or read-only disk costs the cache, never the job.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

ENVIRONMENT = "TILESMITH_CACHE"
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Where objects are kept: `$TILESMITH_CACHE`, else the user's cache folder."""
    if chosen := os.environ.get(ENVIRONMENT):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tilesmith" / "objects"


def load(key: str) -> bytes | None:
    """The object of that key, or None if there is none or it is damaged."""
    try:
        found = (folder() / key[:2] / f"{key}.o").read_bytes()
    except OSError:
        return None
    digest, content = found[:_DIGEST], found[_DIGEST:]
    return content if hashlib.sha256(content).digest() == digest else None


def store(key: str, content: bytes) -> None:
    """Keep an object; failures to write are ignored (see the module's docstring)."""
    path = folder() / key[:2] / f"{key}.o"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(hashlib.sha256(content).digest() + content)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
