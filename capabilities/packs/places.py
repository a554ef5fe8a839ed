"""Which packs a job takes: those named, else the environment's, and those that are installed.

Installed are the files in the room `schedule_packs` of every extension: ours, and those of other
packages (`search_space.support.extensions`), so that a team ships its own as a package.

Invariants: a pack that somebody named comes before one that is installed, and has to be readable;
each file is read once a process; where $TILESMITH_TRUSTED_KEY names a public key, a pack that
somebody named has its signature (those that are installed came with code); the word `none` means
no pack at all.
"""

import os
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from tilesmith.capabilities.packs.file_format import SUFFIX, pack_of, read_pack
from tilesmith.capabilities.packs.pack import Pack
from tilesmith.compiler.artifact.signature import trusted_key
from tilesmith.search_space.support.extensions import import_extensions, rooms

VARIABLE = "TILESMITH_PACKS"
"""Files of packs, separated as in PATH; `none` for none, those that are installed included."""

ROOM = "schedule_packs"

NONE = "none"


def packs_for(named: Sequence[str | Path] | None) -> list[Pack]:
    """The packs that a job takes, the first to be asked first.

    Args:
        named: files, or the word `none`; None: the environment's.

    Raises:
        InputError: one cannot be read.
    """
    files = [str(one) for one in named] if named is not None else _of_environment()
    if NONE in files:
        return []
    return [*map(_read, files), *installed_packs()]


def installed_packs() -> list[Pack]:
    """The packs of this installation and of its extensions; errors as `packs_for`."""
    import_extensions()
    return [pack for room in rooms(ROOM) for pack in _packs_in(room)]


def _of_environment() -> list[str]:
    return [word for word in os.environ.get(VARIABLE, "").split(os.pathsep) if word]


def _read(file: str) -> Pack:
    try:
        changed = Path(file).stat().st_mtime_ns
    except OSError:
        changed = 0  # reading it says what is wrong
    return _read_once(file, changed, trusted_key(None))


@lru_cache(maxsize=16)
def _read_once(file: str, changed: int, key: Path | None) -> Pack:
    return read_pack(Path(file), key)


@lru_cache
def _packs_in(room: str) -> tuple[Pack, ...]:
    folder: Traversable = resources.files(room)
    files = sorted((f for f in folder.iterdir() if f.name.endswith(SUFFIX)), key=lambda f: f.name)
    return tuple(pack_of(file.read_bytes(), file.name) for file in files)
