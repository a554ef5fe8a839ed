"""`able`: whether the processor has what a library's code needs, asked before any of it runs.

What code needs are the features that LLVM was allowed. x86-64 tells by `cpuid` (Intel's Software
Developer's Manual, volume 2A, and AMD's Architecture Programmer's Manual, volume 3, appendix E) and
the system by `xgetbv` which registers it keeps; AArch64's Linux tells in the auxiliary vector
(`asm/hwcap.h`, Documentation/arch/arm64/elf_hwcaps.rst) and by `prctl` how long SVE's registers
are. Elsewhere everything is believed, and of x86-64 too by libraries that are made on other
processors: `cpuid` is written in assembly, which LLVM reads of its own processor alone. What is
lacking is remembered, and named by the sentence of the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilesmith.capabilities.c_library.code.status import CODES, STATUS
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

_X86_ASK = """
  %leaf.{n} = call {{ i32, i32, i32, i32 }} asm sideeffect "cpuid",
      "={{ax}},={{bx}},={{cx}},={{dx}},{{ax}},{{cx}},~{{dirflag}},~{{fpsr}},~{{flags}}"(
      i32 {leaf}, i32 {subleaf})
  %bits.{n} = extractvalue {{ i32, i32, i32, i32 }} %leaf.{n}, {register}
"""

_KEEPS = """
  %kept = call { i32, i32 } asm sideeffect "xgetbv",
      "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)
  %bits.kept = extractvalue { i32, i32 } %kept, 0
"""

_LACK = """
  %found.{n} = and {kind} %{bits}, {mask}
  %no.{n} = icmp ne {kind} %found.{n}, {mask}
  %more.{n} = select i1 %no.{n}, i64 {lacks}, i64 0
  %before.{n} = load i64, ptr %lacks
  %together.{n} = or i64 %before.{n}, %more.{n}
  store i64 %together.{n}, ptr %lacks
"""
"""Bits of the processor that have to be set; else what needs them is lacking."""

_SO_FAR = """
  %lacking.{n} = load i64, ptr %lacks
  %none.{n} = icmp eq i64 %lacking.{n}, 0
  br i1 %none.{n}, label %next.{n}, label %not
next.{n}:
"""

_TILES = """
  %refused = call i64 asm sideeffect "syscall",
      "={{rax}},{{rax}},{{rdi}},{{rsi}},~{{rcx}},~{{r11}},~{{memory}},~{{dirflag}},~{{fpsr}},~{{flags}}"(
      i64 158, i64 4131, i64 18)
  %withheld = icmp ne i64 %refused, 0
  %tiles = select i1 %withheld, i64 {lacks}, i64 0
  store i64 %tiles, ptr %lacks
"""
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): see `codegen.host`. The instruction itself,
not the C library's `syscall`, which threads that wait declare with other types."""

_LENGTH = """
  %told = call i32 (i32, ...) @prctl(i32 51, i64 0, i64 0, i64 0, i64 0)
  %length = and i32 %told, 65535
  %long = icmp uge i32 %length, {least}
  %short = icmp ule i32 %length, {most}
  %fits = and i1 %long, %short
  %other = select i1 %fits, i64 0, i64 {lacks}
  store i64 %other, ptr %lacks
"""
"""PR_SVE_GET_VL, in bytes."""

_FRAME = """
{declarations}

@able.known = internal global i32 -1
@able.text = internal global [{room} x i8] c"{sentence}"
@able.names = internal constant [{count} x {{ ptr, i64 }}] [{names}]

define internal void @able.tell(i64 %lacks) {{
entry:
  br label %each
each:
  %n = phi i64 [ 0, %entry ], [ %next, %go ]
  %at = phi i64 [ {start}, %entry ], [ %at.next, %go ]
  %more = icmp ult i64 %n, {count}
  br i1 %more, label %look, label %end
look:
  %bit = shl i64 1, %n
  %set = and i64 %lacks, %bit
  %there = icmp eq i64 %set, 0
  br i1 %there, label %go, label %name
name:
  %entry.at = getelementptr {{ ptr, i64 }}, ptr @able.names, i64 %n
  %text = load ptr, ptr %entry.at
  %size.at = getelementptr {{ ptr, i64 }}, ptr @able.names, i64 %n, i32 1
  %size = load i64, ptr %size.at
  %first = icmp eq i64 %at, {start}
  %skip = select i1 %first, i64 2, i64 0
  %from = getelementptr i8, ptr %text, i64 %skip
  %length = sub i64 %size, %skip
  %to = getelementptr i8, ptr @able.text, i64 %at
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %length, i1 0)
  %behind = add i64 %at, %length
  br label %go
go:
  %at.next = phi i64 [ %at, %look ], [ %behind, %name ]
  %next = add i64 %n, 1
  br label %each
end:
  %last = getelementptr i8, ptr @able.text, i64 %at
  store i8 0, ptr %last
  ret void
}}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i32 @able() {{
entry:
  %known = load atomic i32, ptr @able.known acquire, align 4
  %asked = icmp sge i32 %known, 0
  br i1 %asked, label %answered, label %ask
answered:
  ret i32 %known
ask:
  %lacks = alloca i64
  store i64 0, ptr %lacks
{body}
  br label %finally
finally:
  %at.last = load i64, ptr %lacks
  %has.all = icmp eq i64 %at.last, 0
  br i1 %has.all, label %yes, label %not
yes:
  store atomic i32 0, ptr @able.known release, align 4
  ret i32 0
not:
  %missing = load i64, ptr %lacks
  call void @able.tell(i64 %missing)
  store atomic i32 {code}, ptr @able.known release, align 4
  ret i32 {code}
}}
"""
"""Asked once: what a virtual machine answers takes it some 20 us. Threads that ask at the same time
write the same sentence."""

TEXT = "able.text"
"""The sentence of the status PROCESSOR: what the library needs, once it has been asked what of it
this processor lacks."""


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
    parts: list[str] = []
    declarations: list[str] = []
    if architecture == "x86_64" == host_target().text("isa.triple").split("-")[0]:
        parts = _x86(wanted, places, "linux" in system)
    elif architecture == "aarch64" and "linux" in system:
        parts, declarations = _arm(wanted, places, target)
    start = dict(STATUS)["PROCESSOR"] + (": " if places else "")
    whole = (start + ", ".join(places)).encode() + b"\0"
    names = [f", {name}".encode() for name in places]
    texts = [f'@able.name.{n} = internal constant [{len(t)} x i8] c"{_escaped(t)}"'
             for n, t in enumerate(names)]  # fmt: skip
    table = [f"{{ ptr, i64 }} {{ ptr @able.name.{n}, i64 {len(t)} }}" for n, t in enumerate(names)]
    return _FRAME.format(
        declarations="\n".join((*declarations, *texts)), body="".join(parts),
        code=CODES["PROCESSOR"], room=len(whole), sentence=_escaped(whole), start=len(start),
        count=len(names), names=", ".join(table),
    )  # fmt: skip


def _escaped(text: bytes) -> str:
    return "".join(f"\\{byte:02X}" for byte in text)


def _lack(n: str, kind: str, bits: str, mask: int, lacks: int) -> str:
    """A test: `lacks` are the places of what is lacking where bits are not set."""
    width = int(kind[1:])
    signed = mask - (1 << width) if mask >> (width - 1) else mask  # as LLVM writes numbers
    return _LACK.format(n=n, kind=kind, bits=bits, mask=signed, lacks=lacks)


def _starting(places: Mapping[str, int], starts: tuple[str, ...]) -> int:
    return sum(1 << place for name, place in places.items() if name.startswith(starts))


def _x86(wanted: set[str], places: Mapping[str, int], linux: bool) -> list[str]:
    parts: list[str] = []
    for number, ((leaf, subleaf, register), names) in enumerate(X86.items()):
        bits = {name: bit for name, bit in names.items() if name in wanted}
        if bits:
            signed = leaf - (1 << 32) if leaf >> 31 else leaf
            ask = _X86_ASK.format(n=number, leaf=signed, subleaf=subleaf, register=register)
            parts.append(ask)
        for name, bit in bits.items():
            place = places[name]
            parts.append(_lack(str(place), "i32", f"bits.{number}", 1 << bit, 1 << place))
    kept = [(n, starts, mask) for n, (starts, mask) in enumerate(_KEPT)]
    kept = [entry for entry in kept if _starting(places, entry[1])]
    if kept:  # a processor without any of them may not know the instruction
        parts.append(_SO_FAR.format(n="kept") + _KEEPS)
    for n, starts, mask in kept:
        parts.append(_lack(f"kept{n}", "i32", "bits.kept", mask, _starting(places, starts)))
    if "amx-tile" in wanted and linux:
        tiles = _TILES.format(lacks=_starting(places, ("amx-",)))
        parts.append(_SO_FAR.format(n="tiles") + tiles)
    return parts


def _arm(
    wanted: set[str], places: Mapping[str, int], target: Target
) -> tuple[list[str], list[str]]:
    parts, declarations = [], []
    for number, (entry, names) in enumerate(ARM.items()):
        bits = {name: many for name, many in names.items() if name in wanted}
        if bits:
            parts.append(f"\n  %bits.{number} = call i64 @getauxval(i64 {entry})\n")
        for name, many in bits.items():
            place, mask = places[name], sum(1 << bit for bit in many)
            parts.append(_lack(str(place), "i64", f"bits.{number}", mask, 1 << place))
    if parts:
        declarations.append("declare i64 @getauxval(i64)")
    chosen = instruction_set_of(target)
    if chosen.vscale_bytes:
        lacks = _starting(places, ("vectors of ",))
        length = _LENGTH.format(least=chosen.vector_bytes, most=chosen.longest, lacks=lacks)
        parts.append(_SO_FAR.format(n="length") + length)
        declarations.append("declare i32 @prctl(i32, ...)")
    return parts, declarations
