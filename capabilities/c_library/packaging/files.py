"""The files of a library: what is asked for, the header beside it, what build systems read of it
(`package`), perhaps its weights.

Invariant: each appears whole, under its name, or not at all; the library last.
"""

import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from tilesmith.capabilities.c_library.code.plan import LibraryPlan
from tilesmith.capabilities.c_library.code.weights import head_of, write_weights
from tilesmith.capabilities.c_library.packaging.building import Built, build
from tilesmith.capabilities.c_library.packaging.elf import Merged
from tilesmith.capabilities.c_library.packaging.header import header
from tilesmith.capabilities.c_library.packaging.linking import link, linker_of
from tilesmith.capabilities.c_library.packaging.package import config, pkg_config
from tilesmith.compiler.backends.shipping import header_file, package_files
from tilesmith.search_space.support.files import unwritable, written

_MAGIC = b"!<arch>\n"


def write_archive(stream: BinaryIO, member: str, content: Merged, names: Sequence[str]) -> None:
    """Write a static library of one object, byte for byte the same; errors are the stream's.

    Source: `ar(5)` and binutils' documentation of archives, System V's variant with a table of
    names.

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


def write_files(plan: LibraryPlan, kind: str, output: Path) -> None:
    """Write the library ("library", "object" or "archive"), its header, packages and weights.

    Raises:
        InputError: one cannot be written.
        DependencyError: nothing here links, and a shared library is asked for.
        JobError: the linker fails, or the disk is full.
    """
    linker = linker_of(plan.target) if kind == "library" else ()
    head = head_of(plan) if plan.file else b""
    built = build(plan, head)
    if plan.file:
        with written(output.parent / plan.file) as stream:
            write_weights(stream, plan, head)
    with written(header_file(output)) as stream:
        stream.write(header(plan).encode())
    texts = (config(plan, kind, output), pkg_config(plan, kind, output))
    for path, text in zip(package_files(output), texts, strict=True):
        with written(path) as stream:
            stream.write(text.encode())
    with written(output) as stream:
        if kind == "object":
            built.object.write(stream)
        elif kind == "archive":
            write_archive(stream, "model.o", built.object, built.names)
        else:
            _linked(built, linker, output, stream)
    if kind == "library":
        mode = output.stat().st_mode
        output.chmod(mode | (mode & 0o444) >> 2)


def _linked(built: Built, linker: tuple[str, ...], output: Path, stream: BinaryIO) -> None:
    """Beside the output, where there is room for it if anywhere."""
    try:
        with tempfile.TemporaryDirectory(dir=output.absolute().parent, prefix=".") as name:
            folder = Path(name)
            with (folder / "model.o").open("wb") as opened:
                built.object.write(opened)
            link(linker, folder / "model.o", folder / "model.so", output.name)
            (folder / "model.o").unlink()
            with (folder / "model.so").open("rb") as file:
                while chunk := file.read(1 << 22):
                    stream.write(chunk)
    except OSError as error:
        raise unwritable(output, error) from error
