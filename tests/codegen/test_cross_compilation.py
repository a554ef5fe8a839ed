"""Code for other vector instruction sets: the right machine, instructions and results.

What every instruction set is held to, with its objects: `conformance/test_instruction_sets.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.codegen.kernels import narrowed, pointwise
from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import NativeKernel, compile_config, compile_program
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
WORKLOAD = Workload.parse("matmul m=13 n=37 k=29 const=b epilogue=bias,tanh")


def target_of(isa: str) -> Target:
    return cpu_target(isa, isa, ARM if isa == "neon" else X86)


def module_text(target: Target) -> str:
    config = default_of(WORKLOAD, target)
    return emit_module(lowered(WORKLOAD, target, config), target).text


@pytest.mark.parametrize(
    ("isa", "expected", "forbidden"),
    [
        ("avx512", r"vfmadd\d+ps\s.*%zmm", None),
        ("avx2", r"vfmadd\d+ps\s.*%ymm", r"%zmm|%k[1-7]"),
        ("sse", r"mulps\s.*%xmm", r"%ymm|%zmm|vfmadd"),
        ("neon", r"fmla\s+v\d+\.4s", None),
    ],
)
def test_the_inner_loop_uses_the_targets_vectors(
    isa: str, expected: str, forbidden: str | None
) -> None:
    target = target_of(isa)
    text = toolchain.emit_assembly(module_text(target), target)
    assert len(re.findall(expected, text)) >= 8
    assert forbidden is None or not re.search(forbidden, text)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "sse"])
def test_what_this_machine_can_run_is_right(isa: str, needs: Callable[[str], None]) -> None:
    needs(isa)
    target, template = narrowed(isa), template_of("matmul")
    rng = np.random.default_rng(0)
    arrays = {
        o.name: rng.standard_normal(o.shape).astype(np.float32) for o in template.operands(WORKLOAD)
    }
    expected = np.tanh(arrays["a"] @ arrays["b"] + arrays["bias0"])
    config = default_of(WORKLOAD, target)
    np.testing.assert_allclose(
        compile_config(WORKLOAD, target, config)(arrays), expected, atol=1e-5
    )
    smaller = Config.of({**config, "m_tile": 3, "pack_b": "none"})
    np.testing.assert_allclose(
        compile_config(WORKLOAD, target, smaller)(arrays), expected, atol=1e-5
    )


def test_accumulators_stay_in_registers() -> None:
    """A tile that fits leaves no vector store in the reduction loop."""
    workload = Workload.parse("matmul m=24 n=32 k=512 const=b")
    target = target_of("avx512")
    config = Config.of({**default_of(workload, target), "m_tile": 12})
    program = lowered(workload, target, config)
    text = toolchain.emit_assembly(emit_module(program, target).text, target)
    loops = [part for part in re.split(r"\n\.L\w+:", text) if part.count("vfmadd") >= 24]
    assert loops and all(not re.search(r"vmov\w+\s+%zmm\d+, -?\d*\(%rsp", p) for p in loops)


def test_unknown_machines_and_bad_modules_are_named() -> None:
    with pytest.raises(CodegenError, match="LLVM has no code generator for 'vax-dec-vms'"):
        toolchain.emit_object("", cpu_target("vax", "sse", "vax-dec-vms"))
    with pytest.raises(CodegenError, match="LLVM refused the generated module"):
        toolchain.emit_object("define void @f() { ret i32 }", target_of("sse"))


def test_code_of_another_machine_is_not_loaded() -> None:
    target = target_of("neon") if "x86" in narrowed("sse").text("isa.triple") else target_of("sse")
    program = lower(pointwise(4, call("add", load("x", var("i")), 1.0), {"x": "float32"}))
    with pytest.raises(CodegenError, match=r"code for .* cannot be loaded on .*; compile it"):
        NativeKernel(compile_program(program, target))
