"""The file of an artifact: members of a zip archive, written and read; weights mapped.

Members are stored as they are, and `constants.bin` begins on a page, so that weights of some size
are not read but mapped: processes that load one file share its pages, and a model is loaded before
its weights are. Two models of one file in a process share the very same memory.

What is verified when: sizes and the digest over all members' checksums at every reading; the
members that are read, by their checksums, as they are read; mapped weights, by theirs, the first
time that this user meets the file, and again whenever the file's times, size or place have changed
(`_seen`). A file that is overwritten in place while it is mapped changes under whoever runs it:
replace files, as `save` does, or load copies (`mapped=False`).

Invariant: weights that are shared are never written.
"""

import contextlib
import hashlib
import mmap
import os
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, BinaryIO
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host import object_cache
from tilesmith.codegen.host.memory import ALIGNMENT, aligned_bytes
from tilesmith.compiler.recipe.program import CodeObject
from tilesmith.search_space.support.files import written

DIGEST = "sha256"
"""Name of the member that seals all others."""

CONSTANTS = "constants.bin"

_PAGE = 1 << 12
_PADDING = 0xD935
"""Number of the extra field that moves a member to a page: the one that Android's zipalign uses."""

_MAPPED = 1 << 20
"""Bytes from which on weights are mapped: fewer are quickly read, and their map is of no use."""

_RECENT_S = 3.0
"""Seconds for which a file counts as being changed: times of files are no finer than a tick, so
that a change right after another may leave them as they were."""

_CHUNK = 1 << 22

_HEADER = struct.Struct("<4s22xHH")
"""Of a member in the file: its signature, and the lengths of its name and its extra fields."""


Members = tuple[str, Iterable[NDArray[np.uint8]], Iterable[CodeObject], Iterable[bytes]]
"""Of an artifact: manifest, constants in pieces, code objects, host nodes."""


def write_members(
    path: Path,
    manifest: str,
    constants: Iterable[NDArray[np.uint8]],
    codes: Iterable[CodeObject],
    protos: Iterable[bytes],
) -> None:
    """Write the members of an artifact and their digest; errors as
    `search_space.support.files.written`.

    Args:
        constants: in pieces, one after the other.
    """
    with written(path) as stream:
        write_archive(stream, manifest, constants, codes, protos)


def write_archive(
    stream: BinaryIO,
    manifest: str,
    constants: Iterable[NDArray[np.uint8]],
    codes: Iterable[CodeObject],
    protos: Iterable[bytes],
) -> None:
    """The same into a stream."""
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo("manifest.json"), manifest)  # a bare name has the time
        with archive.open(_on_a_page(archive), "w", force_zip64=True) as member:
            for piece in constants:
                member.write(piece.data)
        for number, code in enumerate(codes):
            archive.writestr(zipfile.ZipInfo(f"code/{number}.o"), code.code)
        for number, proto in enumerate(protos):
            archive.writestr(zipfile.ZipInfo(f"host/{number}.onnx"), proto)
        archive.writestr(zipfile.ZipInfo(DIGEST), digest(archive))


def digest(archive: zipfile.ZipFile) -> str:
    """Of every member by name, size and checksum (which reading a member verifies)."""
    sha256 = hashlib.sha256()
    for member in archive.infolist():
        if member.filename != DIGEST:
            sha256.update(f"{member.filename} {member.file_size} {member.CRC:08x}\n".encode())
    return sha256.hexdigest()


def _on_a_page(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The constants' entry, with as much padding as moves its contents to a page."""
    info = zipfile.ZipInfo(CONSTANTS)
    info.CRC = 0
    start = archive.start_dir + len(info.FileHeader(zip64=True)) + 4
    info.extra = struct.pack("<HH", _PADDING, -start % _PAGE) + bytes(-start % _PAGE)
    return info


def constants_of(archive: zipfile.ZipFile, mapped: bool) -> NDArray[np.uint8]:
    """The weights: in the file's own pages, or read straight into aligned memory.

    Args:
        mapped: whether they may stay in the file.

    Raises:
        zipfile.BadZipFile: they are not what was written.
    """
    info = archive.getinfo(CONSTANTS)
    if mapped and info.file_size >= _MAPPED and archive.fp is not None:
        with contextlib.suppress(OSError):  # what is read from is no file, or has no pages
            mapped_pages = _mapped_of(archive.fp, info)
            if mapped_pages is not None:
                return mapped_pages
    return _read(archive, info)


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[np.uint8]:
    size = info.file_size
    memory = aligned_bytes(max(ALIGNMENT, size))[:size]
    view, position = memory.data, 0
    content = hashlib.sha256() if size >= _MAPPED else None
    with archive.open(info) as stream:
        while chunk := stream.read(_CHUNK):
            view[position : position + len(chunk)] = chunk
            position += len(chunk)
            if content is not None:
                content.update(chunk)
    if content is None:
        return memory
    return _shared.setdefault(content.digest(), memory)


_shared: WeakValueDictionary[Any, NDArray[np.uint8]] = WeakValueDictionary()
"""Weights that some model has now: of files by what `_identity` says, of others by content."""


def _mapped_of(file: IO[bytes], info: zipfile.ZipInfo) -> NDArray[np.uint8] | None:
    """The member's bytes in the file's own pages; None where they cannot be had so."""
    state = os.fstat(file.fileno())
    start = _contents(file, info)
    if not stat.S_ISREG(state.st_mode) or start % ALIGNMENT:
        return None
    if start + info.file_size > state.st_size:
        raise zipfile.BadZipFile(f"{CONSTANTS} ends behind the file")
    identity = _identity(state, info, start)
    member = _shared.get(identity)
    if member is None:
        before = start % mmap.ALLOCATIONGRANULARITY
        size = info.file_size + before
        pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=start - before)
        with contextlib.suppress(AttributeError, OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
        member = np.frombuffer(pages, dtype=np.uint8, count=info.file_size, offset=before)
    recent = time.time() - max(state.st_mtime, state.st_ctime) < _RECENT_S
    if recent or not _seen(identity):
        if _checksum(member) != info.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file '{CONSTANTS}'")
        if not recent:
            object_cache.store(_mark(identity), b"")
    return _shared.setdefault(identity, member)


def _contents(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where the contents of a stored member begin.

    Raises:
        zipfile.BadZipFile: there is no such member there.
    """
    file.seek(info.header_offset)
    header = file.read(_HEADER.size)
    signature, name, extra = _HEADER.unpack(header) if len(header) == _HEADER.size else (b"", 0, 0)
    if signature != b"PK\x03\x04" or file.read(name) != info.filename.encode():
        raise zipfile.BadZipFile(f"no header of '{info.filename}' where it should be")
    return info.header_offset + _HEADER.size + int(name) + int(extra)


def _identity(state: os.stat_result, info: zipfile.ZipInfo, start: int) -> tuple[int, ...]:
    """What is another if the file is, or was changed: nobody can set the time of the last change
    of a file (ctime) to what it was."""
    where = state.st_dev, state.st_ino, state.st_size
    return *where, state.st_mtime_ns, state.st_ctime_ns, start, info.file_size, info.CRC


def _seen(identity: tuple[int, ...]) -> bool:
    """Whether this user has verified these very bytes before."""
    return object_cache.load(_mark(identity)) is not None


def _mark(identity: tuple[int, ...]) -> str:
    return hashlib.sha256(f"weights verified {identity}".encode()).hexdigest()


def _checksum(memory: NDArray[np.uint8]) -> int:
    checksum = 0
    for start in range(0, memory.size, _CHUNK):
        checksum = zlib.crc32(memory[start : start + _CHUNK].data, checksum)
    return checksum
