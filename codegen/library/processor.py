"""`able`: whether the processor has what a library's code needs, asked before any of it runs.

What code needs are the features that LLVM was allowed. x86-64 tells by `cpuid` (Intel's Software
Developer's Manual, volume 2A, and AMD's Architecture Programmer's Manual, volume 3, appendix E) and
the system by `xgetbv` which registers it keeps; AArch64's Linux tells in the auxiliary vector
(`asm/hwcap.h`, Documentation/arch/arm64/elf_hwcaps.rst) and by `prctl` how long SVE's registers
are. Elsewhere everything is believed, and of x86-64 too by libraries that are made on other
processors: `cpuid` is written in assembly, which LLVM reads of its own processor alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilesmith.codegen.host import host_target
from tilesmith.codegen.library.status import CODES
from tilesmith.search_space.instruction_set import instruction_set_of
from tilesmith.search_space.target import Target

_EAX, _EBX, _ECX, _EDX = range(4)

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
    (7, 1, _EAX): {"avxvnni": 4, "avx512bf16": 5, "avxifma": 23},
    (0x80000001, 0, _ECX): {"lzcnt": 5},
}  # fmt: skip
"""Bits of LLVM's features, by leaf, subleaf and register."""

_KEPT = ((("amx-",), 0x60000), (("avx512",), 0xE6), (("avx", "fma", "f16c"), 0x6))
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

_TEST = """
  %found.{n} = and {kind} %bits.{n}, {mask}
  %has.{n} = icmp eq {kind} %found.{n}, {mask}
  br i1 %has.{n}, label %next.{n}, label %not
next.{n}:
"""

_KEEPS = """
  %kept = call { i32, i32 } asm sideeffect "xgetbv",
      "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"(i32 0)
  %bits.kept = extractvalue { i32, i32 } %kept, 0
"""

_TILES = """
  %refused = call i64 @syscall(i64 158, i64 4131, i64 18)
  %granted = icmp eq i64 %refused, 0
  br i1 %granted, label %tiles, label %not
tiles:
"""
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): see `codegen.host`."""

_LENGTH = """
  %told = call i32 (i32, ...) @prctl(i32 51, i64 0, i64 0, i64 0, i64 0)
  %length = and i32 %told, 65535
  %long = icmp uge i32 %length, {least}
  %short = icmp ule i32 %length, {most}
  %fits = and i1 %long, %short
  br i1 %fits, label %suits, label %not
suits:
"""
"""PR_SVE_GET_VL, in bytes."""

_FRAME = """
{declarations}

@able.known = internal global i32 -1

define internal i32 @able() {{
entry:
  %known = load atomic i32, ptr @able.known monotonic, align 4
  %asked = icmp sge i32 %known, 0
  br i1 %asked, label %answered, label %ask
answered:
  ret i32 %known
ask:
{body}
  br i1 true, label %yes, label %not
yes:
  store atomic i32 0, ptr @able.known monotonic, align 4
  ret i32 0
not:
  store atomic i32 {code}, ptr @able.known monotonic, align 4
  ret i32 {code}
}}
"""
"""Asked once: what a virtual machine answers takes it some 20 us."""


def needed(target: Target) -> tuple[str, ...]:
    """What the processor is asked for, by LLVM's names."""
    wanted, architecture, _ = _wanted(target)
    known: dict[str, Mapping[Any, Mapping[str, Any]]] = {"x86_64": X86, "aarch64": ARM}
    tables = known.get(architecture, {})
    found = [name for names in tables.values() for name in names if name in wanted]
    chosen = instruction_set_of(target)
    if chosen.vscale_bytes and architecture == "aarch64":
        longest = "" if chosen.longest == chosen.vector_bytes else f" to {chosen.longest}"
        found.append(f"vectors of {chosen.vector_bytes}{longest} bytes")
    return tuple(found)


def _wanted(target: Target) -> tuple[set[str], str, str]:
    """Features, architecture and system of a target."""
    architecture, _, system = target.text("isa.triple").partition("-")
    features = target.text("isa.features").split(",")
    return {f[1:] for f in features if f.startswith("+")}, architecture, system


def processor_text(target: Target) -> str:
    """The function, in LLVM's language."""
    wanted, architecture, system = _wanted(target)
    if architecture == "x86_64" == host_target().text("isa.triple").split("-")[0]:
        parts, declarations = _x86(wanted, "linux" in system)
    elif architecture == "aarch64" and "linux" in system:
        parts, declarations = _arm(wanted, target)
    else:
        parts, declarations = [], []
    return _FRAME.format(
        declarations="\n".join(declarations), body="".join(parts), code=CODES["PROCESSOR"]
    )


def _mask(bits: list[int], width: int) -> int:
    """As the signed number that LLVM writes."""
    found = sum(1 << bit for bit in bits)
    return found - (1 << width) if found >> (width - 1) else found


def _x86(wanted: set[str], linux: bool) -> tuple[list[str], list[str]]:
    parts, declarations = [], []
    for number, ((leaf, subleaf, register), names) in enumerate(X86.items()):
        bits = [bit for name, bit in names.items() if name in wanted]
        if bits:
            signed = leaf - (1 << 32) if leaf >> 31 else leaf
            parts.append(
                _X86_ASK.format(n=number, leaf=signed, subleaf=subleaf, register=register)
                + _TEST.format(n=number, kind="i32", mask=_mask(bits, 32))
            )
    kept = 0
    for starts, mask in _KEPT:
        kept |= mask if any(name.startswith(starts) for name in wanted) else 0
    if kept:
        parts.append(_KEEPS + _TEST.format(n="kept", kind="i32", mask=kept))
    if "amx-tile" in wanted and linux:
        parts.append(_TILES)
        declarations.append("declare i64 @syscall(i64, ...)")
    return parts, declarations


def _arm(wanted: set[str], target: Target) -> tuple[list[str], list[str]]:
    parts, declarations = [], []
    for number, (entry, names) in enumerate(ARM.items()):
        bits = [bit for name, many in names.items() if name in wanted for bit in many]
        if bits:
            ask = f"\n  %bits.{number} = call i64 @getauxval(i64 {entry})\n"
            parts.append(ask + _TEST.format(n=number, kind="i64", mask=_mask(bits, 64)))
    if parts:
        declarations.append("declare i64 @getauxval(i64)")
    chosen = instruction_set_of(target)
    if chosen.vscale_bytes:
        parts.append(_LENGTH.format(least=chosen.vector_bytes, most=chosen.longest))
        declarations.append("declare i32 @prctl(i32, ...)")
    return parts, declarations
