"""Weights in a file of their own, which processes map and so share, and how a library finds them.

The file: `MAGIC`, its format (i64), the number of bytes of weights (i64), the SHA-256 of the
weights, nothing up to `HEAD_BYTES`; the weights. A library knows the head of its own file, and maps
no other.
"""

import hashlib
from typing import BinaryIO

import numpy as np

from tilesmith.capabilities.c_library.code.performing import WEIGHTS_POINTER
from tilesmith.capabilities.c_library.code.plan import LibraryPlan
from tilesmith.capabilities.c_library.code.processor import able
from tilesmith.capabilities.c_library.code.status import ARGUMENT, NOT_READY, WEIGHTS
from tilesmith.codegen.compiled.routines import (
    Address,
    External,
    Int32,
    atomic_load64,
    exchange64,
    load8,
    load64,
    replace64,
    room,
    routine,
    routines_text,
    store64,
)

MAGIC = b"TILESMITH WEIGHTS\n"
HEAD_BYTES = 4096
"""A page, so that weights begin at one."""
_SEEN = 96

SYMBOL = "tilesmith.weights"
"""The weights themselves, where they are in the library."""

INSIDE = POINTER = HEAD = SEEN = FILE_BYTES = NBYTES = SUM = SUMS = 0
"""Of a plan: see `weights_text`."""

open_ = External("open", "i32 (ptr, i32, ...)")
close = External("close", "i32 (i32)")
lseek = External("lseek", "i64 (i32, i64, i32)")
mmap = External("mmap", "ptr (ptr, i64, i32, i32, i32, i64)")
munmap = External("munmap", "i32 (ptr, i64)")
memcmp = External("memcmp", "i32 (ptr, ptr, i64)")


@routine
def ready(where: Address) -> Int32:
    """Whether the processor is asked and the weights are there, and where."""
    code = able()
    if code != 0:
        return code
    weights = atomic_load64(POINTER)
    store64(where, weights)
    if weights == 0:
        return NOT_READY
    return 0


@routine
def init(file: Address) -> Int32:
    code = ready(room(8))
    if INSIDE:
        return code
    if code != NOT_READY:
        return code
    if file == 0:
        return ARGUMENT
    handle = open_(file, 524288)  # O_RDONLY | O_CLOEXEC
    if handle < 0:
        return WEIGHTS
    if lseek(handle, 0, 2) != FILE_BYTES:  # SEEK_END
        close(handle)
        return WEIGHTS
    memory = mmap(0, FILE_BYTES, 1, 1, handle, 0)  # PROT_READ, MAP_SHARED
    close(handle)
    if memory == -1:
        return WEIGHTS
    if memcmp(memory, HEAD, SEEN) != 0:
        munmap(memory, FILE_BYTES)
        return WEIGHTS
    if not replace64(POINTER, 0, memory + HEAD_BYTES):  # another thread was first
        munmap(memory, FILE_BYTES)
    return 0


@routine
def end() -> None:
    if INSIDE:
        return
    old = exchange64(POINTER, 0)
    if old != 0:
        munmap(old - HEAD_BYTES, FILE_BYTES)


@routine
def verify() -> Int32:
    """Whether the sums over the weights are what they were (`sums_of`)."""
    where = room(8)
    code = ready(where)
    if code != 0:
        return code
    weights = load64(where)
    one = 0
    two = 0
    for n in range(NBYTES // 8):
        one += load64(weights + 8 * n)
        two += one
    for n in range(NBYTES // 8 * 8, NBYTES):
        one += load8(weights + n)
        two += one
    if one == SUM and two == SUMS:
        return 0
    return WEIGHTS


_CHUNK = 1 << 17
"""Words summed up at once."""


def sums_of(plan: LibraryPlan) -> tuple[int, int]:
    """The sum of all 64-bit words of the weights (of the bytes behind the last one), and the sum of
    the sums up to each, modulo 2**64: Fletcher's checksum (IEEE Transactions on Communications 30,
    1982), which one pass at the speed of memory finds again."""
    one = two = 0
    rest = b""

    def take(words: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> None:
        nonlocal one, two
        for start in range(0, words.size, _CHUNK):
            part = words[start : start + _CHUNK]
            places = np.arange(part.size, 0, -1, dtype=np.uint64)
            with np.errstate(over="ignore"):
                behind, total = int((part * places).sum()), int(part.sum())
            one, two = one + total, two + part.size * one + behind

    for piece in plan.weights:
        view = memoryview(piece).cast("B")
        fill = min(-len(rest) % 8, len(view)) if rest else 0
        rest, view = rest + bytes(view[:fill]), view[fill:]
        if len(rest) == 8:
            take(np.frombuffer(rest, np.uint64))
            rest = b""
        if whole := len(view) // 8 * 8:
            take(np.frombuffer(view[:whole], np.uint64))
        rest += bytes(view[whole:])
    for byte in rest:
        one += byte
        two += one
    return one % (1 << 64), two % (1 << 64)


def head_of(plan: LibraryPlan) -> bytes:
    """The first page of the file of weights."""
    digest = hashlib.sha256()
    for piece in plan.weights:
        digest.update(memoryview(piece).cast("B"))
    numbers = (1).to_bytes(8, "little") + plan.weight_bytes.to_bytes(8, "little")
    return (MAGIC + numbers + digest.digest()).ljust(HEAD_BYTES, b"\0")


def write_weights(stream: BinaryIO, plan: LibraryPlan, head: bytes) -> None:
    """Write the file; errors are the stream's."""
    stream.write(head)
    for piece in plan.weights:
        stream.write(memoryview(piece).cast("B"))


def weights_text(plan: LibraryPlan, head: bytes) -> str:
    """How the library comes to its weights; `head` is empty where they are inside."""
    one, two = (n - (1 << 64) if n >> 63 else n for n in sums_of(plan))
    names: dict[str, int | str] = {
        "INSIDE": int(not head), "POINTER": f"@{WEIGHTS_POINTER}", "HEAD": f"@{SYMBOL}.head",
        "SEEN": _SEEN, "FILE_BYTES": HEAD_BYTES + plan.weight_bytes,
        "NBYTES": plan.weight_bytes, "SUM": one, "SUMS": two,
    }  # fmt: skip
    text = f"@{WEIGHTS_POINTER} = hidden global ptr @{SYMBOL}\n"
    text += f"@{SYMBOL} = external hidden constant i8\n"
    if head:
        shown = "".join(f"\\{byte:02X}" for byte in head[:_SEEN])
        text = f"@{WEIGHTS_POINTER} = hidden global ptr null\n"
        text += f'@{SYMBOL}.head = internal constant [{_SEEN} x i8] c"{shown}"\n'
    exported = {one.symbol: f"{plan.prefix}_{one.symbol}" for one in (init, end, verify)}
    return text + routines_text((ready, init, end, verify), names, exported)
