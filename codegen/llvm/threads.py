"""The frame around emitted functions: their signature, and how their threads wait for each other.

Whoever waits looks again and again for a while, pausing between looks, and then falls asleep until
it is woken (by a futex where the system has them; elsewhere it offers its core again and again, of
which a busy neighbour takes a whole slice of time). So threads that have cores to themselves meet
within some ten nanoseconds; those that turn out to share one (the sleeper slept where the waker is)
look but shortly from then on, until they share none.

Memory of a *word* that threads wait for, in bytes: its value (0, i32), how many sleep (4, i32), how
often to look before sleeping (8, i64), and how often at most (16, i64) and on which core the last
fell asleep (24, i32). Memory of a barrier: how many have arrived (i64), and on the next line a
word, its generation. All zero at first, but for the two numbers of looks.
"""

from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import INDEX, POINTER, VOID, Function, Module

SIGNATURE = (POINTER, INDEX, INDEX, POINTER, POINTER, POINTER)
"""arguments, thread, threads, barrier, shared workspace, local workspace."""

BARRIER_BYTES = 128

WORD = 64
"""Where in a barrier the word is."""

ROUNDS, MOST_ROUNDS, SLEPT_ON = 8, 16, 24
"""Where in a word the other numbers are."""

_FEW = 6
"""Binary digits by which threads that share a core look less often."""

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
"""Numbers of Linux's system call, by architecture (`asm/unistd.h`)."""

_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
"""Declaration and call of what tells a core that it waits (x86: pause, ARM: yield)."""

_WAITING = """
define internal i1 @look(ptr %word, i32 %old, i64 %rounds) noinline {{
entry:
  br label %look
look:
  %round = phi i64 [ 0, %entry ], [ %next, %again ]
  %now = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %now, %old
  br i1 %same, label %again, label %done
again:
  {pause}
  %next = add i64 %round, 1
  %more = icmp slt i64 %next, %rounds
  br i1 %more, label %look, label %done
done:
  ret i1 %same
}}

define internal void @await(ptr %word, i32 %old) noinline {{
entry:
  %sleepers = getelementptr i8, ptr %word, i64 4
  %where = getelementptr i8, ptr %word, i64 8
  %rounds = load atomic i64, ptr %where monotonic, align 8
  %same = call i1 @look(ptr %word, i32 %old, i64 %rounds)
  br i1 %same, label %tired, label %done
tired:
{note}
  %one.more = atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %check
check:
  %then = load atomic i32, ptr %word seq_cst, align 4
  %still = icmp eq i32 %then, %old
  br i1 %still, label %sleep, label %up
sleep:
  {sleep}
  br label %check
up:
  %one.less = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %done
done:
  ret void
}}

define internal void @announce(ptr %word) noinline {{
entry:
  %sleepers = getelementptr i8, ptr %word, i64 4
  %before = atomicrmw add ptr %word, i32 1 seq_cst
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %some = icmp ne i32 %asleep, 0
  br i1 %some, label %wake, label %done
wake:
{judge}
  {wake}
  br label %done
done:
  ret void
}}

{declarations}
"""

_NOTE = f"""
  %core = call i32 @sched_getcpu()
  %slept.on = getelementptr i8, ptr %word, i64 {SLEPT_ON}
  store atomic i32 %core, ptr %slept.on monotonic, align 4
"""

_JUDGE = f"""
  %core = call i32 @sched_getcpu()
  %slept.on = getelementptr i8, ptr %word, i64 {SLEPT_ON}
  %theirs = load atomic i32, ptr %slept.on monotonic, align 4
  %shared = icmp eq i32 %core, %theirs
  %most.at = getelementptr i8, ptr %word, i64 {MOST_ROUNDS}
  %most = load i64, ptr %most.at
  %few = lshr i64 %most, {_FEW}
  %rounds = select i1 %shared, i64 %few, i64 %most
  %rounds.at = getelementptr i8, ptr %word, i64 {ROUNDS}
  store atomic i64 %rounds, ptr %rounds.at monotonic, align 8
"""

_BARRIER = """define internal void @barrier(ptr %arrived, i64 %everyone) noinline {{
entry:
  %word = getelementptr i8, ptr %arrived, i64 {word}
  %old = load atomic i32, ptr %word acquire, align 4
  %before = atomicrmw add ptr %arrived, i64 1 acq_rel
  %number = add i64 %before, 1
  %last = icmp eq i64 %number, %everyone
  br i1 %last, label %go, label %stay
go:
  store atomic i64 0, ptr %arrived monotonic, align 8
  call void @announce(ptr %word)
  ret void
stay:
  call void @await(ptr %word, i32 %old)
  ret void
}}
"""


def export(module: Module, name: str, body: Function, parameters: int) -> None:
    """The function callers see: unpacks the argument pointers."""
    function = Function(module, name, VOID, SIGNATURE)
    builder = Builder(function.append_block("entry"))
    arguments = []
    for position in range(parameters):
        slot = builder.gep(function.arguments[0], INDEX(position), POINTER)
        arguments.append(builder.load(slot, POINTER))
    builder.call(body, [*arguments, *function.arguments[1:]])
    builder.ret_void()


def barrier_function(module: Module) -> Function:
    """`barrier(memory, threads)`: returns when as many threads have called it.

    The last to arrive moves the generation on, for which the others wait. Beside it are
    `await(word, old)`, which returns when the word's value is another than `old`, and
    `announce(word)`, which gives it the next one.
    """
    known = module.functions.get("barrier")
    if known is not None:
        return known
    function = Function(module, "barrier", VOID, (POINTER, INDEX))
    function.given = f"{_BARRIER.format(word=WORD)}{waiting(module.triple)}"
    return function


def waiting(triple: str) -> str:
    """`await` and `announce` for a processor and its system."""
    architecture = triple.split("-")[0]
    declarations, pause = _PAUSES.get(architecture, ("", ""))
    number = _FUTEX.get(architecture) if "linux" in triple else None
    note = judge = wake = ""
    if number is None:
        sleep = "%ignored = call i32 @sched_yield()"
        declarations += "\ndeclare i32 @sched_yield()"
    else:  # FUTEX_WAIT and FUTEX_WAKE, private to the process (linux/futex.h)
        call = f"call i64 @syscall(i64 {number}, ptr %word, i64"
        sleep = f"%ignored = {call} 128, i64 %expected, ptr null, ptr null, i64 0)"
        sleep = f"%expected = zext i32 %old to i64\n  {sleep}"
        wake = f"%ignored = {call} 129, i64 2147483647, ptr null, ptr null, i64 0)"
        note, judge = _NOTE, _JUDGE
        declarations += "\ndeclare i64 @syscall(i64, ptr, i64, i64, ptr, ptr, i64)"
        declarations += "\ndeclare i32 @sched_getcpu()"
    return _WAITING.format(
        sleep=sleep, wake=wake, pause=pause, note=note, judge=judge,
        declarations=declarations,
    )  # fmt: skip
