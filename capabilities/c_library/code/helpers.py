"""How a workspace gets threads that help its caller, and lets them go, in LLVM's language.

`codegen.native.team` has what they do: wait, and run programs together. Here they are the system's
threads instead of Python's: started with the workspace, joined when it ends. As there, they are
kept off the caller's core (`place`) where there is hardly another: woken there, they would wait
until it sleeps.
"""

from __future__ import annotations

from tilesmith.capabilities.c_library.code.plan import (
    BARRIERS_AT,
    BESIDE_AT,
    PROCESS_AT,
    SLOT_BYTES,
    SLOTS_AT,
    TEAM_AT,
    THREADS_AT,
    LibraryPlan,
)
from tilesmith.capabilities.c_library.code.status import CODES
from tilesmith.codegen.llvm.threads import BARRIER_BYTES, MOST_ROUNDS, ROUNDS, WORD
from tilesmith.codegen.native.programs.team import LOOK_S

_ALONE = """
define internal i32 @start(ptr %workspace, i64 %threads) {{
  %threads.at = getelementptr i8, ptr %workspace, i64 {threads_at}
  store i64 1, ptr %threads.at
  ret i32 0
}}

define internal void @stop(ptr %workspace, i64 %threads) {{
  ret void
}}
"""

_TEAM = """
declare i32 @getpid()
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(ptr, ptr)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @pthread_setaffinity_np(ptr, i64, ptr)
declare i64 @llvm.ctpop.i64(i64)
declare i64 @llvm.umin.i64(i64, i64)

define internal i64 @now() {{
  %time = alloca {{ i64, i64 }}
  %ignored = call i32 @clock_gettime(i32 1, ptr %time)
  %parts.at = getelementptr i64, ptr %time, i64 1
  %seconds = load i64, ptr %time
  %rest = load i64, ptr %parts.at
  %whole = mul i64 %seconds, 1000000000
  %found = add i64 %whole, %rest
  ret i64 %found
}}

define internal i64 @rounds(ptr %word) {{
entry:
  br label %again
again:
  %number = phi i64 [ 0, %entry ], [ %next, %again ]
  %best = phi i64 [ 1000000000, %entry ], [ %least, %again ]
  %start = call i64 @now()
  call void @probe(ptr %word, i64 {probe}, ptr null)
  %end = call i64 @now()
  %took = sub i64 %end, %start
  %least = call i64 @llvm.umin.i64(i64 %best, i64 %took)
  %next = add i64 %number, 1
  %more = icmp ult i64 %next, 8
  br i1 %more, label %again, label %done
done:
  %some = add i64 %least, 1
  %looks = udiv i64 {looks}, %some
  %found = add i64 %looks, 1
  ret i64 %found
}}

define internal i64 @cores(ptr %mask) {{
entry:
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 128, i1 false)
  %failed = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %following, %next ]
  %sum = phi i64 [ 0, %entry ], [ %more, %next ]
  %at = getelementptr i64, ptr %mask, i64 %number
  %word = load i64, ptr %at
  %bits = call i64 @llvm.ctpop.i64(i64 %word)
  %more = add i64 %sum, %bits
  %following = add i64 %number, 1
  %on = icmp ult i64 %following, 16
  br i1 %on, label %next, label %done
done:
  %unknown = icmp eq i64 %more, 0
  %found = select i1 %unknown, i64 {team}, i64 %more
  ret i64 %found
}}

define internal void @place(ptr %workspace, i64 %threads) {{
entry:
  %mask = alloca [16 x i64], align 8
  %core = call i32 @sched_getcpu()
  %mark = add i32 %core, 1
  %beside.at = getelementptr i8, ptr %workspace, i64 {beside_at}
  %before = load i32, ptr %beside.at
  %same = icmp eq i32 %mark, %before
  br i1 %same, label %done, label %moved
moved:
  store i32 %mark, ptr %beside.at
  %known = icmp ult i32 %core, 1024
  br i1 %known, label %look, label %done
look:
  %cores = call i64 @cores(ptr %mask)
  %few = icmp ult i64 %cores, %threads
  br i1 %few, label %done, label %choose
choose:
  %twice = shl i64 %threads, 1
  %plenty = icmp uge i64 %cores, %twice
  %number = zext i32 %core to i64
  %word = lshr i64 %number, 6
  %bit = and i64 %number, 63
  %one = shl i64 1, %bit
  %others = xor i64 %one, -1
  %kept = select i1 %plenty, i64 -1, i64 %others
  %word.at = getelementptr i64, ptr %mask, i64 %word
  %old = load i64, ptr %word.at
  %new = and i64 %old, %kept
  store i64 %new, ptr %word.at
  br label %next
next:
  %thread = phi i64 [ 1, %choose ], [ %following, %bind ]
  %more = icmp ult i64 %thread, %threads
  br i1 %more, label %bind, label %done
bind:
  %distance = mul i64 %thread, {slot_bytes}
  %from = add i64 %distance, {slots_at}
  %slot = getelementptr i8, ptr %workspace, i64 %from
  %handle = load ptr, ptr %slot
  %ignored = call i32 @pthread_setaffinity_np(ptr %handle, i64 128, ptr %mask)
  %following = add i64 %thread, 1
  br label %next
done:
  ret void
}}

define internal ptr @worker(ptr %slot) {{
  %workspace.at = getelementptr i64, ptr %slot, i64 1
  %number.at = getelementptr i64, ptr %slot, i64 2
  %workspace = load ptr, ptr %workspace.at
  %number = load i64, ptr %number.at
  %team = getelementptr i8, ptr %workspace, i64 {team_at}
  call void @serve(ptr %team, i64 %number, ptr null)
  ret ptr null
}}

define internal void @set.rounds(ptr %word, i64 %rounds) {{
  %now.at = getelementptr i8, ptr %word, i64 {rounds_at}
  %most.at = getelementptr i8, ptr %word, i64 {most_at}
  store i64 %rounds, ptr %now.at
  store i64 %rounds, ptr %most.at
  ret void
}}

define internal i32 @start(ptr %workspace, i64 %asked) {{
entry:
  %mask = alloca [16 x i64], align 8
  %any = icmp eq i64 %asked, 0
  %cores = call i64 @cores(ptr %mask)
  %wish = select i1 %any, i64 %cores, i64 %asked
  %threads = call i64 @llvm.umin.i64(i64 %wish, i64 {team})
  %team = getelementptr i8, ptr %workspace, i64 {team_at}
  %rounds = call i64 @rounds(ptr %team)
  call void @set.rounds(ptr %team, i64 %rounds)
{words}
  %process = call i32 @getpid()
  %process.at = getelementptr i8, ptr %workspace, i64 {process_at}
  store i32 %process, ptr %process.at
  br label %check
check:
  %number = phi i64 [ 1, %entry ], [ %next, %started ]
  %more = icmp ult i64 %number, %threads
  br i1 %more, label %make, label %done
make:
  %before = mul i64 %number, {slot_bytes}
  %distance = add i64 %before, {slots_at}
  %slot = getelementptr i8, ptr %workspace, i64 %distance
  %workspace.at = getelementptr i64, ptr %slot, i64 1
  %number.at = getelementptr i64, ptr %slot, i64 2
  store ptr %workspace, ptr %workspace.at
  store i64 %number, ptr %number.at
  %failed = call i32 @pthread_create(ptr %slot, ptr null, ptr @worker, ptr %slot)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %few, label %started
started:
  %next = add i64 %number, 1
  br label %check
few:
  call void @stop(ptr %workspace, i64 %number)
  ret i32 {THREADS}
done:
  %threads.at = getelementptr i8, ptr %workspace, i64 {threads_at}
  store i64 %threads, ptr %threads.at
  ret i32 0
}}

define internal i1 @elsewhere(ptr %workspace, i64 %threads) {{
  %process.at = getelementptr i8, ptr %workspace, i64 {process_at}
  %made = load i32, ptr %process.at
  %here = call i32 @getpid()
  %other = icmp ne i32 %made, %here
  %many = icmp ugt i64 %threads, 1
  %found = and i1 %other, %many
  ret i1 %found
}}

define internal void @stop(ptr %workspace, i64 %threads) {{
entry:
  %gone = call i1 @elsewhere(ptr %workspace, i64 %threads)
  br i1 %gone, label %done, label %here
here:
  %team = getelementptr i8, ptr %workspace, i64 {team_at}
  call void @together(ptr %team, i64 %threads, ptr null)
  br label %check
check:
  %number = phi i64 [ 1, %here ], [ %next, %join ]
  %more = icmp ult i64 %number, %threads
  br i1 %more, label %join, label %done
join:
  %before = mul i64 %number, {slot_bytes}
  %distance = add i64 %before, {slots_at}
  %slot = getelementptr i8, ptr %workspace, i64 %distance
  %handle = load ptr, ptr %slot
  %ignored = call i32 @pthread_join(ptr %handle, ptr null)
  %next = add i64 %number, 1
  br label %check
done:
  ret void
}}
"""

_PROBE = 512

_WORD = """  %word.{n} = getelementptr i8, ptr %workspace, i64 {at}
  call void @set.rounds(ptr %word.{n}, i64 %rounds)"""


def threads(plan: LibraryPlan) -> str:
    """How a workspace gets its threads, and lets them go."""
    if plan.team == 1:
        return _ALONE.format(threads_at=THREADS_AT)
    starts = (TEAM_AT + 128, *(BARRIERS_AT + n * BARRIER_BYTES for n in range(2)))
    words = "\n".join(_WORD.format(n=n, at=start + WORD) for n, start in enumerate(starts))
    return _TEAM.format(
        **CODES,
        team=plan.team,
        probe=_PROBE,
        looks=int(LOOK_S * 1e9 * _PROBE),
        team_at=TEAM_AT,
        slots_at=SLOTS_AT,
        slot_bytes=SLOT_BYTES,
        threads_at=THREADS_AT,
        rounds_at=ROUNDS,
        most_at=MOST_ROUNDS,
        words=words,
        beside_at=BESIDE_AT,
        process_at=PROCESS_AT,
    )
