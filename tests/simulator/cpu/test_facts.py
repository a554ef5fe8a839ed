"""Facts against the bound program: trip counts, accesses and chances, counted by walking it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from tilesmith.codegen.programs.structures import space_of, structure_program
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    If,
    Intrinsic,
    Loop,
    Sequence,
    Statement,
)
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.facts import Facts, evaluate
from tilesmith.simulator.cpu.machine import CpuCore
from tilesmith.simulator.cpu.skeleton import Skeleton, skeleton_of
from tilesmith.simulator.cpu.traffic import traffic_of

MATMUL = "matmul m=23 n=37 k=19 const=b"
CASES = (
    MATMUL,
    "matmul m=9 n=70 k=13 epilogue=bias,relu",
    "conv2d c=5 h=9 w=11 oc=20 kh=3 kw=3 pad=1 const=weight",
    "depthwise_conv2d c=20 h=9 w=11 kh=3 kw=3 pad=1 const=weight",
    "pool2d kind=max c=19 h=9 w=11 kh=3 kw=3 stride=2 pad=1",
    "softmax shape=5x37",
)


def _visits(statement: Statement, values: dict[str, int], found: dict[int, int]) -> None:
    """How often each block of a bound program runs, by executing its loops and conditions."""
    match statement:
        case Loop(variable, extent, _, body):
            for step in range(int(extent.evaluate(values))):
                _visits(body, {**values, variable: step}, found)
        case Sequence(statements):
            for inner in statements:
                _visits(inner, values, found)
        case If(condition, then, otherwise):
            if all(e.evaluate(values) >= 0 for e in condition):
                _visits(then, values, found)
            elif otherwise is not None:
                _visits(otherwise, values, found)
        case Allocate(body=body) | Intrinsic(body=body):
            _visits(body, values, found)
        case Block():
            found[id(statement)] = found.get(id(statement), 0) + 1


def _blocks(statement: Statement) -> Iterator[Block]:
    """Blocks in the order the skeleton lists them."""
    match statement:
        case Loop(body=body) | Allocate(body=body) | Intrinsic(body=body):
            yield from _blocks(body)
        case Sequence(statements):
            for inner in statements:
                yield from _blocks(inner)
        case If(then=then, otherwise=otherwise):
            yield from _blocks(then)
            if otherwise is not None:
                yield from _blocks(otherwise)
        case Block():
            yield statement


def _points(skeleton: Skeleton, facts: Facts, number: int) -> float:
    """Points of a block by the facts: mean iterations of all its loops, times its chance."""
    points = float(facts.taken[number, 0])
    for loop in skeleton.blocks[number].path:
        points *= float(facts.trips[loop, 0])
    return points


def _one(workload: Workload, target: Target, config: Config) -> tuple[Skeleton, Facts]:
    space = space_of(workload, target)
    program = structure_program(workload, target, space.structure(config))
    skeleton = skeleton_of(program, frozenset(workload.constants))
    tiles = {name: np.array([value]) for name, value in space.tiles(config).items()}
    return skeleton, evaluate(skeleton, tiles, 1)


def _executed(workload: Workload, target: Target, config: Config) -> list[int]:
    space = space_of(workload, target)
    symbolic = structure_program(workload, target, space.structure(config))
    tiles: Mapping[str, int] = space.tiles(config)
    counted: dict[int, int] = {}
    _visits(symbolic.body, dict(tiles), counted)
    return [counted.get(id(block), 0) for block in _blocks(symbolic.body)]


@pytest.mark.parametrize("text", CASES)
def test_reductions_run_exactly_as_often_as_the_program(text: str, cpu: Target) -> None:
    """Tails included: the points of the innermost reduction are those of executing its loops."""
    workload = Workload.parse(text)
    space = space_of(workload, cpu)
    for config in space.sample(np.random.default_rng(7), 12):
        skeleton, facts = _one(workload, cpu, config)
        executed = _executed(workload, cpu, config)
        assert len(executed) == len(skeleton.blocks)
        for number, count in enumerate(executed):
            block = skeleton.blocks[number]
            if block.accumulates and not block.guards:
                assert _points(skeleton, facts, number) == pytest.approx(count, rel=0.02), config


def test_a_matmul_multiplies_m_n_k_times(cpu: Target) -> None:
    workload = Workload.parse(MATMUL)
    for config in space_of(workload, cpu).sample(np.random.default_rng(3), 40):
        skeleton, facts = _one(workload, cpu, config)
        products = [
            _points(skeleton, facts, number)
            for number, block in enumerate(skeleton.blocks)
            if block.accumulates
        ]
        assert math.fsum(products) == pytest.approx(23 * 37 * 19)


def test_partial_sums_are_read_back_in_all_but_the_first_reduction_block(cpu: Target) -> None:
    """With k in b blocks, c is initialised once and read back b - 1 times."""
    workload = Workload.parse("matmul m=32 n=32 k=64 const=b")
    config = Config.of(
        algorithm="blocked", pack_b="panels", block_order="k,m,n", tile_order="mn",
        m_tile=4, n_vectors=2, k_unroll=4, m_block=8, n_block=1, k_block=4,
    )  # fmt: skip
    _, facts = _one(workload, cpu, config)
    chances = sorted(float(taken) for taken in facts.taken[:, 0] if taken < 1)
    assert chances == pytest.approx([0.25, 0.75])


def test_joining_and_taking_are_inverse(cpu: Target) -> None:
    workload = Workload.parse(MATMUL)
    space = space_of(workload, cpu)
    first, *_ = space.sample(np.random.default_rng(0), 1)
    _, facts = _one(workload, cpu, first)
    both = Facts.join([facts, facts])
    assert both.trips.shape[-1] == 2
    assert np.array_equal(both.take(1, 2).strides, facts.strides)


def test_a_pool_reads_its_input_once_whatever_its_tiles(cpu: Target) -> None:
    """A row of 56 outputs in tiles of 6 or 12 leaves a tail; no line is read less for it."""
    workload = Workload.parse("pool2d kind=max c=64 h=112 w=112 kh=3 kw=3 stride=2 pad=1")
    compulsory = 64 * 112 * 112 * 4 / 64
    for w_tile in (1, 3, 4, 6, 7, 12, 14):
        config = Config.of(
            algorithm="channels", input_layout="NCHW16c", output_layout="NCHW16c",
            window="unrolled", w_tile=w_tile,
        )  # fmt: skip
        skeleton, facts = _one(workload, cpu, config)
        traffic = traffic_of(skeleton, facts, CpuCore.of(cpu), cold=True)
        read = [i for i, block in enumerate(traffic.blocks) if skeleton.blocks[block].accumulates]
        assert traffic.moved[1, read].sum() == pytest.approx(compulsory, rel=0.02)
