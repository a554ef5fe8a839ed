"""What the model says of schedules whose cost is known: closed forms and measured mechanisms."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.codegen.programs.structures import space_of, structure_program
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.facts import evaluate
from tilesmith.simulator.cpu.family import CpuSimulator
from tilesmith.simulator.cpu.machine import CpuCore
from tilesmith.simulator.cpu.model import program_cost
from tilesmith.simulator.cpu.skeleton import skeleton_of


def _cycles(target: Target, m: int, n: int, k: int, **knobs: int | str) -> float:
    """Cycles of a warm matmul with packed b; knobs as in its space, blocks as large as they go.

    The space's limits do not hold here: the model also knows tiles that no search tries.
    """
    workload = Workload.parse(f"matmul m={m} n={n} k={k} const=b")
    base: dict[str, int | str] = {
        "algorithm": "blocked", "pack_b": "panels", "block_order": "m,n,k", "tile_order": "mn",
        "m_block": 1, "n_block": 1, "k_unroll": 1,
    }  # fmt: skip
    space, config = space_of(workload, target), Config.of({**base, **knobs})
    program = structure_program(workload, target, space.structure(config))
    skeleton = skeleton_of(program, frozenset(workload.constants))
    tiles = {name: np.array([value]) for name, value in space.tiles(config).items()}
    return float(program_cost(skeleton, evaluate(skeleton, tiles, 1), CpuCore.of(target)).cycles[0])


def _tile_step(target: Target, rows: int, vectors: int, unroll: int) -> float:
    """Cycles a reduction step of tiles whose operands stay in L1."""
    cycles = _cycles(
        target, rows * 32, vectors * 16, 64,
        m_tile=rows, n_vectors=vectors, k_unroll=unroll, k_block=64 // unroll,
    )  # fmt: skip
    return cycles / (32 * 64)


@pytest.mark.parametrize(("rows", "vectors"), [(12, 2), (6, 4), (8, 3), (14, 2), (4, 6)])
def test_tiles_that_fit_the_registers_run_at_the_speed_of_the_pipes(
    rows: int, vectors: int, cpu: Target
) -> None:
    """Two multiply-adds a cycle, as such tiles do on the machine to within 5 %."""
    assert _tile_step(cpu, rows, vectors, 1) == pytest.approx(rows * vectors / 2, rel=0.08)


def test_a_single_accumulator_waits_for_itself(cpu: Target) -> None:
    """A long chain takes four cycles a step; tiles that overlap make it less, never more."""
    cycles = _cycles(cpu, 8, 16, 2048, m_tile=1, n_vectors=1, k_block=2048)
    assert 3.0 < cycles / (8 * 2048) < 4.5


def test_spilled_tiles_wait_for_memory_unless_steps_are_long_enough(cpu: Target) -> None:
    """A step of 8 x 4 vectors takes 16 cycles, with spills 28; four steps in one body hide them."""
    spilled, unrolled = _tile_step(cpu, 8, 4, 1), _tile_step(cpu, 8, 4, 4)
    assert 1.25 * unrolled < spilled < 2.0 * 16
    assert unrolled < 1.25 * 16
    assert _tile_step(cpu, 8, 4, 2) > 1.25 * unrolled


def test_columns_of_rows_that_lie_4_kib_apart_thrash_a_set(cpu: Target) -> None:
    """Down a column, partial sums fall into one set of L1; along a row, or 64 bytes off, not."""

    def walk(order: str, columns: int) -> float:
        found = _cycles(
            cpu, 64, columns, 32, block_order="k,m,n", tile_order=order,
            m_tile=4, n_vectors=1, k_block=1, m_block=16, n_block=columns // 16,
        )  # fmt: skip
        return found / columns

    assert walk("nm", 1024) > 5 * walk("mn", 1024)
    assert walk("nm", 1024) > 5 * walk("nm", 1040)
    assert walk("nm", 1024) > 1.5 * walk("nm", 512)


def test_short_tiles_of_nested_blocks_are_counted(cpu: Target) -> None:
    """49 tiles of Winograd's transform in blocks, blocks in register tiles: each counted once."""
    workload = Workload.parse("conv2d c=16 h=28 w=28 oc=16 kh=3 kw=3 pad=1 const=weight")
    space = space_of(workload, cpu)
    chosen = [s for s in space.subspaces if dict(s.fixed)["algorithm"] == "winograd4"]
    for config in SearchSpace(tuple(chosen)).sample(np.random.default_rng(5), 40):
        program = structure_program(workload, cpu, space.structure(config))
        skeleton = skeleton_of(program, frozenset(workload.constants))
        tiles = {name: np.array([value]) for name, value in space.tiles(config).items()}
        facts = evaluate(skeleton, tiles, 1)
        (product,) = [b for b in skeleton.blocks if b.stage == "p" and b.accumulates]
        points = np.prod([facts.trips[loop, 0] for loop in product.path])
        assert points == pytest.approx(36 * 49 * 16 * 16), config


def test_products_with_a_transforms_zeros_cost_nothing_and_its_loops_are_no_loops(
    cpu: Target,
) -> None:
    """Lavin and Gray: 22 of the 36 numbers of B of F(4, 3) are not 0, and 18 of the 24 of A."""
    workload = Workload.parse("conv2d c=16 h=28 w=28 oc=16 kh=3 kw=3 pad=1 const=weight")
    space = space_of(workload, cpu)
    chosen = [s for s in space.subspaces if dict(s.fixed)["algorithm"] == "winograd4"]
    (config,) = SearchSpace(tuple(chosen)).sample(np.random.default_rng(5), 1)
    program = structure_program(workload, cpu, space.structure(config))
    skeleton = skeleton_of(program, frozenset(workload.constants))
    sums = {b.stage: b for b in skeleton.blocks if b.accumulates}
    for stage in ("v.rows", "v"):
        assert sums[stage].arithmetic.share == pytest.approx(22 / 36)
    for stage in ("conv.rows", "conv"):
        assert sums[stage].arithmetic.share == pytest.approx(18 / 24)
        assert len(sums[stage].unrolled) == 3
    assert sums["p"].arithmetic.share == 1.0


def test_cold_weights_in_pieces_of_a_page_are_fetched_line_by_line(cpu: Target) -> None:
    """Panels read whole are foreseen, and so are a few that are read in turns; many are not."""
    workload = Workload.parse("matmul m=1 n=2048 k=1024 const=b")
    base: dict[str, int | str] = {
        "algorithm": "blocked", "pack_b": "panels", "tile_order": "nm", "m_block": 1, "m_tile": 1,
        "n_vectors": 4, "k_unroll": 4,
    }  # fmt: skip
    orders: list[dict[str, int | str]] = [
        {"block_order": "m,n,k", "n_block": 1, "k_block": 256},
        {"block_order": "m,n,k", "n_block": 4, "k_block": 4},
        {"block_order": "m,k,n", "n_block": 1, "k_block": 4},
    ]
    configs = [Config.of({**base, **order}) for order in orders]
    machine = CpuCore.of(cpu)
    cold, warm = (
        CpuSimulator(weights=weights).judge(workload, cpu, configs).latency * machine.ghz * 1e9
        for weights in ("cold", "warm")
    )
    read = 4 * 2048 * 1024
    assert cold[0] == pytest.approx(read / machine.bandwidth[2], rel=0.1)
    assert cold[1] == pytest.approx(cold[0], rel=0.15)
    assert cold[2] == pytest.approx(read / machine.scattered, rel=0.15)
    assert warm[2] < 1.2 * warm[0]
