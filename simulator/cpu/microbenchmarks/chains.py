"""Microbenchmarks of one core: its clock, and how many operations it begins in a cycle.

A chain of dependent integer operations takes a cycle each, on every processor that is made today;
so it tells the clock, and what a cycle is. Loops of independent operations tell rates; a chain of
dependent multiply-adds tells their latency. Nothing is taken from what a processor is called: one
that starts a wide operation as two halves is seen to do so.

    clock.ghz    x = (x + y) ^ z, over and over
    fma.rate     multiply-adds of whole vectors a cycle (`peak.peak_kernel`)
    fma.cycles   from one multiply-add to the next that adds to its result
    load.rate    loads of whole vectors a cycle, from L1
    store.ports  stores of whole vectors a cycle, to L1

`scattered` reads pages in no order, so that no prefetcher knows the next one: what a core draws
from memory by the misses alone that it has in flight.

How many operations of all kinds a core begins is not measured: on a shared host that came to 2.7 to
4.6 from run to run, while the rates above stayed what they were.

Invariants: loops are code of LLVM without any pass over it; loads and stores are volatile, so that
all of them happen.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilesmith.codegen.host.memory import aligned_empty
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target

ROUNDS = 2000
"""Iterations of a loop in one call: some 50 microseconds."""
DEPENDENT, FUSED, MOVED = 64, 16, 256
"""Operations in an iteration: pairs of the integer chain, multiply-adds of the dependent chain,
loads or stores: so many that the loop's own branch costs nothing."""
PLACES = 32
"""Lines that are loaded and stored in turns."""
PAGE, LINE = 4096, 64
"""Bytes that a prefetcher keeps inside of (Intel's and AMD's optimization guides), of a line."""


@dataclass
class _Text:
    """Lines of a loop's body, with names for its values."""

    lines: list[str] = field(default_factory=list)

    def add(self, operation: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {operation}")
        return name


def rates(target: Target, fastest: Callable[[Callable[[], None]], float]) -> dict[str, float]:
    """The facts of the module's docstring but `fma.rate`, of the CPU we sit on.

    Args:
        fastest: seconds of one call, the least of many.
    """
    lanes = vector_width(target)
    loops = {"clock": clock_loop(), "latency": latency_loop(lanes), "loads": loads_loop(lanes)}
    run = _ready(target, {**loops, "stores": stores_loop(lanes)})
    cycle = fastest(run["clock"]) / (ROUNDS * 2 * DEPENDENT)

    def each(name: str, operations: int) -> float:
        """Cycles of one of a loop's operations."""
        return fastest(run[name]) / (ROUNDS * operations) / cycle

    return {
        "clock.ghz": round(1e-9 / cycle, 3),
        "fma.cycles": round(each("latency", FUSED), 2),
        "load.rate": round(1.0 / each("loads", MOVED), 2),
        "store.ports": round(1.0 / each("stores", MOVED), 2),
    }


def scattered(
    target: Target, size: int, fastest: Callable[[Callable[[], None]], float]
) -> tuple[float, int]:
    """(seconds, bytes) of reading `size` bytes page by page, in an order of no pattern."""
    pages = size // PAGE
    memory = aligned_empty((pages * PAGE,), np.dtype(np.uint8))
    memory[...] = 0
    order = np.random.default_rng(0).permutation(pages).astype(np.int64)
    places = aligned_empty((pages,), np.dtype(np.int64))
    places[...] = memory.ctypes.data + PAGE * order
    run = machine_code(target, {"pages": pages_loop(vector_width(target))})["pages"]
    return fastest(lambda: run(pages, ctypes.c_void_p(places.ctypes.data))), pages * PAGE


Code = Callable[[int, ctypes.c_void_p], None]
"""A loop: iterations, and the memory that it reads and writes, aligned to 64 bytes."""


def machine_code(target: Target, loops: dict[str, str]) -> dict[str, Code]:
    """Code of loops by their names, of the CPU we sit on."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = target.text("isa.triple")
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=target.text("isa.processor"), features=target.text("isa.features"), opt=2
    )
    kind, name = _vector(vector_width(target))
    lines = [f'target triple = "{triple}"']
    lines += [f"declare {kind} @llvm.fma.{name}({kind}, {kind}, {kind})"]
    lines += [text.replace("@loop", f"@{name}") for name, text in loops.items()]
    jit = llvm.create_lljit_compiler(machine, use_jit_link=False, suppress_errors=False)
    builder = llvm.JITLibraryBuilder().add_ir("\n".join(lines))
    for name in loops:
        builder = builder.export_symbol(name)
    library = builder.link(jit, "chains")
    form = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)

    def code(name: str) -> Code:
        function = form(library[name])

        def run(turns: int, place: ctypes.c_void_p, _: object = (jit, library)) -> None:
            function(turns, place)

        return run

    return {name: code(name) for name in loops}


def _ready(target: Target, loops: dict[str, str]) -> dict[str, Callable[[], None]]:
    """Loops, each ready to be called for `ROUNDS` iterations."""
    memory = aligned_empty((LINE * PLACES,), np.dtype(np.uint8))
    memory[...] = 0

    def ready(code: Code) -> Callable[[], None]:
        return lambda: code(ROUNDS, ctypes.c_void_p(memory.ctypes.data))

    return {name: ready(code) for name, code in machine_code(target, loops).items()}


def _loop(text: _Text, carried: dict[str, tuple[str, str]]) -> str:
    """A function that runs a body `n` times; `carried`: type and last value of each that goes from
    one iteration to the next, stored at the end."""
    read = [f"%{name}.0 = load {kind}, ptr %p" for name, (kind, _) in carried.items()]
    phis = [
        f"%{name} = phi {kind} [ %{name}.0, %entry ], [ {last}, %body ]"
        for name, (kind, last) in carried.items()
    ]
    written = [f"store volatile {kind} {last}, ptr %p" for kind, last in carried.values()]
    lines = [
        "define void @loop(i64 %n, ptr %p) {",
        "entry:",
        "%y = load volatile i64, ptr %p",
        "%z = load volatile i64, ptr %p",
        *read,
        "br label %body",
        "body:",
        "%i = phi i64 [ 0, %entry ], [ %next, %body ]",
        *phis,
        *text.lines,
        "%next = add i64 %i, 1",
        "%more = icmp ult i64 %next, %n",
        "br i1 %more, label %body, label %end",
        "end:",
        *written,
        "ret void",
        "}",
    ]
    return "\n".join(lines)


def clock_loop() -> str:
    """The chain of dependent integer operations."""
    text, value = _Text(), "%x"
    for _ in range(DEPENDENT):
        value = text.add(f"xor i64 {text.add(f'add i64 {value}, %y')}, %z")
    return _loop(text, {"x": ("i64", value)})


def _fma(text: _Text, kind: str, name: str, factors: str, value: str) -> str:
    both = f"{kind} {factors}, {kind} {factors}"
    return text.add(f"call {kind} @llvm.fma.{name}({both}, {kind} {value})")


def _vector(lanes: int) -> tuple[str, str]:
    """LLVM's type of a vector of floats, and what its intrinsics call it."""
    return f"<{lanes} x float>", f"v{lanes}f32"


def latency_loop(lanes: int) -> str:
    """The chain of dependent multiply-adds."""
    text, value, (kind, name) = _Text(), "%x", _vector(lanes)
    for _ in range(FUSED):
        value = _fma(text, kind, name, "%f", value)
    return _loop(text, {"f": (kind, "%f"), "x": (kind, value)})


def loads_loop(lanes: int) -> str:
    """Loads that nothing waits for."""
    text, (kind, _) = _Text(), _vector(lanes)
    for number in range(MOVED):
        place = text.add(f"getelementptr i8, ptr %p, i64 {LINE * (number % PLACES)}")
        text.add(f"load volatile {kind}, ptr {place}, align 64")
    return _loop(text, {})


def pages_loop(lanes: int) -> str:
    """A load of each line of the pages whose addresses lie one after the other in memory."""
    text, (kind, _) = _Text(), _vector(lanes)
    slot = text.add("getelementptr i64, ptr %p, i64 %i")
    page = text.add(f"load volatile ptr, ptr {slot}")
    for number in range(PAGE // LINE):
        place = text.add(f"getelementptr i8, ptr {page}, i64 {LINE * number}")
        text.add(f"load volatile {kind}, ptr {place}, align 64")
    return _loop(text, {})


def stores_loop(lanes: int) -> str:
    """Stores of one vector."""
    text, (kind, _) = _Text(), _vector(lanes)
    for number in range(MOVED):
        place = text.add(f"getelementptr i8, ptr %p, i64 {LINE * (number % PLACES)}")
        text.lines.append(f"store volatile {kind} %f, ptr {place}, align 64")
    return _loop(text, {"f": (kind, "%f")})
