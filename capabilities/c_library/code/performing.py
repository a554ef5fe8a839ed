"""The steps of a model as one function, `perform(workspace, thread, threads)`.

It does what `codegen.native.programs.walking` does with tables: every thread goes through the same
steps, a kernel is called by as many as it is for, and all meet wherever one may read what another
wrote. Here the steps are code, for their addresses differ from workspace to workspace.
"""

from collections.abc import Sequence

from tilesmith.capabilities.c_library.code.plan import (
    ARENA,
    BARRIERS_AT,
    BODY_AT,
    FIRST_END,
    NUMBERS,
    REGION,
    STATUS_AT,
    WEIGHTS,
    Check,
    LibraryPlan,
    RegionBody,
)
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import (
    BOOL,
    INDEX,
    INT32,
    POINTER,
    VOID,
    Constant,
    Function,
    Module,
    Value,
    integer,
)
from tilesmith.codegen.llvm.threads import BARRIER_BYTES, SIGNATURE, barrier_function
from tilesmith.codegen.native.programs import driver

BYTE = integer(8)
NULL = Constant(POINTER, None, "null")
WEIGHTS_POINTER = "tilesmith.weights.at"
"""A variable: where the weights are. Not folded into code, which reaches but 2 GiB."""


def kernel_name(plan: LibraryPlan, number: int) -> str:
    """What a kernel's function is called among a library's parts, and in profiles."""
    return f"{plan.prefix}.{plan.kernels[number].name}.{number}"


def write_perform(module: Module, plan: LibraryPlan, texts: "Texts") -> None:
    """Add the function to a module, and one for each body where there are several."""
    kinds = (POINTER, INDEX, INDEX)
    if not plan.sizes:
        function = Function(module, "perform", VOID, kinds)
        _Performer(module, plan, plan.bodies[0], function, texts).write()
        return
    parts = []
    for number, body in enumerate(plan.bodies):
        parts.append(Function(module, f"perform.{number}", VOID, kinds))
        parts[-1].internal = True
        _Performer(module, plan, body, parts[-1], texts).write()
    function = Function(module, "perform", VOID, kinds)
    builder = Builder(function.append_block("entry"))
    at = builder.gep(function.arguments[0], INDEX(BODY_AT), BYTE)
    chosen = builder.load(at, INDEX)
    for number, part in enumerate(parts):
        with builder.if_then(builder.icmp_signed("==", chosen, INDEX(number + 1))):
            builder.call(part, function.arguments)
    builder.ret_void()


class Texts:
    """Constants of a module: texts and numbers, each once."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}

    def text(self, content: str) -> Value:
        """A text of C, as the address of its first byte."""
        data = content.replace("\0", " ").encode() + b"\0"
        shown = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
        return self._add(f'[{len(data)} x i8] c"{shown}"')

    def numbers(self, values: Sequence[int]) -> Value:
        """64-bit numbers, as the address of the first."""
        inside = ", ".join(f"i64 {value}" for value in values)
        return self._add(f"[{len(values)} x i64] [{inside}]")

    def _add(self, content: str) -> Value:
        name = self.lines.setdefault(content, f"@tilesmith.constant.{len(self.lines)}")
        return Constant(POINTER, None, name)

    def __str__(self) -> str:
        return "\n".join(
            f"{name} = internal constant {content}" for content, name in self.lines.items()
        )


class _Performer:
    """Writes `perform` of a body."""

    def __init__(
        self, module: Module, plan: LibraryPlan, body: RegionBody, function: Function, texts: Texts
    ) -> None:
        self.module, self.plan, self.body, self.texts = module, plan, body, texts
        self.workspace, self.thread, self.threads = function.arguments
        self.builder = Builder(function.append_block("entry"))
        self.many = plan.team > 1
        if not self.many:
            self.thread, self.threads = INDEX(0), INDEX(1)
        self.leave = function.append_block("leave")

    def write(self) -> None:
        builder, plan = self.builder, self.plan
        self.barrier = self.at(BARRIERS_AT)
        self.few_barrier = self.at(BARRIERS_AT + BARRIER_BYTES)
        self.shared = self.at(plan.shared_at)
        step = builder.mul(self.thread, INDEX(plan.local_step))
        self.local = builder.gep(self.at(plan.locals_at), step, BYTE)
        variable = Constant(POINTER, None, f"@{WEIGHTS_POINTER}")
        self.bases: dict[int, Value] = {
            ARENA: self.at(plan.arena_at),
            WEIGHTS: builder.load(variable, POINTER),
            NUMBERS: self.at(plan.numbers_at),
        }
        for number in range(len(plan.ends)):
            where = self.at(plan.ends_at + 8 * number)
            self.bases[FIRST_END + number] = builder.load(where, POINTER)
        stages = self.body.stages
        most = max((len(c.arguments) for s in stages for c in _kernels(s.calls)), default=0)
        self.arguments = builder.alloca(POINTER, 16, max(1, most))
        for number, stage in enumerate(stages):
            if stage.checks:
                self._checked(stage.checks, first=number == 0)
            self._calls(stage.calls, self.threads, inside=False)
        builder.branch(self.leave)
        builder.position_at_end(self.leave)
        builder.ret_void()

    def at(self, offset: int) -> Value:
        """A place in the workspace."""
        return self.builder.gep(self.workspace, INDEX(offset), BYTE)

    def place(self, address: int) -> Value:
        """Where an address of the plan is."""
        if not address:
            return NULL
        region, offset = divmod(address, REGION)
        if region >= self.plan.first_slot:
            where = self.plan.slots_at + 8 * (region - self.plan.first_slot)
            base = self.builder.load(self.at(where), POINTER)
        else:
            base = self.bases[region]
        return self.builder.gep(base, INDEX(offset), BYTE) if offset else base

    def meet(self) -> None:
        """All threads wait for each other."""
        self.builder.call(barrier_function(self.module), (self.barrier, self.threads))

    # -- checks -----------------------------------------------------------------------------------
    def _checked(self, checks: Sequence[Check], first: bool) -> None:
        """The first thread looks at indices; all end if one is out of range."""
        builder = self.builder
        if self.many:
            if not first:
                self.meet()
            with builder.if_then(builder.icmp_signed("==", self.thread, INDEX(0))):
                self._look(checks)
            self.meet()
        else:
            self._look(checks)
        status = builder.load(self.at(STATUS_AT), INT32)
        on = builder.append_block("on")
        builder.cbranch(builder.icmp_signed("==", status, INT32(0)), on, self.leave, likely=True)
        builder.position_at_end(on)

    def _look(self, checks: Sequence[Check]) -> None:
        for check in checks:
            kinds = (POINTER, POINTER, INDEX, POINTER, INDEX, POINTER)
            function = self.module.declare(f"check.{check.dtype}", VOID, kinds)
            extents, node = self.texts.numbers(check.extents), self.texts.text(check.node)
            count: Value = INDEX(check.count)
            axes = INDEX(len(check.extents))
            if check.numbers >= 0:
                place = self.plan.numbers_at + 8 * check.numbers
                count, extents = self.builder.load(self.at(place), INDEX), self.at(place + 8)
            given = (self.workspace, self.place(check.at), count, extents, axes, node)
            self.builder.call(function, given)

    # -- calls ------------------------------------------------------------------------------------
    def _calls(self, calls: Sequence[driver.AnyCall], threads: Value, *, inside: bool) -> None:
        """Calls in order, for all threads, which meet as `codegen.native.driver` has them meet."""
        alone = threads is not self.threads or not self.many
        wanted = [*map(driver.users, calls), driver.ALL if inside else 1]
        for number, call in enumerate(calls):
            last = number + 1 == len(calls)
            meets = wanted[number] > 1 or wanted[number + 1] > 1
            meets = max(wanted) > 1 if last and inside else meets and not last
            if alone:
                self._call(call, INDEX(0), INDEX(1), self.barrier)
                continue
            if wanted[number] >= self.plan.team:
                self._call(call, self.thread, self.threads, self.barrier)
            else:
                few = INDEX(wanted[number])
                fewer = self.builder.icmp_signed("<", few, self.threads)
                used = self.builder.select(fewer, few, self.threads)
                inner = self.builder.select(fewer, self.few_barrier, self.barrier)
                with self.builder.if_then(self.builder.icmp_signed("<", self.thread, used)):
                    one = wanted[number] == 1
                    self._call(call, self.thread, INDEX(1) if one else used, inner)
            if meets:
                self.meet()

    def _call(self, call: driver.AnyCall, thread: Value, threads: Value, barrier: Value) -> None:
        match call:
            case driver.KernelCall():
                self._kernel(call, (thread, threads, barrier))
            case driver.MemoryMove():
                self._move(call)
            case driver.Repeat():
                self._repeat(call, threads)
            case driver.Branch():
                self._branch(call, threads)

    def _kernel(self, call: driver.KernelCall, how: tuple[Value, Value, Value]) -> None:
        builder = self.builder
        for number, argument in enumerate(call.arguments):
            slot = builder.gep(self.arguments, INDEX(number), POINTER)
            builder.store(self.place(argument), slot)
        function = self.module.declare(kernel_name(self.plan, call.function), VOID, SIGNATURE)
        builder.call(function, (self.arguments, *how, self.shared, self.local))

    def _move(self, move: driver.MemoryMove) -> None:
        """One thread copies."""
        builder = self.builder
        target, source = self.place(move.target), self.place(move.source)
        if move.counter:
            now = builder.load(self.place(move.counter), INDEX)
            target = builder.gep(target, builder.mul(now, INDEX(move.target_step)), BYTE)
            source = builder.gep(source, builder.mul(now, INDEX(move.source_step)), BYTE)
        kinds = (POINTER, POINTER, INDEX, BOOL)
        function = self.module.declare("llvm.memmove.p0.p0.i64", VOID, kinds)
        builder.call(function, (target, source, INDEX(move.nbytes), BOOL(0)))

    def _repeat(self, call: driver.Repeat, threads: Value) -> None:
        builder = self.builder
        trips: Value = INDEX(call.trips)
        if call.limit:
            given = builder.load(self.place(call.limit), INDEX)
            trips = builder.select(builder.icmp_signed("<", given, trips), given, trips)
        before, head = builder.block, builder.append_block("head")
        builder.branch(head)
        builder.position_at_end(head)
        number = builder.phi(INDEX)
        number.add_incoming(INDEX(0), before)
        go, done = builder.append_block("go"), builder.append_block("done")
        builder.cbranch(builder.icmp_signed("<", number, trips), go, done)
        builder.position_at_end(go)
        if call.test:
            on = builder.append_block("on")
            flag = builder.load(self.place(call.test), BYTE)
            builder.cbranch(builder.icmp_signed("!=", flag, BYTE(0)), on, done)
            builder.position_at_end(on)
        if self.many and threads is self.threads:
            with builder.if_then(builder.icmp_signed("==", self.thread, INDEX(0))):
                builder.store(number, self.place(call.counter))
            self.meet()
        else:
            builder.store(number, self.place(call.counter))
        self._calls(call.calls, threads, inside=True)
        number.add_incoming(builder.add(number, INDEX(1)), builder.block)
        builder.branch(head)
        builder.position_at_end(done)

    def _branch(self, call: driver.Branch, threads: Value) -> None:
        builder = self.builder
        flag = builder.load(self.place(call.test), BYTE)
        with builder.if_else(builder.icmp_signed("!=", flag, BYTE(0))) as sides:
            for side, calls in zip(sides, call.calls, strict=True):
                with side:
                    self._calls(calls, threads, inside=True)


def _kernels(calls: Sequence[driver.AnyCall]) -> list[driver.KernelCall]:
    kernels: list[driver.KernelCall] = []
    for call in calls:
        match call:
            case driver.KernelCall():
                kernels.append(call)
            case driver.Repeat(inner):
                kernels += _kernels(inner)
            case driver.Branch(_, (first, second)):
                kernels += _kernels((*first, *second))
    return kernels
