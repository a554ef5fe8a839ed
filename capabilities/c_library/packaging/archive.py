"""Static libraries (`ar`, System V's variant with a table of names), byte for byte the same.

Source: the format as `ar(5)` and binutils' documentation of its archives have it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import BinaryIO

from tilesmith.capabilities.c_library.packaging.elf import Merged

_MAGIC = b"!<arch>\n"


def write_archive(stream: BinaryIO, member: str, content: Merged, names: Sequence[str]) -> None:
    """Write an archive of one object; errors are the stream's.

    Args:
        names: what the object defines for others.
    """
    texts = b"".join(name.encode() + b"\0" for name in names)
    size = 4 + 4 * len(names) + len(texts)
    texts += bytes(size % 2)
    start = len(_MAGIC) + 60 + size + size % 2
    stream.write(_MAGIC + _head("/", size + size % 2))
    stream.write(struct.pack(f">{len(names) + 1}I", len(names), *[start] * len(names)) + texts)
    stream.write(_head(f"{member}/", content.nbytes))
    content.write(stream)
    stream.write(b"\n" * (content.nbytes % 2))


def _head(name: str, size: int) -> bytes:
    """Name, time, owner, group, mode, size."""
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{size:<10}`\n".encode()
