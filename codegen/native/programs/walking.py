"""The native loops over tables of calls, in LLVM's language (see `codegen.native.driver`).

Beside them is `barrier` of `codegen.llvm.threads`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_WALK = """
define void @walk(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                  ptr %local) {
entry:
  %end = getelementptr [4 x i64], ptr %table, i64 %count
  %few.barrier = getelementptr i8, ptr %barrier, i64 128
  %many = icmp sgt i64 %threads, 1
  ; note begin %table
  br label %check
check:
  %call = phi ptr [ %table, %entry ], [ %next, %step ]
  %more = icmp ne ptr %call, %end
  br i1 %more, label %body, label %done
body:
  %users.at = getelementptr i64, ptr %call, i64 2
  %wanted = load i64, ptr %users.at
  %fewer = icmp slt i64 %wanted, %threads
  %users = select i1 %fewer, i64 %wanted, i64 %threads
  %mine = icmp slt i64 %thread, %users
  br i1 %mine, label %run, label %ran
run:
  %kernel = load ptr, ptr %call
  %where = getelementptr i64, ptr %call, i64 1
  %arguments = load ptr, ptr %where
  %inside = select i1 %fewer, ptr %few.barrier, ptr %barrier
  call void %kernel(ptr %arguments, i64 %thread, i64 %users, ptr %inside, ptr %shared, ptr %local)
  br label %ran
ran:
  ; note ran %call
  br i1 %many, label %ask, label %step
ask:
  %meet.at = getelementptr i64, ptr %call, i64 3
  %meets = load i64, ptr %meet.at
  %meet = icmp ne i64 %meets, 0
  br i1 %meet, label %wait, label %step
wait:
  call void @barrier(ptr %barrier, i64 %threads)
  ; note met %call
  br label %step
step:
  %next = getelementptr [4 x i64], ptr %call, i64 1
  br label %check
done:
  ret void
}

"""

_PERFORM = """
define void @perform(ptr %program, i64 %thread, i64 %threads) {
entry:
  %count.at = getelementptr i64, ptr %program, i64 1
  %barrier.at = getelementptr i64, ptr %program, i64 2
  %shared.at = getelementptr i64, ptr %program, i64 3
  %locals.at = getelementptr i64, ptr %program, i64 4
  %local.at = getelementptr i64, ptr %locals.at, i64 %thread
  %table = load ptr, ptr %program
  %count = load i64, ptr %count.at
  %barrier = load ptr, ptr %barrier.at
  %shared = load ptr, ptr %shared.at
  %local = load ptr, ptr %local.at
  call void @walk(ptr %table, i64 %count, i64 %thread, i64 %threads, ptr %barrier, ptr %shared,
                  ptr %local)
  ret void
}
"""
"""A row of a table is {function, arguments, threads, meet}: so many threads make the call, and then
all meet if they have to. Those that are fewer than all have a barrier of their own.

A program is {table, rows, barriers, shared workspace, local workspace of each thread}. Comments
that begin with "note" are where a timed walk writes down when (`codegen.native.timing`)."""

WALK = f"{_WALK}{_PERFORM}"

_SIGNATURE = "(ptr %a, i64 %thread, i64 %threads, ptr %barrier, ptr %shared, ptr %local)"
_WALKED = "i64 %thread, i64 %threads, ptr %barrier, ptr %shared, ptr %local)"


def _fields(*kinds: str) -> str:
    """Loads of the arguments %a0, %a1, ... of a call."""
    return "".join(
        f"  %p{n} = getelementptr i64, ptr %a, i64 {n}\n  %a{n} = load {kind}, ptr %p{n}\n"
        for n, kind in enumerate(kinds)
    )


CONTROL = f"""
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)

define void @move{_SIGNATURE} {{
entry:
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %mine, label %done
mine:
{_fields("ptr", "ptr", "i64", "i64", "i64", "ptr")}
  %counted = icmp ne ptr %a5, null
  br i1 %counted, label %count, label %copy
count:
  %now = load i64, ptr %a5
  br label %copy
copy:
  %i = phi i64 [ 0, %mine ], [ %now, %count ]
  %target.by = mul i64 %i, %a3
  %source.by = mul i64 %i, %a4
  %target = getelementptr i8, ptr %a0, i64 %target.by
  %source = getelementptr i8, ptr %a1, i64 %source.by
  call void @llvm.memmove.p0.p0.i64(ptr %target, ptr %source, i64 %a2, i1 false)
  br label %done
done:
  ret void
}}

define void @repeat{_SIGNATURE} {{
entry:
{_fields("ptr", "i64", "i64", "ptr", "ptr", "ptr")}
  %limited = icmp ne ptr %a3, null
  br i1 %limited, label %limit, label %start
limit:
  %given = load i64, ptr %a3
  %less = icmp slt i64 %given, %a2
  %least = select i1 %less, i64 %given, i64 %a2
  br label %start
start:
  %trips = phi i64 [ %a2, %entry ], [ %least, %limit ]
  ; loop begins
  br label %head
head:
  %i = phi i64 [ 0, %start ], [ %next, %run ]
  %more = icmp slt i64 %i, %trips
  br i1 %more, label %ask, label %done
ask:
  %tested = icmp ne ptr %a4, null
  br i1 %tested, label %test, label %go
test:
  %flag = load i8, ptr %a4
  %set = icmp ne i8 %flag, 0
  br i1 %set, label %go, label %done
go:
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %count, label %meet
count:
  store i64 %i, ptr %a5
  br label %meet
meet:
  %many = icmp sgt i64 %threads, 1
  br i1 %many, label %wait, label %run
wait:
  call void @barrier(ptr %barrier, i64 %threads)
  br label %run
run:
  call void @walk(ptr %a0, i64 %a1, {_WALKED} ; iteration
  %next = add i64 %i, 1
  br label %head
done:
  ; loop ends
  ret void
}}

define void @branch{_SIGNATURE} {{
entry:
{_fields("ptr", "ptr", "i64", "ptr", "i64")}
  %flag = load i8, ptr %a0
  %set = icmp ne i8 %flag, 0
  %table = select i1 %set, ptr %a1, ptr %a3
  %count = select i1 %set, i64 %a2, i64 %a4
  call void @walk(ptr %table, i64 %count, {_WALKED} ; branch
  ret void
}}
"""
"""Functions of the kernels' signature that run tables of calls: in a table they are calls, too."""


def walk_with(note: Callable[[str, str], str]) -> str:
    """The loop, once more as `timed` with calls at the notes, and functions that run tables by it.

    Iterations go through `sampled`, branches through `looked`, which choose between both; a loop
    keeps three numbers of its own, for `entered` and `left` (`codegen.native.timing`).

    Args:
        note: gives the call, by what is noted ("begin", "ran" or "met") and its address.
    """
    timed = _WALK.replace("@walk(", "@timed(")
    timed = re.sub(r"; note (\w+) (%\w+)", lambda match: note(match[1], match[2]), timed)
    control = re.sub(r"@walk\((.*)\) ; iteration", r"@sampled(\1, ptr %state)", CONTROL)
    control = re.sub(r"@walk\((.*)\) ; branch", r"@looked(\1)", control)
    begins = "%state = alloca [3 x i64]\n  call void @entered(ptr %state, i64 %trips, ptr %local)"
    control = control.replace("; loop begins", begins)
    ends = "call void @left(ptr %a0, ptr %state, ptr %local)"
    return f"{_WALK}{timed}{control.replace('; loop ends', ends)}"
