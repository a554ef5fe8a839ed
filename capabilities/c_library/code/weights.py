"""Weights in a file of their own, which processes map and so share, and how a library finds them.

The file: `MAGIC`, its format (i64), the number of bytes of weights (i64), the SHA-256 of the
weights, nothing up to `HEAD_BYTES`; the weights. A library knows the head of its own file, and maps
no other.
"""

from __future__ import annotations

import hashlib
from typing import BinaryIO

import numpy as np

from tilesmith.capabilities.c_library.code.performing import WEIGHTS_POINTER
from tilesmith.capabilities.c_library.code.plan import LibraryPlan
from tilesmith.capabilities.c_library.code.runtime import WEIGHTS
from tilesmith.capabilities.c_library.code.status import CODES

MAGIC = b"TILESMITH WEIGHTS\n"
HEAD_BYTES = 4096
"""A page, so that weights begin at one."""
_SEEN = 96

_READY = """
define internal i32 @ready(ptr %where) {{
entry:
  %able = call i32 @able()
  %unable = icmp ne i32 %able, 0
  br i1 %unable, label %cannot, label %can
cannot:
  ret i32 %able
can:
  %weights = load atomic ptr, ptr @{pointer} acquire, align 8
  store ptr %weights, ptr %where
  %absent = icmp eq ptr %weights, null
  %state = select i1 %absent, i32 {NOT_READY}, i32 0
  ret i32 %state
}}
"""
"""Whether the processor is asked and the weights are there, and where."""

_INSIDE = """
@{weights} = external hidden constant i8
@{pointer} = hidden global ptr @{weights}

define i32 @{p}_init(ptr %file) {{
  %known = alloca ptr
  %state = call i32 @ready(ptr %known)
  ret i32 %state
}}

define void @{p}_end() {{
  ret void
}}
"""

_MAPPED = """
@{pointer} = hidden global ptr null
@{weights}.head = internal constant [{seen} x i8] c"{head}"

declare i32 @open(ptr, i32, ...)
declare i32 @close(i32)
declare i64 @lseek(i32, i64, i32)
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i32 @memcmp(ptr, ptr, i64)

define i32 @{p}_init(ptr %file) {{
entry:
  %known = alloca ptr
  %state = call i32 @ready(ptr %known)
  %absent = icmp eq i32 %state, {NOT_READY}
  br i1 %absent, label %look, label %told
told:
  ret i32 %state
look:
  %unnamed = icmp eq ptr %file, null
  br i1 %unnamed, label %wrong, label %read
wrong:
  ret i32 {ARGUMENT}
read:
  %handle = call i32 (ptr, i32, ...) @open(ptr %file, i32 524288)
  %closed = icmp slt i32 %handle, 0
  br i1 %closed, label %bad, label %measure
measure:
  %size = call i64 @lseek(i32 %handle, i64 0, i32 2)
  %whole = icmp eq i64 %size, {size}
  br i1 %whole, label %map, label %other
other:
  %ignored = call i32 @close(i32 %handle)
  br label %bad
map:
  %memory = call ptr @mmap(ptr null, i64 {size}, i32 1, i32 1, i32 %handle, i64 0)
  %ignored.too = call i32 @close(i32 %handle)
  %number = ptrtoint ptr %memory to i64
  %failed = icmp eq i64 %number, -1
  br i1 %failed, label %bad, label %compare
compare:
  %difference = call i32 @memcmp(ptr %memory, ptr @{weights}.head, i64 {seen})
  %same = icmp eq i32 %difference, 0
  br i1 %same, label %keep, label %unmap
unmap:
  %gone = call i32 @munmap(ptr %memory, i64 {size})
  br label %bad
bad:
  ret i32 {WEIGHTS}
keep:
  %weights = getelementptr i8, ptr %memory, i64 {head_bytes}
  %pair = cmpxchg ptr @{pointer}, ptr null, ptr %weights acq_rel acquire
  %first = extractvalue {{ ptr, i1 }} %pair, 1
  br i1 %first, label %done, label %late
late:
  %twice = call i32 @munmap(ptr %memory, i64 {size})
  br label %done
done:
  ret i32 0
}}

define void @{p}_end() {{
entry:
  %old = atomicrmw xchg ptr @{pointer}, ptr null acq_rel
  %none = icmp eq ptr %old, null
  br i1 %none, label %done, label %unmap
unmap:
  %start = getelementptr i8, ptr %old, i64 -{head_bytes}
  %gone = call i32 @munmap(ptr %start, i64 {size})
  br label %done
done:
  ret void
}}
"""
"""open: O_RDONLY | O_CLOEXEC; lseek: SEEK_END; mmap: PROT_READ, MAP_SHARED."""


_VERIFY = """
define i32 @{p}_verify() {{
entry:
  %there = alloca ptr
  %state = call i32 @ready(ptr %there)
  %unready = icmp ne i32 %state, 0
  br i1 %unready, label %told, label %look
told:
  ret i32 %state
look:
  %weights = load ptr, ptr %there
  br label %words
words:
  %n = phi i64 [ 0, %look ], [ %n.next, %word ]
  %one = phi i64 [ 0, %look ], [ %one.next, %word ]
  %two = phi i64 [ 0, %look ], [ %two.next, %word ]
  %more = icmp ult i64 %n, {words}
  br i1 %more, label %word, label %tail
word:
  %at = getelementptr i64, ptr %weights, i64 %n
  %found = load i64, ptr %at, align 8
  %one.next = add i64 %one, %found
  %two.next = add i64 %two, %one.next
  %n.next = add i64 %n, 1
  br label %words
tail:
  %b = phi i64 [ {first}, %words ], [ %b.next, %byte ]
  %three = phi i64 [ %one, %words ], [ %three.next, %byte ]
  %four = phi i64 [ %two, %words ], [ %four.next, %byte ]
  %left = icmp ult i64 %b, {nbytes}
  br i1 %left, label %byte, label %compare
byte:
  %byte.at = getelementptr i8, ptr %weights, i64 %b
  %narrow = load i8, ptr %byte.at
  %wide = zext i8 %narrow to i64
  %three.next = add i64 %three, %wide
  %four.next = add i64 %four, %three.next
  %b.next = add i64 %b, 1
  br label %tail
compare:
  %same.one = icmp eq i64 %three, {sum}
  %same.two = icmp eq i64 %four, {sums}
  %same = and i1 %same.one, %same.two
  %found.status = select i1 %same, i32 0, i32 {WEIGHTS}
  ret i32 %found.status
}}
"""

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


def _verify(plan: LibraryPlan) -> str:
    one, two = (n - (1 << 64) if n >> 63 else n for n in sums_of(plan))
    return _VERIFY.format(
        p=plan.prefix, pointer=WEIGHTS_POINTER, words=plan.weight_bytes // 8,
        first=plan.weight_bytes // 8 * 8, nbytes=plan.weight_bytes, sum=one, sums=two,
        NOT_READY=CODES["NOT_READY"], WEIGHTS=CODES["WEIGHTS"],
    )  # fmt: skip


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
    names = {"p": plan.prefix, "weights": WEIGHTS, "pointer": WEIGHTS_POINTER, **CODES}
    if not head:
        inside = _INSIDE.format(**{k: v for k, v in names.items() if k != "WEIGHTS"})
        return _READY.format(**names) + inside + _verify(plan)
    shown = "".join(f"\\{byte:02X}" for byte in head[:_SEEN])
    mapped = _MAPPED.format(
        **names, seen=_SEEN, head=shown, size=HEAD_BYTES + plan.weight_bytes, head_bytes=HEAD_BYTES
    )
    return _READY.format(**names) + mapped + _verify(plan)
