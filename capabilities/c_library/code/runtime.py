"""The functions of a library that its users call, in LLVM's language.

What does not depend on the model is text here; `capabilities.c_library.code.running` writes the
run itself. All memory is the workspace's, which is made once: a run allocates nothing. Names here
stay inside the library but for those that begin with the model's prefix. Sources of numbers:
POSIX.1-2017, Linux's `uapi` headers (x86-64, AArch64 and RISC-V agree on those used), glibc's
manual.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.capabilities.c_library.code.performing import Texts
from tilesmith.capabilities.c_library.code.plan import (
    BUSY_AT,
    CAPACITY_AT,
    OWNED_AT,
    STATUS_AT,
    TEXT_AT,
    TEXT_BYTES,
    THREADS_AT,
    LibraryPlan,
    LibraryTensor,
)
from tilesmith.capabilities.c_library.code.processor import TEXT as PROCESSOR_TEXT
from tilesmith.capabilities.c_library.code.status import CODES, STATUS
from tilesmith.search_space.expressions.expression import as_expr

WEIGHTS = "tilesmith.weights"
"""The weights themselves, where they are in the library."""

_HUGE = 2 << 20

_COMMON = """
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare i32 @madvise(ptr, i64, i32)
declare i32 @snprintf(ptr, i64, ptr, ...)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

%tensor = type {{ ptr, ptr, i32, i32, ptr, i64 }}
@{p}_inputs.table = internal constant [{input_count} x %tensor] [{inputs}]
@{p}_outputs.table = internal constant [{output_count} x %tensor] [{outputs}]
@{p}_status.table = internal constant [{status_count} x ptr] [{status}]

define i64 @{p}_inputs() {{
  ret i64 {input_count}
}}

define i64 @{p}_outputs() {{
  ret i64 {output_count}
}}

define ptr @{p}_input(i64 %number) {{
  %known = icmp ult i64 %number, {input_count}
  %at = getelementptr %tensor, ptr @{p}_inputs.table, i64 %number
  %found = select i1 %known, ptr %at, ptr null
  ret ptr %found
}}

define ptr @{p}_output(i64 %number) {{
  %known = icmp ult i64 %number, {output_count}
  %at = getelementptr %tensor, ptr @{p}_outputs.table, i64 %number
  %found = select i1 %known, ptr %at, ptr null
  ret ptr %found
}}

define ptr @{p}_about() {{
  ret ptr {about}
}}

define ptr @{p}_status(i32 %status) {{
entry:
  %number = zext i32 %status to i64
  %known = icmp ult i64 %number, {status_count}
  br i1 %known, label %found, label %unknown
found:
  %at = getelementptr ptr, ptr @{p}_status.table, i64 %number
  %text = load ptr, ptr %at
  ret ptr %text
unknown:
  ret ptr {unknown}
}}

define ptr @{p}_error(ptr %workspace) {{
entry:
  %none = icmp eq ptr %workspace, null
  br i1 %none, label %without, label %with
without:
  %argument = call ptr @{p}_status(i32 {ARGUMENT})
  ret ptr %argument
with:
  %at = getelementptr i8, ptr %workspace, i64 {text_at}
  ret ptr %at
}}

define i64 @{p}_workspace_bytes() {{
  ret i64 {workspace_bytes}
}}

define i32 @{p}_create(i32 %threads, ptr %made) {{
entry:
  %box = alloca ptr
  %nowhere = icmp eq ptr %made, null
  br i1 %nowhere, label %wrong, label %get
wrong:
  ret i32 {ARGUMENT}
get:
  store ptr null, ptr %made
  %failed = call i32 @posix_memalign(ptr %box, i64 {alignment}, i64 {workspace_bytes})
  %none = icmp ne i32 %failed, 0
  br i1 %none, label %full, label %got
full:
  ret i32 {MEMORY}
got:
  %memory = load ptr, ptr %box
  {advise}
  %status = call i32 @{p}_create_in(ptr %memory, i64 {workspace_bytes}, i32 %threads, ptr %made)
  %good = icmp eq i32 %status, 0
  br i1 %good, label %own, label %give.back
own:
  %owned.at = getelementptr i8, ptr %memory, i64 {owned_at}
  store i64 1, ptr %owned.at
  ret i32 0
give.back:
  call void @free(ptr %memory)
  ret i32 %status
}}

define i32 @{p}_create_in(ptr %memory, i64 %bytes, i32 %threads, ptr %made) {{
entry:
  %nowhere = icmp eq ptr %made, null
  br i1 %nowhere, label %wrong, label %look
look:
  store ptr null, ptr %made
  %no.memory = icmp eq ptr %memory, null
  %number = ptrtoint ptr %memory to i64
  %rest = and i64 %number, 63
  %skewed = icmp ne i64 %rest, 0
  %small = icmp ult i64 %bytes, {least_bytes}
  %negative = icmp slt i32 %threads, 0
  %one = or i1 %no.memory, %skewed
  %two = or i1 %small, %negative
  %bad = or i1 %one, %two
  br i1 %bad, label %wrong, label %ask
wrong:
  ret i32 {ARGUMENT}
ask:
  %weights = alloca ptr
  %state = call i32 @ready(ptr %weights)
  %unready = icmp ne i32 %state, 0
  br i1 %unready, label %told, label %clear
told:
  ret i32 %state
clear:
  call void @llvm.memset.p0.i64(ptr align 64 %memory, i8 0, i64 {least_bytes}, i1 false)
  %capacity.at = getelementptr i8, ptr %memory, i64 {capacity_at}
  store i64 %bytes, ptr %capacity.at
  %asked = zext i32 %threads to i64
  %status = call i32 @start(ptr %memory, i64 %asked)
  %good = icmp eq i32 %status, 0
  br i1 %good, label %done, label %failed
done:
  store ptr %memory, ptr %made
  ret i32 0
failed:
  ret i32 %status
}}

define void @{p}_destroy(ptr %workspace) {{
entry:
  %none = icmp eq ptr %workspace, null
  br i1 %none, label %done, label %end
end:
  %threads.at = getelementptr i8, ptr %workspace, i64 {threads_at}
  %threads = load i64, ptr %threads.at
  call void @stop(ptr %workspace, i64 %threads)
  %owned.at = getelementptr i8, ptr %workspace, i64 {owned_at}
  %owned = load i64, ptr %owned.at
  %ours = icmp ne i64 %owned, 0
  br i1 %ours, label %give.back, label %done
give.back:
  call void @free(ptr %workspace)
  br label %done
done:
  ret void
}}

define internal void @index.fault(ptr %workspace, ptr %node, i64 %index, i64 %extent) {{
  %status.at = getelementptr i8, ptr %workspace, i64 {status_at}
  store i32 {INDEX}, ptr %status.at
  %text = getelementptr i8, ptr %workspace, i64 {text_at}
  %least = sub i64 0, %extent
  %most = sub i64 %extent, 1
  %written = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 {text_bytes}, ptr {index_text},
      ptr %node, i64 %index, i64 %extent, i64 %least, i64 %most)
  ret void
}}

define internal ptr @at.end(ptr %inputs, ptr %outputs, i64 %number, i64 %step) {{
  %is.input = icmp ult i64 %number, {input_count}
  %behind = sub i64 %number, {input_count}
  %base = select i1 %is.input, ptr %inputs, ptr %outputs
  %own = select i1 %is.input, i64 %number, i64 %behind
  %distance = mul i64 %own, %step
  %at = getelementptr i8, ptr %base, i64 %distance
  %found = load ptr, ptr %at
  ret ptr %found
}}

define internal void @refuse.overlaps(ptr %workspace, ptr %inputs, ptr %outputs, ptr %sizes) {{
entry:
  br label %outer
outer:
  %one = phi i64 [ {input_count}, %entry ], [ %next.one, %outer.next ]
  %more.outer = icmp ult i64 %one, {end_count}
  br i1 %more.outer, label %begin, label %done
begin:
  %first = call ptr @at.end(ptr %inputs, ptr %outputs, i64 %one, i64 8)
  %first.start = ptrtoint ptr %first to i64
  %first.at = getelementptr i64, ptr %sizes, i64 %one
  %first.size = load i64, ptr %first.at
  %first.end = add i64 %first.start, %first.size
  %empty = icmp eq i64 %first.size, 0
  br i1 %empty, label %outer.next, label %inner
inner:
  %two = phi i64 [ 0, %begin ], [ %next.two, %inner.next ]
  %more.inner = icmp ult i64 %two, %one
  br i1 %more.inner, label %compare, label %outer.next
compare:
  %second = call ptr @at.end(ptr %inputs, ptr %outputs, i64 %two, i64 8)
  %second.start = ptrtoint ptr %second to i64
  %second.at = getelementptr i64, ptr %sizes, i64 %two
  %second.size = load i64, ptr %second.at
  %second.end = add i64 %second.start, %second.size
  %some = icmp ne i64 %second.size, 0
  %before = icmp ult i64 %first.start, %second.end
  %behind = icmp ult i64 %second.start, %first.end
  %meet = and i1 %before, %behind
  %bad = and i1 %meet, %some
  br i1 %bad, label %fail, label %inner.next
inner.next:
  %next.two = add i64 %two, 1
  br label %inner
outer.next:
  %next.one = add i64 %one, 1
  br label %outer
fail:
  %status.at = getelementptr i8, ptr %workspace, i64 {status_at}
  store i32 {ARGUMENT}, ptr %status.at
  %text = getelementptr i8, ptr %workspace, i64 {text_at}
  %name = call ptr @at.end(ptr @{p}_inputs.table, ptr @{p}_outputs.table, i64 %one, i64 40)
  %other = call ptr @at.end(ptr @{p}_inputs.table, ptr @{p}_outputs.table, i64 %two, i64 40)
  %written = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 {text_bytes},
      ptr {overlap_text}, ptr %name, ptr %other)
  br label %done
done:
  ret void
}}

define internal void @say(ptr %workspace, ptr %format, ptr %what) {{
  %text = getelementptr i8, ptr %workspace, i64 {text_at}
  %written = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 {text_bytes}, ptr %format,
      ptr %what)
  ret void
}}
"""


def common(plan: LibraryPlan, texts: Texts) -> str:
    """What every library has: its tensors, its workspaces, what it says."""
    status = [
        f"ptr @{PROCESSOR_TEXT}" if name == "PROCESSOR" else f"ptr {texts.text(sentence).text}"
        for name, sentence in STATUS
    ]
    index = "%s takes index %lld of an axis with %lld entries; indices run from %lld to %lld"
    advise = "%ignored = call i32 @madvise(ptr %memory, i64 {}, i32 14)"  # MADV_HUGEPAGE
    large = plan.workspace_bytes >= _HUGE
    return _COMMON.format(
        p=plan.prefix,
        **CODES,
        inputs=_table(plan, plan.inputs, texts),
        outputs=_table(plan, plan.outputs, texts),
        input_count=len(plan.inputs),
        output_count=len(plan.outputs),
        end_count=len(plan.ends),
        overlap_text=texts.text("output '%s' overlaps the memory of '%s'").text,
        status=", ".join(status),
        status_count=len(STATUS),
        about=texts.text(plan.about).text,
        unknown=texts.text("no such status").text,
        index_text=texts.text(index).text,
        workspace_bytes=plan.workspace_bytes,
        alignment=_HUGE if large else 64,
        advise=advise.format(plan.workspace_bytes) if large else "",
        text_at=TEXT_AT,
        text_bytes=TEXT_BYTES,
        owned_at=OWNED_AT,
        threads_at=THREADS_AT,
        status_at=STATUS_AT,
        busy_at=BUSY_AT,
        capacity_at=CAPACITY_AT,
        least_bytes=plan.arena_at if plan.sizes else plan.workspace_bytes,
    )


def _table(plan: LibraryPlan, tensors: Sequence[LibraryTensor], texts: Texts) -> str:
    return ", ".join(
        f"%tensor {{ ptr {texts.text(tensor.name).text}, "
        f"ptr {texts.text(tensor.dtype).text}, i32 {tensor.onnx_type}, "
        f"i32 {len(tensor.shape)}, ptr {texts.numbers(_shape(tensor)).text}, "
        f"i64 {tensor.most_bytes(plan.sizes)} }}"
        for tensor in tensors
    )


def _shape(tensor: LibraryTensor) -> tuple[int, ...]:
    """Extents, -1 for those that vary."""
    extents = [as_expr(extent).constant for extent in tensor.shape]
    return tuple(-1 if extent is None else extent for extent in extents) or (1,)
