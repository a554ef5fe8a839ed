"""What a library asks of the processor before it runs, with answers that are made up here."""

from __future__ import annotations

import ctypes
import re
from itertools import count
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tests.capabilities.c_library.c_libraries import LoadedLibrary, emitted, needs_compiler, recipe
from tests.codegen.test_dot_products import target_of
from tests.compiler.model_builder import model_of, random
from tilesmith.capabilities.c_library.code.processor import ARM, X86, needed, processor_text
from tilesmith.capabilities.c_library.code.status import CODES
from tilesmith.codegen.host import machine as host
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.native import toolchain
from tilesmith.search_space.hardware.instruction_set import instruction_set, instruction_set_files

pytestmark = pytest.mark.skipif(
    not host_target().text("isa.triple").startswith("x86_64"), reason="cpuid is x86-64's"
)

AMX = target_of("avx512", "+avx512vnni,+avx512bf16,+amx-tile,+amx-int8,+amx-bf16")
_NUMBERS = count()
SAID: list[str] = []
"""The sentences of answers."""

_PRETENDED = """
target triple = "{triple}"
@answers = global [16 x i32] zeroinitializer
@asked = global [3 x i64] zeroinitializer
@granted = global i64 0

define internal {{ i32, i32, i32, i32 }} @cpuid(i32 %leaf, i32 %subleaf) {{
  %odd = icmp eq i32 %leaf, {leaf}
  %again = icmp eq i32 %subleaf, {subleaf}
  %this = and i1 %odd, %again
  %found = select i1 %this, i32 {lacking}, i32 -1
  %one = insertvalue {{ i32, i32, i32, i32 }} undef, i32 %found, 0
  %two = insertvalue {{ i32, i32, i32, i32 }} %one, i32 %found, 1
  %three = insertvalue {{ i32, i32, i32, i32 }} %two, i32 %found, 2
  %four = insertvalue {{ i32, i32, i32, i32 }} %three, i32 %found, 3
  ret {{ i32, i32, i32, i32 }} %four
}}

define internal {{ i32, i32 }} @xgetbv(i32 %number) {{
  ret {{ i32, i32 }} {{ i32 {kept}, i32 0 }}
}}

define internal i64 @pretended.syscall(i64 %number, i64 %code, i64 %feature) {{
  store i64 %number, ptr @asked
  store i64 %code, ptr getelementptr (i64, ptr @asked, i64 1)
  store i64 %feature, ptr getelementptr (i64, ptr @asked, i64 2)
  %answer = load i64, ptr @granted
  ret i64 %answer
}}

define i32 @ask() {{
  %found = call i32 @able()
  ret i32 %found
}}
"""


def answer(
    lacking: tuple[int, int, int] = (-1, -1, 0), kept: int = -1, granted: int = 0
) -> tuple[int, list[int]]:
    """What AMX code is told on a processor: status, and what the system was asked.

    Args:
        lacking: leaf, subleaf and bit that the processor does not have.
        kept: the registers that the system keeps (XCR0).
        granted: what the system says to the request for tiles.
    """
    text = processor_text(AMX)
    text = re.sub(r'asm sideeffect "cpuid",\s+"[^"]*"\(', "@cpuid(", text)
    text = re.sub(r'asm sideeffect "xgetbv",\s+"[^"]*"\(', "@xgetbv(", text)
    text = re.sub(r'asm sideeffect "syscall",\s+"[^"]*"\(', "@pretended.syscall(", text)
    assert "asm" not in text
    leaf, subleaf, bit = lacking
    signed = leaf - (1 << 32) if leaf >> 31 else leaf
    around = _PRETENDED.format(
        triple=AMX.text("isa.triple"), leaf=signed, subleaf=subleaf, lacking=~(1 << bit), kept=kept
    )
    jit = toolchain.linker(host_target())
    text = text.replace("internal global [", "global [").replace("able.text", "able_text")
    names = ("ask", "asked", "granted", "able_text")
    builder = llvm.JITLibraryBuilder().add_ir(around + text)
    for name in names:
        builder = builder.export_symbol(name)
    linked = builder.link(jit, f"processor{next(_NUMBERS)}")
    ctypes.c_int64.from_address(linked["granted"]).value = granted
    status = ctypes.CFUNCTYPE(ctypes.c_int32)(linked["ask"])()
    again = ctypes.CFUNCTYPE(ctypes.c_int32)(linked["ask"])()
    assert again == status
    SAID.append(ctypes.string_at(linked["able_text"]).decode())
    return status, list((ctypes.c_int64 * 3).from_address(linked["asked"]))


def test_tiles_are_asked_for_where_the_processor_has_them() -> None:
    """arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), once all else is there."""
    assert answer() == (0, [158, 0x1023, 18])
    assert answer(granted=-1) == (CODES["PROCESSOR"], [158, 0x1023, 18])


@pytest.mark.parametrize("feature", ["avx512f", "avx512bf16", "amx-tile", "amx-int8", "fma"])
def test_a_processor_that_lacks_one_feature_is_refused(feature: str) -> None:
    leaf, subleaf, bit = next((k[0], k[1], v[feature]) for k, v in X86.items() if feature in v)
    assert answer((leaf, subleaf, bit)) == (CODES["PROCESSOR"], [0, 0, 0])
    same = [
        name for k, names in X86.items() for name, at in names.items()
        if k[:2] == (leaf, subleaf) and at == bit and name in needed(AMX)
    ]  # fmt: skip
    assert (
        SAID[-1] == f"this processor lacks instructions that the library needs: {', '.join(same)}"
    )


@pytest.mark.parametrize("kept", [0x7, 0xE7, 0x600E1, 0x200E7])
def test_a_system_that_does_not_keep_the_registers_is_refused(kept: int) -> None:
    assert answer(kept=kept) == (CODES["PROCESSOR"], [0, 0, 0])
    named = SAID[-1].split(": ")[1].split(", ")
    lost = {"amx": kept & 0x60000 != 0x60000, "avx512": kept & 0xE6 != 0xE6, "fma": not kept & 2}
    for start, lacks in lost.items():
        assert any(name.startswith(start) for name in named) == lacks
    assert answer(kept=0x600E7)[0] == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_library_for_amx_calls_the_system_for_threads_alone(tmp_path: Path, threads: int) -> None:
    """Tiles are asked for by an instruction: threads that wait declare the C library's `syscall`
    with types of their own."""
    model = model_of("g (float[64, 96] x) => (float[64, 640] y) { y = MatMul(x, w) }",
                     w=random(96, 640))  # fmt: skip
    path = tmp_path / "m.o"
    emitted(recipe(model, AMX, threads=threads), path, kind="object")
    assert (b"syscall" in path.read_bytes()) == (threads > 1)


@needs_compiler
def test_a_library_refuses_in_one_sentence_what_this_processor_lacks(tmp_path: Path) -> None:
    """The processor itself is asked, whatever it is taken for: no processor has all of these."""
    here = host._permitted(llvm.get_host_cpu_features().flatten())
    has = {feature[1:] for feature in here.split(",") if feature.startswith("+")}
    names = [name for names in X86.values() for name in names]
    target = target_of("avx512", ",".join(f"+{name}" for name in names))
    assert set(needed(target)) == set(names) >= {"fma4", "amx-tile"}
    model = model_of("g (float[32, 64] x) => (float[32, 32] y) { y = MatMul(x, w) }",
                     w=random(64, 32))  # fmt: skip
    made = emitted(recipe(model, target, precision="bf16"), tmp_path / "m.so", prefix="m")
    library = LoadedLibrary(Path(made.path), "m")
    code = CODES["PROCESSOR"]
    said = library.call("status", code, result=ctypes.c_char_p).decode()
    assert said.startswith("this processor lacks instructions that the library needs: ")
    assert said.split(": ")[1].split(", ") == list(needed(target))
    handle = ctypes.c_void_p()
    assert library.call("init", None) == library.call("verify") == code
    said = library.call("status", code, result=ctypes.c_char_p).decode()
    assert said.split(": ")[1].split(", ") == [name for name in names if name not in has]
    assert library.call("create", 1, ctypes.byref(handle)) == code and not handle.value


def test_every_feature_of_an_instruction_set_is_asked_for() -> None:
    """Those of its products, too: code that has them ends a processor that lacks one."""
    known = {name for names in (*X86.values(), *ARM.values()) for name in names}
    for name in instruction_set_files:
        chosen = instruction_set(name)
        products = (*chosen.dot_products, *chosen.tile_products)
        texts = (chosen.features, *(product.features for product in products))
        wanted = {f[1:] for f in ",".join(texts).split(",") if f.startswith("+")}
        if {"x86_64", "aarch64"}.intersection(chosen.architectures):
            assert wanted <= known, name
