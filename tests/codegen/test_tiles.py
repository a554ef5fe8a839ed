"""Matrix products in matrix registers (AMX): what is compiled has the instructions, and means the
same by the interpreter and, its tile instructions replaced by Python, run on this machine.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.codegen.test_dot_products import inputs_of, product_of, target_of
from tilesmith.codegen.host import machine as host
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import ENTRY, NativeKernel, compile_program
from tilesmith.codegen.programs.structures import default_of, lowered, space_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import VerificationError
from tilesmith.search_space.workloads.workload import Workload

AMX = target_of("avx512", "+avx512vnni,+avx512bf16,+amx-tile,+amx-int8,+amx-bf16")
TEXTS = (
    "m=32 n=64 k=128 const=b",
    "m=5 n=37 k=12",
    "m=33 n=47 k=70 tb=1",
    "m=17 n=50 k=130 batch=2",
    "m=20 n=20 k=9 ta=1",
)


class Registers:
    """Eight matrix registers, as the manual describes them, called from compiled code."""

    def __init__(self) -> None:
        self.tiles = np.zeros((8, 16, 64), np.uint8)
        self.configured = False
        self.functions: dict[str, Any] = {}
        byte, pointer, long = ctypes.c_uint8, ctypes.c_void_p, ctypes.c_int64
        self._add("ldtilecfg", self._configure, pointer)
        self._add("tilerelease", self._release)
        self._add("tilezero", self._zero, byte)
        self._add("tileloadd64", self._load, byte, pointer, long)
        self._add("tilestored64", self._store, byte, pointer, long)
        for name in ("tdpbusd", "tdpbssd", "tdpbuud", "tdpbsud", "tdpbf16ps"):
            self._add(name, self._product(name), byte, byte, byte)

    def _add(self, name: str, function: Callable[..., None], *kinds: Any) -> None:
        self.functions[name] = ctypes.CFUNCTYPE(None, *kinds)(function)

    def _configure(self, address: int) -> None:
        plan = ctypes.string_at(address, 64)
        assert plan[0] == 1 and plan[16:32] == bytes((64, 0)) * 8 and plan[48:56] == bytes([16] * 8)
        self.configured = True

    def _release(self) -> None:
        self.configured = False

    def _zero(self, tile: int) -> None:
        assert self.configured
        self.tiles[tile] = 0

    def _load(self, tile: int, address: int, stride: int) -> None:
        for row in range(16):
            content = ctypes.string_at(address + row * stride, 64)
            self.tiles[tile, row] = np.frombuffer(content, np.uint8)

    def _store(self, tile: int, address: int, stride: int) -> None:
        for row in range(16):
            ctypes.memmove(address + row * stride, self.tiles[tile, row].tobytes(), 64)

    def _product(self, name: str) -> Callable[[int, int, int], None]:
        kinds: tuple[Any, Any, Any] = (ml_dtypes.bfloat16, ml_dtypes.bfloat16, np.float32)
        if name != "tdpbf16ps":
            signs = {"u": np.uint8, "s": np.int8}
            kinds = signs[name[4]], signs[name[5]], np.int32
        group = 4 // np.dtype(kinds[0]).itemsize

        def multiply(sums: int, left: int, right: int) -> None:
            a = self.tiles[left].view(kinds[0]).astype(kinds[2])
            b = self.tiles[right].view(kinds[1]).astype(kinds[2]).reshape(16, 16, group)
            b = b.transpose(0, 2, 1).reshape(16 * group, 16)
            self.tiles[sums].view(kinds[2])[:] += a @ b

        return multiply


def run(program: Program, arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """The code of a program for AMX on this machine, its tile instructions in Python."""
    registers = Registers()
    text, builder = emit_module(program, AMX).text, llvm.JITLibraryBuilder()
    for name, function in registers.functions.items():
        text = text.replace(f"@llvm.x86.{name}(", f"@emulated.{name}(")
        address = ctypes.cast(function, ctypes.c_void_p).value
        builder = builder.import_symbol(f"emulated.{name}", address)
    assert "llvm.x86.t" not in text
    jit = toolchain.linker(host_target())
    code = toolchain.emit_object(text, target_of("avx512", "+avx512vnni"))
    builder = builder.add_object_img(code).add_current_process().export_symbol("run")
    library = builder.link(jit, "emulated")
    kernel = NativeKernel(compile_program(program, AMX))
    output = kernel.allocate_output()
    given = {**arrays, **kernel.prepare(arrays), kernel.output.name: output}
    kernel._call(ENTRY(library["run"]), given)
    assert not registers.configured
    return output


@pytest.mark.parametrize("text", TEXTS)
def test_sums_are_exact(text: str) -> None:
    if host_target().text("isa.name") != "avx512":
        pytest.skip("the code around the tiles is for AVX-512")
    workload = Workload.parse(f"matmul {text} dtype=uint8 weights=int8")
    rng = np.random.default_rng(0)
    arrays = inputs_of(workload, rng)
    expected = product_of(workload, arrays)
    configs = {default_of(workload, AMX), *space_of(workload, AMX).sample(rng, 2)}
    for config in configs:
        program = lowered(workload, AMX, config)
        verify(program, AMX)
        verify(finish(program), AMX)
        np.testing.assert_array_equal(run(program, arrays), expected, err_msg=str(config))


def test_products_of_bfloat16_are_summed_in_float32() -> None:
    if host_target().text("isa.name") != "avx512":
        pytest.skip("the code around the tiles is for AVX-512")
    workload = Workload.parse("matmul m=18 n=33 k=70 dtype=bfloat16 const=b epilogue=bias")
    rng, kind = np.random.default_rng(0), np.dtype(ml_dtypes.bfloat16)
    arrays = {
        name: rng.integers(-8, 8, shape).astype(kind)  # their sums are exact
        for name, shape in (("a", (18, 70)), ("b", (70, 33)), ("bias0", (33,)))
    }
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    expected = (wide["a"] @ wide["b"] + wide["bias0"]).astype(kind)
    program = lowered(workload, AMX, default_of(workload, AMX))
    assert "tdpbf16ps" in toolchain.emit_assembly(emit_module(program, AMX).text, AMX)
    found = run(program, arrays)
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


def test_the_program_means_the_same() -> None:
    workload = Workload.parse("matmul m=17 n=18 k=5 dtype=uint8 weights=int8 epilogue=correction")
    rng = np.random.default_rng(0)
    arrays = inputs_of(workload, rng)
    correction = rng.integers(-99, 99, 18).astype(np.int32)
    expected = product_of(workload, arrays) + correction
    arrays["correction0"] = correction
    program = finish(lowered(workload, AMX, default_of(workload, AMX)))
    np.testing.assert_array_equal(interpret(program, arrays)["out"], expected)


def test_each_operand_is_loaded_once_a_step() -> None:
    workload = Workload.parse("matmul m=64 n=64 k=256 dtype=uint8 weights=int8 const=b")
    program = lowered(workload, AMX, default_of(workload, AMX))
    assembly = toolchain.emit_assembly(emit_module(program, AMX).text, AMX)
    counts = {
        name: len(re.findall(rf"\b{name}\b", assembly))
        for name in ("ldtilecfg", "tilezero", "tileloadd", "tdpbusd", "tilestored", "tilerelease")
    }
    assert counts == {
        "ldtilecfg": 1, "tilezero": 4, "tileloadd": 4, "tdpbusd": 4, "tilestored": 4,
        "tilerelease": 1,
    }  # fmt: skip


def test_more_tiles_than_there_are_registers_are_refused() -> None:
    workload = Workload.parse("matmul m=64 n=64 k=64 dtype=uint8 weights=int8 const=b")
    config = Config.of({**dict(default_of(workload, AMX).items()), "m_tiles": 4})
    assert config not in space_of(workload, AMX)
    one = Config.of({**dict(default_of(workload, AMX).items()), "m_tiles": 3})
    program = lowered(workload, AMX, one)
    with pytest.raises(VerificationError, match="products"):
        verify(program, _without_tiles())


def _without_tiles() -> Target:
    return target_of("avx512", "+avx512vnni")


def test_registers_that_the_system_refuses_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    features = "+avx512f,+amx-tile,+amx-int8"

    class Refusing:
        def syscall(self, *arguments: int) -> int:
            assert arguments == (158, 0x1023, 18)
            return -1

    monkeypatch.setattr(host.ctypes, "CDLL", lambda name: Refusing())
    assert host._permitted(features) == "+avx512f"
    monkeypatch.setattr(Refusing, "syscall", lambda self, *arguments: 0)
    assert host._permitted(features) == features
    assert host._permitted("+avx2") == "+avx2"
