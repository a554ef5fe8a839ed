"""Matrix products of bytes: exact in every schedule, by every instruction that multiplies and adds.

Sums are compared with numpy's in 64 bits. Instruction sets are those of processors that lack some
of this one's instructions; what this machine cannot run is only compiled.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import compile_config
from tilesmith.codegen.programs.structures import default_of, lowered, space_of
from tilesmith.compiler.backends.backend import backends
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.instruction_set import instruction_set
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Intrinsic, walk
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.workloads.scheduler import find_scheduler
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


def target_of(isa: str, features: str = "") -> Target:
    chosen = instruction_set(isa)
    own = ",".join(filter(None, (chosen.features, features)))
    return cpu_target(isa, isa, chosen.triple or "x86_64-unknown-linux-gnu", features=own)


TARGETS = {
    "vpdpbusd zmm": target_of("avx512", "+avx512vnni"),
    "vpmaddwd zmm": target_of("avx512"),
    "vpdpbusd ymm": target_of("avx2", "+avxvnni"),
    "vpmaddwd ymm": target_of("avx2"),
    "pmaddwd xmm": target_of("sse"),
    " ": target_of("generic"),
}


def inputs_of(workload: Workload, rng: np.random.Generator) -> dict[str, NDArray[np.integer]]:
    """The whole range of the bytes, the extremes often: sums of two products leave 16 bits."""
    m, n, k, batch = (workload.integer(name) for name in ("m", "n", "k", "batch"))
    lead = (batch,) if batch > 1 else ()
    found = {}
    for name, shape in (("a", (m, k)), ("b", (k, n))):
        kind = to_numpy(workload.dtype if name == "a" else workload.text("weights"))
        ends = np.iinfo(kind)
        values = rng.integers(ends.min, ends.max + 1, (*lead, *shape))
        extreme = rng.choice([ends.min, ends.max], (*lead, *shape))
        values = np.where(rng.random((*lead, *shape)) < 0.5, values, extreme).astype(kind)
        stored = values.swapaxes(-1, -2) if workload.integer(f"t{name}") else values
        found[name] = np.ascontiguousarray(stored)
    return found


def product_of(workload: Workload, arrays: dict[str, NDArray[np.integer]]) -> NDArray[np.int64]:
    wide = {
        name: (a.swapaxes(-1, -2) if workload.integer(f"t{name}") else a).astype(np.int64)
        for name, a in arrays.items()
    }
    return wide["a"] @ wide["b"]


@settings(deadline=None, max_examples=10)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 50), st.integers(1, 20)),
    st.sampled_from(["uint8 int8", "int8 int8", "uint8 uint8"]),
    st.sampled_from(["", " const=b", " tb=1", " tb=1 const=b", " batch=3", " ta=1"]),
    st.sampled_from(sorted(TARGETS)),
    st.integers(0, 9999),
)
def test_sums_are_exact(
    mnk: tuple[int, int, int], dtypes: str, rest: str, name: str, seed: int
) -> None:
    target, rng = TARGETS[name], np.random.default_rng(seed)
    try:
        backends["cpu"].check(target)
    except TargetError:
        return
    (m, n, k), (left, right) = mnk, dtypes.split()
    workload = Workload.parse(f"matmul m={m} n={n} k={k} dtype={left} weights={right}{rest}")
    arrays = inputs_of(workload, rng)
    expected = product_of(workload, arrays)
    for config in (default_of(workload, target), *space_of(workload, target).sample(rng, 1)):
        verify(lowered(workload, target, config), target)
        found = compile_config(workload, target, config)(arrays)
        np.testing.assert_array_equal(found, expected, err_msg=f"{workload} | {config}")


BFLOAT16 = {
    "vdpbf16ps zmm": target_of("avx512", "+avx512bf16"),
    "vdpbf16ps ymm": target_of("avx10_256", "+avx512bf16"),
    " ": target_of("avx2"),
}


@settings(deadline=None, max_examples=8)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 50), st.integers(1, 20)),
    st.sampled_from(["", " const=b", " tb=1", " batch=2", " const=b epilogue=relu"]),
    st.sampled_from(sorted(BFLOAT16)),
    st.integers(0, 9999),
)
def test_bfloat16_is_summed_in_float32(
    mnk: tuple[int, int, int], rest: str, name: str, seed: int
) -> None:
    target, rng = BFLOAT16[name], np.random.default_rng(seed)
    try:
        backends["cpu"].check(target)
    except TargetError:
        return
    m, n, k = mnk
    workload = Workload.parse(f"matmul m={m} n={n} k={k} dtype=bfloat16{rest}")
    # Small whole numbers: sums are exact in float32, so that only the result is rounded.
    arrays = {
        operand.name: rng.integers(-9, 10, operand.shape).astype(to_numpy("bfloat16"))
        for operand in template_of("matmul").inputs(workload)
    }
    expected = product_of(workload, {x: array.astype(np.int64) for x, array in arrays.items()})
    expected = np.maximum(expected, 0) if workload.epilogue else expected
    for config in (default_of(workload, target), *space_of(workload, target).sample(rng, 1)):
        verify(lowered(workload, target, config), target)
        found = compile_config(workload, target, config)(arrays)
        rounded = expected.astype(np.float32).astype(to_numpy("bfloat16"))
        assert np.array_equal(found, rounded), f"{workload} | {config}"


@pytest.mark.parametrize("name", sorted(BFLOAT16))
def test_the_instruction_of_bfloat16_is_used(name: str) -> None:
    target, (instruction, register) = BFLOAT16[name], name.split(" ")
    workload = Workload.parse("matmul m=8 n=64 k=15 dtype=bfloat16 const=b")
    program = lowered(workload, target, default_of(workload, target))
    assembly = toolchain.emit_assembly(emit_module(program, target).text, target)
    if instruction:
        assert len(re.findall(rf"\b{instruction}\s.*%{register}", assembly)) >= 16


@pytest.mark.parametrize("k", [16, 13])
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_instruction_is_used(name: str, k: int) -> None:
    target, (instruction, register) = TARGETS[name], name.split(" ")
    workload = Workload.parse(f"matmul m=8 n=64 k={k} dtype=uint8 weights=int8 const=b")
    program = lowered(workload, target, default_of(workload, target))
    assembly = toolchain.emit_assembly(emit_module(program, target).text, target)
    if instruction:
        assert len(re.findall(rf"\b{instruction}\s.*%{register}", assembly)) >= 16
    assert "pmaddubsw" not in assembly  # its sums of two products saturate


CROSS = [
    ("neon", "+dotprod,+i8mm", "dtype=uint8 weights=int8", r"\busdot\s+v\d+\.4s"),
    ("neon", "+dotprod", "dtype=int8", r"\bsdot\s+v\d+\.4s"),
    ("neon", "+bf16", "dtype=bfloat16", r"\bbfdot\s+v\d+\.4s"),
    ("sve128", "+i8mm", "dtype=uint8 weights=int8", r"\busdot\s+[vz]\d+\."),
    ("sve256", "+i8mm", "dtype=uint8 weights=int8", r"\busdot\s+z\d+\.s"),
    ("sve256", "+bf16", "dtype=bfloat16", r"\bbfdot\s+z\d+\.s"),
    ("avx512", "+avx512fp16", "dtype=float16", r"\bvcvtph2psx\s.*%zmm"),
]


@pytest.mark.parametrize(("isa", "features", "dtypes", "instruction"), CROSS)
def test_code_for_other_processors_has_their_instructions(
    isa: str, features: str, dtypes: str, instruction: str
) -> None:
    target = target_of(isa, features)
    workload = Workload.parse(f"matmul m=8 n=64 k=32 const=b {dtypes}")
    program = lowered(workload, target, default_of(workload, target))
    assembly = toolchain.emit_assembly(emit_module(program, target).text, target)
    assert len(re.findall(instruction, assembly)) >= 8


@pytest.mark.parametrize("text", ["m=3 n=19 k=9 const=b", "m=2 n=5 k=6 tb=1", "m=3 n=17 k=5"])
def test_the_program_means_the_same(text: str) -> None:
    target = TARGETS["vpdpbusd zmm"]
    workload = Workload.parse(f"matmul {text} dtype=uint8 weights=int8")
    arrays = inputs_of(workload, np.random.default_rng(2))
    program = lowered(workload, target, default_of(workload, target))
    assert any(isinstance(s, Intrinsic) and s.name == "dot_product" for s in walk(program.body))
    for version in (program, finish(program)):
        found = interpret(version, arrays)["c"]
        np.testing.assert_array_equal(found, product_of(workload, arrays))


def test_only_a_target_with_the_instruction_has_groups() -> None:
    workload = Workload.parse("matmul m=8 n=64 k=16 dtype=uint8 weights=int8 const=b")
    algorithms = {
        name: default_of(workload, target).text("algorithm") for name, target in TARGETS.items()
    }
    assert {name for name, algorithm in algorithms.items() if algorithm == "blocked"} == {" "}


def test_a_reduction_that_varies_has_no_groups() -> None:
    workload = Workload.parse("matmul m=[s] n=20 k=[t] dtype=uint8 weights=int8")
    scheduler = find_scheduler("matmul", "cpu")
    assert scheduler is not None
    target, usual = TARGETS["vpdpbusd zmm"], workload.at({"s": 8, "t": 32})
    largest = workload.at({"s": 99, "t": 300})
    config: Config = scheduler.default(usual, target)
    assert config.text("algorithm") == "dot"
    found = scheduler.varying(workload, usual, largest, target, config)
    assert found.text("algorithm") == "blocked"
