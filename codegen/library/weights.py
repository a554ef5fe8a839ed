"""Weights in a file of their own, which processes map and so share, and how a library finds them.

The file: `MAGIC`, its format (i64), the number of bytes of weights (i64), the SHA-256 of the
weights, nothing up to `HEAD_BYTES`; the weights. A library knows the head of its own file, and maps
no other.
"""

from __future__ import annotations

import hashlib
from typing import BinaryIO

from tilesmith.codegen.library.performing import WEIGHTS_POINTER
from tilesmith.codegen.library.plan import Plan
from tilesmith.codegen.library.runtime import WEIGHTS
from tilesmith.codegen.library.status import CODES

MAGIC = b"TILESMITH WEIGHTS\n"
HEAD_BYTES = 4096
"""A page, so that weights begin at one."""
_SEEN = 96

_INSIDE = """
@{weights} = external hidden constant i8
@{pointer} = hidden global ptr @{weights}

define i32 @{p}_init(ptr %file) {{
  %able = call i32 @able()
  ret i32 %able
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
  %able = call i32 @able()
  %unable = icmp ne i32 %able, 0
  br i1 %unable, label %cannot, label %can
cannot:
  ret i32 %able
can:
  %known = load atomic ptr, ptr @{pointer} acquire, align 8
  %there = icmp ne ptr %known, null
  br i1 %there, label %done, label %look
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


def head_of(plan: Plan) -> bytes:
    """The first page of the file of weights."""
    digest = hashlib.sha256()
    for piece in plan.weights:
        digest.update(memoryview(piece).cast("B"))
    numbers = (1).to_bytes(8, "little") + plan.weight_bytes.to_bytes(8, "little")
    return (MAGIC + numbers + digest.digest()).ljust(HEAD_BYTES, b"\0")


def write_weights(stream: BinaryIO, plan: Plan, head: bytes) -> None:
    """Write the file; errors are the stream's."""
    stream.write(head)
    for piece in plan.weights:
        stream.write(memoryview(piece).cast("B"))


def weights_text(plan: Plan, head: bytes) -> str:
    """How the library comes to its weights; `head` is empty where they are inside."""
    names = {"p": plan.prefix, "weights": WEIGHTS, "pointer": WEIGHTS_POINTER, **CODES}
    if not head:
        return _INSIDE.format(**{k: v for k, v in names.items() if k != "WEIGHTS"})
    shown = "".join(f"\\{byte:02X}" for byte in head[:_SEEN])
    return _MAPPED.format(
        **names, seen=_SEEN, head=shown, size=HEAD_BYTES + plan.weight_bytes, head_bytes=HEAD_BYTES
    )
