"""Every instruction set of `search_space/instruction_sets`, cross-compiled: the machine its objects
are of, and the instructions in them. Numbers are checked where this machine can run the code.

A new file is found by itself. What its assembly looks like, it says itself (`[assembly]`); that a
vector of its width is one register, and that LLVM has its intrinsics, is shown by compiling them;
that its dot products mean what it says, by running them.
"""

from __future__ import annotations

import ctypes
import re
import struct
from functools import cache

import llvmlite.binding as llvm
import numpy as np
import pytest

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.host.memory import aligned_copy
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import compile_config
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.compiler.backends.backend import backends
from tilesmith.search_space.expressions.dtypes import size_of, to_numpy
from tilesmith.search_space.hardware.instruction_set import (
    DotProduct,
    InstructionSet,
    instruction_set,
    instruction_set_files,
    lanes,
)
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

MATMUL = "matmul m=13 n=37 k=29 const=b epilogue=bias,tanh"
KERNELS = (
    MATMUL,
    "softmax shape=7x131",
    "conv2d n=1 c=16 h=9 w=9 oc=32 kh=3 kw=3 stride=1 pad=1 const=weight",
)
UNKNOWN = {
    "powerpc64le-unknown-linux-gnu": 21,
    "s390x-unknown-linux-gnu": 22,
    "riscv64-unknown-linux-gnu": 243,
    "loongarch64-unknown-linux-gnu": 258,
    "x86_64-unknown-linux-gnu": 62,
}
KNOWN = [name for name in instruction_set_files if instruction_set(name).architectures]
LLVM_TYPES = {"float32": "float", "bfloat16": "bfloat"}


def target_of(name: str) -> Target:
    return cpu_target(name, name, instruction_set(name).triple)


@cache
def module_text(key: str, target: Target) -> str:
    workload = Workload.parse(key)
    config = default_of(workload, target)
    return emit_module(lowered(workload, target, config), target).text


def machine_of(code: bytes) -> int:
    """`e_machine` of a relocatable 64-bit ELF object."""
    assert code[:5] == b"\x7fELF\2"
    kind, machine = struct.unpack_from("<HH" if code[5] == 1 else ">HH", code, 16)
    assert kind == 1
    return int(machine)


@cache
def elf_machine_of(architecture: str) -> int:
    """What LLVM itself writes into objects of an architecture, told no more than its name."""
    empty = llvm.parse_assembly("")
    machine = llvm.Target.from_triple(f"{architecture}-unknown-linux-gnu").create_target_machine()
    return machine_of(bytes(machine.emit_object(empty)))


@pytest.mark.parametrize("key", KERNELS)
@pytest.mark.parametrize("name", KNOWN)
def test_kernels_are_of_the_sets_machine_and_registers(name: str, key: str) -> None:
    chosen, target = instruction_set(name), target_of(name)
    text = module_text(key, target)
    found = machine_of(toolchain.emit_object(text, target))
    assert found == chosen.elf_machine == elf_machine_of(chosen.architectures[0])
    assembly = toolchain.emit_assembly(text, target)
    assert "fmaf" not in assembly  # the library's, lane by lane
    assert re.search(chosen.assembly.vector, assembly)
    assert len(re.findall(chosen.assembly.multiply_add, assembly)) >= 8
    assert not chosen.assembly.never or not re.search(chosen.assembly.never, assembly)


@pytest.mark.parametrize("vectors", [1, 2])
@pytest.mark.parametrize("name", KNOWN)
def test_a_vector_is_one_register(name: str, vectors: int) -> None:
    """One multiply-add of `vector.bytes` is one instruction, of twice as much two, on them."""
    chosen, target = instruction_set(name), target_of(name)
    kind = f"<{vectors * lanes(target, 'float32')} x float>"
    loads = "\n".join(f"%{x} = load {kind}, ptr %p{x}, align 64" for x in "abc")
    text = f"""
target triple = "{chosen.triple}"
define void @f(ptr %pa, ptr %pb, ptr %pc) {chosen.function_attributes} {{
{loads}
%d = fmul contract {kind} %a, %b
%e = fadd contract {kind} %d, %c
store {kind} %e, ptr %pc, align 64
ret void
}}"""
    found = toolchain.emit_assembly(text, target)
    assert len(re.findall(chosen.assembly.multiply_add, found)) == vectors or scaled(found, vectors)
    assert re.search(chosen.assembly.vector, found) or scaled(found, vectors)


def scaled(assembly: str, vectors: int) -> bool:
    """RISC-V takes registers in groups: two of them are one instruction's operand."""
    return vectors > 1 and f"e32, m{vectors}," in assembly


PRODUCTS = pytest.mark.parametrize(
    ("name", "product"),
    [(n, p) for n in KNOWN for p in instruction_set(n).dot_products],
    ids=lambda value: value.instruction if isinstance(value, DotProduct) else value,
)


def with_features(name: str, product: DotProduct) -> Target:
    """A processor that has an instruction set and one of its dot products."""
    features = [part for part in (instruction_set(name).features, product.features) if part]
    return target_of(name).with_settings({"isa.features": ",".join(features)})


def dot_module(chosen: InstructionSet, product: DotProduct) -> str:
    """dot(c, a, b): c = the product of one register each of a and b, added to c."""
    kinds = [vector_type(chosen, dtype) for dtype in (product.accumulator, *product.inputs)]
    loads = "\n".join(
        f"%{x} = load {kind}, ptr %p{x}" for x, kind in zip("cab", kinds, strict=True)
    )
    taken = kinds if product.accumulates else kinds[1:]
    names = "cab" if product.accumulates else "ab"
    given = [f"{kind} %{x}" for x, kind in zip(names, taken, strict=True)]
    word = "fadd" if kinds[0].endswith("float>") else "add"
    total = f"%d = {word} {kinds[0]} %s, {'zeroinitializer' if product.accumulates else '%c'}"
    return f"""
target triple = "{chosen.triple}"
declare {kinds[0]} @{product.intrinsic}({", ".join(taken)})
define void @dot(ptr %pc, ptr %pa, ptr %pb) {chosen.function_attributes} {{
{loads}
%s = call {kinds[0]} @{product.intrinsic}({", ".join(given)})
{total}
store {kinds[0]} %d, ptr %pc
ret void
}}"""


@PRODUCTS
def test_dot_products_are_what_llvm_has(name: str, product: DotProduct) -> None:
    """The stated intrinsic on the stated dtypes becomes the stated instruction."""
    text = dot_module(instruction_set(name), product)
    assembly = toolchain.emit_assembly(text, with_features(name, product))
    assert re.search(rf"\b{product.instruction}\s", assembly)


@pytest.mark.parametrize(
    ("name", "product"),
    [(n, p) for n in KNOWN for p in instruction_set(n).tile_products],
    ids=lambda value: value.instruction if isinstance(value, DotProduct) else value,
)
def test_products_of_tiles_are_what_llvm_has(name: str, product: DotProduct) -> None:
    tiles = instruction_set(name).tiles
    assert tiles is not None
    features = ",".join((instruction_set(name).features, tiles.features, product.features))
    text = f"""
target triple = "{instruction_set(name).triple}"
declare void @{product.intrinsic}(i8, i8, i8)
define void @multiply() {{
call void @{product.intrinsic}(i8 0, i8 1, i8 2)
ret void
}}"""
    target = target_of(name).with_settings({"isa.features": features})
    assert re.search(rf"\b{product.instruction}\s", toolchain.emit_assembly(text, target))


@PRODUCTS
def test_dot_products_compute_what_they_state(name: str, product: DotProduct) -> None:
    target, chosen = with_features(name, product), instruction_set(name)
    skip_unless_runnable(target)
    sums, *inputs = (to_numpy(dtype) for dtype in (product.accumulator, *product.inputs))
    rng, lane_count = np.random.default_rng(0), lanes(target, product.accumulator)
    shape = (lane_count, product.products)
    left, right = (  # unsigned beyond the signed: the order of the inputs shows
        rng.integers(*(0, 256) if kind.kind == "u" else (-100, 100), shape).astype(kind)
        for kind in inputs
    )
    found = rng.integers(-1000, 1000, lane_count).astype(sums)
    expected = found + (left.astype(np.int64) * right.astype(np.int64)).sum(axis=1)
    jit = toolchain.linker(target)
    code = toolchain.emit_object(dot_module(chosen, product), target)
    builder = llvm.JITLibraryBuilder().add_object_img(code).export_symbol("dot")
    library = builder.link(jit, f"{name}.{product.instruction}")
    dot = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(library["dot"])
    arrays = [aligned_copy(array) for array in (found, left, right)]
    dot(*(array.ctypes.data for array in arrays))
    np.testing.assert_array_equal(arrays[0], expected)


def skip_unless_runnable(target: Target) -> None:
    """Skip the test where this machine lacks what the code needs."""
    try:
        backends["cpu"].check(target)
    except TargetError as error:
        pytest.skip(str(error))


def vector_type(chosen: InstructionSet, dtype: str) -> str:
    """A whole register of a dtype in LLVM."""
    scalar = LLVM_TYPES.get(dtype, f"i{8 * size_of(dtype)}")
    if chosen.vscale_bytes:
        return f"<vscale x {chosen.vscale_bytes // size_of(dtype)} x {scalar}>"
    return f"<{chosen.vector_bytes // size_of(dtype)} x {scalar}>"


@pytest.mark.parametrize("key", [MATMUL, "softmax shape=7x131"])
@pytest.mark.parametrize("name", KNOWN)
def test_what_this_machine_can_run_is_right(name: str, key: str) -> None:
    workload, target = Workload.parse(key), target_of(name)
    skip_unless_runnable(target)
    template, rng = template_of(workload.operator), np.random.default_rng(0)
    arrays = {
        o.name: rng.standard_normal(o.shape).astype(np.float32) for o in template.operands(workload)
    }
    if workload.operator == "matmul":
        expected = np.tanh(arrays["a"] @ arrays["b"] + arrays["bias0"])
    else:
        powers = np.exp(arrays["x"] - arrays["x"].max(axis=1, keepdims=True))
        expected = powers / powers.sum(axis=1, keepdims=True)
    found = compile_config(workload, target, default_of(workload, target))(arrays)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("triple", UNKNOWN)
def test_any_processor_has_portable_vectors(triple: str) -> None:
    target = cpu_target("unknown", "generic", triple)
    for key in KERNELS:
        assert (
            machine_of(toolchain.emit_object(module_text(key, target), target)) == UNKNOWN[triple]
        )
