"""Tiles of accumulators that fit the registers stay in them: read off the assembly."""

from __future__ import annotations

import re

import pytest

from tests.codegen.kernels import narrowed
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native.toolchain import emit_assembly
from tilesmith.codegen.programs.structures import lowered
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

STEPS = 512


@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize(("isa", "rows"), [("avx512", 14), ("avx512", 13), ("avx2", 6)])
def test_accumulators_that_fit_are_never_spilled(isa: str, rows: int, unroll: int) -> None:
    """Rows x 2 vectors, two of the other operand and a broadcast: at most all registers but one."""
    target = narrowed(isa)
    assert rows * 2 + 3 < target.integer("vector.registers")
    columns = 2 * vector_width(target)
    workload = Workload.parse(f"matmul m={rows * 4} n={columns * 4} k={STEPS} const=b")
    config = Config.of(
        algorithm="blocked", pack_b="panels", block_order="n,m,k", tile_order="nm", m_tile=rows,
        n_vectors=2, k_unroll=unroll, m_block=2, n_block=1, k_block=STEPS,
    )  # fmt: skip
    text = emit_module(lowered(workload, target, config), target).text
    loops = re.split(r"\n(?=\.LBB)", emit_assembly(text, target))
    body = max(loops, key=lambda block: block.count("vfmadd"))
    assert body.count("vfmadd") == rows * 2 * unroll
    assert not re.search(r"[xyz]mm\d+, -?\d*\(%[re]sp\)", body), "spilled"
    assert not re.search(r"-?\d*\(%[re]sp\), %[xyz]mm", body), "reloaded"
