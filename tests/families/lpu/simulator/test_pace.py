"""The analytical estimate against schedules: what a product waits for is counted."""

from __future__ import annotations

import pytest

from tests.families.lpu.codegen.chains import chip, matmul
from tilesmith.codegen.programs.structures import default_of
from tilesmith.families.lpu.codegen.dataflow import (
    ChainBuilder,
    Dataflow,
    Operation,
    Rows,
    VectorTensor,
)
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.simulator.analytical import estimate
from tilesmith.families.lpu.simulator.selected import selected
from tilesmith.search_space.workloads.workload import Workload

MACHINE = chip()


@pytest.mark.parametrize("size", [64, 128, 256, 512])
@pytest.mark.parametrize("rest", ["dtype=float16 const=b", "dtype=int8 const=b", "dtype=float16"])
def test_small_products_are_estimated_by_what_they_wait_for(size: int, rest: str) -> None:
    workload = Workload.parse(f"matmul m={size} n={size} k={size} {rest}")
    config = default_of(workload, MACHINE.target)
    flow = selected(workload, MACHINE.target, config).dataflow
    share = estimate(flow, MACHINE).cycles / schedule(flow, MACHINE).cycles
    assert 0.65 < share < 1.05


def test_one_product_takes_its_functions_hops_load_and_install() -> None:
    """To within the places that rows are given, which the estimate does not know."""
    flow = matmul(40, 320, 320, "int8")[0]
    product = Dataflow("product", flow.tensors, flow.chains[:1])
    found, placed = estimate(product, MACHINE), schedule(product, MACHINE)
    assert abs(found.cycles - placed.cycles) <= 2 * MACHINE.half // MACHINE.slices_a_hop


def test_a_follower_reads_a_block_behind_and_weights_wait_for_all_rows() -> None:
    rows = 128

    def flow(block: int, multiplied: bool) -> Dataflow:
        tensors = [
            VectorTensor("x", rows, "int8", "input"),
            VectorTensor("t", rows, "int8", block=block),
            VectorTensor("y", rows, "int32" if multiplied else "int8", "output"),
        ]
        every = {name: Rows.of(name, 0, (rows, 1)) for name in "xty"}
        first, second = ChainBuilder("first", rows), ChainBuilder("second", rows)
        copy = Operation("abs", (0,), "int8")
        first.write(first.compute((first.read(every["x"]),), copy), every["t"])
        if multiplied:
            second.write(second.product(second.read(every["x"]), every["t"], 320), every["y"])
        else:
            second.write(second.compute((second.read(every["t"]),), copy), every["y"])
        named = {tensor.name: tensor for tensor in tensors}
        return Dataflow("two", named, (first.chain(), second.chain()))

    whole, cut = flow(rows, False), flow(32, False)
    assert estimate(whole, MACHINE).cycles - estimate(cut, MACHINE).cycles == rows - 32
    for made in (whole, cut, flow(rows, True)):
        share = estimate(made, MACHINE).cycles / schedule(made, MACHINE).cycles
        assert 0.85 < share < 1.1
