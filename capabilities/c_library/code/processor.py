"""`able`: whether the processor has what a library's code needs, asked before any of it runs.

What code needs are the features that LLVM was allowed. x86-64 tells by `cpuid` (Intel's Software
Developer's Manual, volume 2A, and AMD's Architecture Programmer's Manual, volume 3, appendix E) and
the system by `xgetbv` which registers it keeps; AArch64's Linux tells in the auxiliary vector
(`asm/hwcap.h`, Documentation/arch/arm64/elf_hwcaps.rst) and by `prctl` how long SVE's registers
are. Elsewhere everything is believed, and of x86-64 too by libraries that are made on other
processors: `cpuid` is written in assembly, which LLVM reads of its own processor alone. What is
lacking is remembered, and named by the sentence of the status.
"""

from collections.abc import Mapping
from typing import Any

from tilesmith.capabilities.c_library.code.status import PROCESSOR, STATUS
from tilesmith.codegen.compiled.routines import (
    Address,
    External,
    Int32,
    atomic_load32,
    atomic_store32,
    joined,
    load64,
    routine,
    routines_text,
    store8,
)
from tilesmith.codegen.host.machine import cpu_target, host_target
from tilesmith.search_space.hardware.instruction_set import instruction_set_of
from tilesmith.search_space.hardware.target import Target

_EAX, _EBX, _ECX, _EDX = range(4)

_APX = ("egpr", "push2pop2", "ppx", "ndd", "ccmp", "nf", "cf", "zu")
"""One bit, and one kind of registers, for all."""

X86: Mapping[tuple[int, int, int], Mapping[str, int]] = {
    (1, 0, _ECX): {
        "sse3": 0, "pclmul": 1, "ssse3": 9, "fma": 12, "cx16": 13, "sse4.1": 19, "sse4.2": 20,
        "movbe": 22, "popcnt": 23, "aes": 25, "avx": 28, "f16c": 29,
    },
    (7, 0, _EBX): {
        "bmi": 3, "avx2": 5, "bmi2": 8, "avx512f": 16, "avx512dq": 17, "adx": 19, "avx512ifma": 21,
        "avx512cd": 28, "sha": 29, "avx512bw": 30, "avx512vl": 31,
    },
    (7, 0, _ECX): {
        "avx512vbmi": 1, "avx512vbmi2": 6, "gfni": 8, "vaes": 9, "vpclmulqdq": 10, "avx512vnni": 11,
        "avx512bitalg": 12, "avx512vpopcntdq": 14,
    },
    (7, 0, _EDX): {
        "avx512vp2intersect": 8, "amx-bf16": 22, "avx512fp16": 23, "amx-tile": 24, "amx-int8": 25,
    },
    (7, 1, _EAX): {
        "sha512": 0, "sm3": 1, "sm4": 2, "avxvnni": 4, "avx512bf16": 5, "cmpccxadd": 7,
        "amx-fp16": 21, "avxifma": 23,
    },
    (7, 1, _EDX): {
        "avxvnniint8": 4, "avxneconvert": 5, "amx-complex": 8, "avxvnniint16": 10,
        **dict.fromkeys(_APX, 21),
    },
    (0x80000001, 0, _ECX): {"lzcnt": 5, "sse4a": 6, "xop": 11, "fma4": 16, "tbm": 21},
}  # fmt: skip
"""Bits of LLVM's features, by leaf, subleaf and register."""

_KEPT = (
    (("amx-",), 0x60000), (("avx512",), 0xE6), (_APX, 0x80000),
    (("avx", "fma", "f16c", "xop", "sha512", "sm3", "sm4"), 0x6),
)  # fmt: skip
"""What features begin with, and what the system has to keep for them (XCR0)."""

ARM: Mapping[int, Mapping[str, tuple[int, ...]]] = {
    16: {
        "neon": (1,), "aes": (3,), "sha2": (6,), "crc": (7,), "lse": (8,), "fullfp16": (9, 10),
        "rdm": (12,), "rcpc": (15,), "dotprod": (20,), "sve": (22,), "fp16fml": (23,),
    },
    26: {"sve2": (1,), "i8mm": (13,), "bf16": (14,)},
}  # fmt: skip
"""Bits of LLVM's features in AT_HWCAP and AT_HWCAP2."""

_REGISTERS = """
define internal i64 @processor(i32 %leaf, i32 %subleaf, i64 %number) {
entry:
  %bits = alloca { i32, i32, i32, i32 }
  %answer = call { i32, i32, i32, i32 } asm sideeffect "cpuid",
      "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"(
      i32 %leaf, i32 %subleaf)
  store { i32, i32, i32, i32 } %answer, ptr %bits
  %at = getelementptr i32, ptr %bits, i64 %number
  %narrow = load i32, ptr %at
  %found = zext i32 %narrow to i64
  ret i64 %found
}

define internal i64 @kept() {
entry:
  %kept = call { i32, i32 } asm sideeffect "xgetbv",
      "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)
  %narrow = extractvalue { i32, i32 } %kept, 0
  %found = zext i32 %narrow to i64
  ret i64 %found
}

define internal i64 @permit_tiles() {
entry:
  %refused = call i64 asm sideeffect "syscall",
      "={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}"(
      i64 158, i64 4131, i64 18)
  ret i64 %refused
}
"""
"""A register of `cpuid`'s answer; the registers that the system keeps (XCR0);
arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): see `codegen.host`. That is the instruction,
not the C library's `syscall`, which threads that wait declare with other types."""

TEXT = "able.text"
"""The sentence of the status PROCESSOR: what the library needs, once it has been asked what of it
this processor lacks."""

X86_64 = ARM64 = ASKED = ASKS = KEPT = KEEPS = TILES = LENGTH = LEAST = MOST = 0
KNOWN = SENTENCE = NAMES = COUNT = START = 0
"""Of a target: see `processor_text`."""

processor = External("processor", "i64 (i32, i32, i64)")
kept = External("kept", "i64 ()")
permit_tiles = External("permit_tiles", "i64 ()")
getauxval = External("getauxval", "i64 (i64)")
prctl = External("prctl", "i32 (i32, ...)")
memcpy = External("llvm.memcpy.p0.p0.i64", "void (ptr, ptr, i64, i1)")


@routine
def missing(rows: Address, count: int, word: int) -> int:
    """What is lacking by some rows {where to ask, three numbers; mask, what lacks without}; `word`
    is what is asked, if not 0."""
    lacks = 0
    for n in range(count):
        row = rows + 40 * n
        bits = word
        if word == 0:
            if X86_64:
                bits = processor(load64(row), load64(row + 8), load64(row + 16))
            else:
                bits = getauxval(load64(row))
        mask = load64(row + 24)
        if bits & mask != mask:
            lacks = lacks | load64(row + 32)
    return lacks


@routine
def lacking() -> int:
    """What this processor, or its system, lacks: a bit for each of the names."""
    lacks = 0
    if ASKS:
        lacks = missing(ASKED, ASKS, 0)
    if KEEPS and lacks == 0:  # a processor without any of them may not know the instruction
        lacks = missing(KEPT, KEEPS, kept() | 1)
    if TILES and lacks == 0 and permit_tiles() != 0:
        return TILES
    if LENGTH and lacks == 0:
        nbytes = prctl(51, 0, 0, 0, 0) & 65535  # PR_SVE_GET_VL
        if nbytes < LEAST or nbytes > MOST:
            return LENGTH
    return lacks


@routine
def tell(lacks: int) -> None:
    """Write the names of what is lacking into the sentence; two bytes come before each."""
    at = SENTENCE + START
    skipped = 2
    for n in range(COUNT):
        if (lacks >> n) & 1 != 0:
            nbytes = load64(NAMES + 16 * n + 8) - skipped
            memcpy(at, load64(NAMES + 16 * n) + skipped, nbytes, 0)
            at += nbytes
            skipped = 0
    store8(at, 0)


@routine
def able() -> Int32:
    """Whether the processor has what the library needs. Asked once: what a virtual machine answers
    takes it some 20 us. Threads that ask at the same time write the same sentence."""
    known = atomic_load32(KNOWN)
    if known >= 0:
        return known
    lacks = lacking()
    code = 0
    if lacks != 0:
        tell(lacks)
        code = PROCESSOR
    atomic_store32(KNOWN, code)
    return code


_GLOBALS = """
@able.known = internal global i32 -1
@able.text = internal global [{room} x i8] c"{sentence}"
@able.names = internal constant [{count} x {{ ptr, i64 }}] [{names}]
@able.asked = internal constant [{asks} x i64] [{asked}]
@able.kept = internal constant [{keeps} x i64] [{kept}]
"""


_KNOWN: Mapping[str, Mapping[Any, Mapping[str, Any]]] = {"x86_64": X86, "aarch64": ARM}


def plainest(target: Target) -> Target:
    """What a library's own code is made for, which runs before the processor is asked: the plainest
    of the architecture, where it is asked."""
    triple = target.text("isa.triple")
    return cpu_target("plain", "generic", triple) if triple.split("-")[0] in _KNOWN else target


def needed(target: Target) -> tuple[str, ...]:
    """What the processor is asked for, by LLVM's names."""
    wanted, architecture, _ = _wanted(target)
    tables = _KNOWN.get(architecture, {})
    features = [name for names in tables.values() for name in names if name in wanted]
    chosen = instruction_set_of(target)
    if chosen.vscale_bytes and architecture == "aarch64":
        longest = "" if chosen.longest == chosen.vector_bytes else f" to {chosen.longest}"
        features.append(f"vectors of {chosen.vector_bytes}{longest} bytes")
    return tuple(features)


def _wanted(target: Target) -> tuple[set[str], str, str]:
    """Features, architecture and system of a target."""
    architecture, _, system = target.text("isa.triple").partition("-")
    features = target.text("isa.features").split(",")
    return {f[1:] for f in features if f.startswith("+")}, architecture, system


def processor_text(target: Target) -> str:
    """The function and its sentence, in LLVM's language."""
    wanted, architecture, system = _wanted(target)
    places = {name: number for number, name in enumerate(needed(target))}
    chosen, linux = instruction_set_of(target), "linux" in system
    asked: list[int] = []
    kept: list[int] = []
    x86 = architecture == "x86_64" == host_target().text("isa.triple").split("-")[0]
    if x86:
        for where, names in X86.items():
            for name in filter(wanted.__contains__, names):
                asked += [*where, 1 << names[name], 1 << places[name]]
        for starts, mask in _KEPT:
            if lacks := _starting(places, starts):
                kept += [0, 0, 0, mask, lacks]
    elif architecture == "aarch64" and linux:
        for number, features in ARM.items():
            for name in filter(wanted.__contains__, features):
                asked += [number, 0, 0, sum(1 << bit for bit in features[name]), 1 << places[name]]
    start = dict(STATUS)["PROCESSOR"] + (": " if places else "")
    whole = (start + ", ".join(places)).encode() + b"\0"
    constants: dict[str, int | str] = {
        "X86_64": int(x86), "ASKED": "@able.asked", "ASKS": len(asked) // 5, "KEPT": "@able.kept",
        "KEEPS": len(kept) // 5, "KNOWN": "@able.known", "SENTENCE": "@able.text",
        "NAMES": "@able.names", "COUNT": len(places), "START": len(start),
        "TILES": _starting(places, ("amx-",)) if x86 and linux and "amx-tile" in wanted else 0,
        "LENGTH": _starting(places, ("vectors of ",)) if linux else 0, "LEAST": chosen.vector_bytes,
        "MOST": chosen.longest,
    }  # fmt: skip
    shown = [f", {name}".encode() for name in places]
    texts = [f'@able.name.{n} = internal constant [{len(t)} x i8] c"{_escaped(t)}"'
             for n, t in enumerate(shown)]  # fmt: skip
    table = [f"{{ ptr, i64 }} {{ ptr @able.name.{n}, i64 {len(t)} }}" for n, t in enumerate(shown)]
    text = _GLOBALS.format(
        room=len(whole), sentence=_escaped(whole), count=len(table), names=", ".join(table),
        asks=len(asked), asked=_numbers(asked), keeps=len(kept), kept=_numbers(kept),
    )  # fmt: skip
    first = (missing,) if asked or kept else ()
    routines = routines_text((*first, lacking, tell, able), constants)
    return joined("\n".join(texts), text, _REGISTERS if x86 else "", routines)


def _escaped(text: bytes) -> str:
    return "".join(f"\\{byte:02X}" for byte in text)


def _numbers(values: list[int]) -> str:
    return ", ".join(f"i64 {value}" for value in values)


def _starting(places: Mapping[str, int], starts: tuple[str, ...]) -> int:
    return sum(1 << place for name, place in places.items() if name.startswith(starts))
