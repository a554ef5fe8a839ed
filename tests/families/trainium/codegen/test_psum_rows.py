"""Rows with values in between in PSUM: numbers, what the vector engine spares, and the limits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.accelerator_checks import check
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.families.trainium.codegen.isa.instructions import Opcode, Space
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulate

TARGET = load_target("trn1")

CHAINS = (
    "layer_norm shape=130x1030",
    "layer_norm shape=3x600 epilogue=residual dtype=bfloat16",
    "rms_norm shape=131x515 epilogue=silu",
    "elementwise shape=129x2100 expression=multiply(gelu_tanh(x0),add(x1,x2))",
    "elementwise shape=130x700 expression=add(multiply(x0,x1),multiply(x0,x1)) dtype=bfloat16",
    "elementwise shape=129x513 expression=maximum(sigmoid(multiply(x0,x1)),subtract(x1,exp(x0)))",
    "elementwise shape=128x1025 expression=multiply(where(greater(x0,x1),x0,2),sqrt(absolute(x1)))",
)


def in_psum(text: str) -> list[Config]:
    """Configurations with values in PSUM, one for each size of their pieces."""
    found = {}
    for config in space_of(Workload.parse(text), TARGET):
        if config.text("algorithm") == "psum":
            found[config.integer("piece")] = config
    return list(found.values())


@pytest.mark.parametrize("text", CHAINS)
def test_results_are_those_of_the_reference(text: str) -> None:
    configs = in_psum(text)
    assert configs
    for config in configs:
        check(Workload.parse(text), config, np.random.default_rng(0))


@pytest.mark.parametrize("text", CHAINS)
def test_no_two_operands_are_in_sbuf_where_one_is_computed(
    text: str,
) -> None:
    """Two loaded tensors are in SBUF both; all others have one operand in PSUM."""
    for config in in_psum(text):
        stream = instruction_stream(Workload.parse(text), TARGET, config)
        space = stream.accesses["space"]
        names = [
            stream.allocations[n].name if n >= 0 else "" for n in stream.accesses["allocation"]
        ]
        rows = np.flatnonzero(stream.rows["op"] == Opcode.TENSOR_TENSOR)
        for a, b in zip(stream.rows["in0"][rows], stream.rows["in1"][rows], strict=True):
            if stream.accesses["count"][a, 1:].prod() > 1 and "temporary" in names[a] + names[b]:
                assert Space.PSUM in (space[a], space[b])


def test_psum_holds_what_a_piece_needs() -> None:
    """Two values of 2,048 elements fill 16 KiB once; three of them would not fit."""
    text = "layer_norm shape=256x4096"
    assert max(c.integer("piece") for c in in_psum(text)) == 2048
    three = "layer_norm shape=256x4096 epilogue=residual"
    assert max(c.integer("piece") for c in in_psum(three)) == 1024


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("layer_norm shape=1024x2048 dtype=bfloat16", 1.4),
        ("rms_norm shape=1024x2048 dtype=bfloat16", 1.2),
        ("elementwise shape=512x1024 expression=multiply(x0,tanh(multiply(sigmoid(x0),x1)))", 1.1),
    ],
)
def test_rows_with_values_in_psum_are_the_default_where_they_take_less(
    text: str, least: float
) -> None:
    workload = Workload.parse(text)
    default = default_of(workload, TARGET)
    assert default.text("algorithm") == "psum"
    other = {k: v for k, v in default.items() if k != "piece"}
    rows = Config.of({**other, "algorithm": "rows"})
    there, here = (simulate(workload, TARGET, c, "timeline").latency_us for c in (rows, default))
    assert there > least * here


def test_short_rows_of_one_block_stay_in_sbuf() -> None:
    assert default_of(Workload.parse("layer_norm shape=128x768"), TARGET)["algorithm"] == "rows"


@pytest.mark.parametrize("text", ["softmax shape=200x300", "softmax shape=7x5000 log=1"])
def test_powers_are_summed_by_the_engine_that_makes_them(text: str) -> None:
    workload = Workload.parse(text)
    default = default_of(workload, TARGET)
    check(workload, default, np.random.default_rng(0))
    rows = instruction_stream(workload, TARGET, default).rows
    summed = (rows["op"] == Opcode.ACTIVATION) & (rows["out2"] >= 0)
    reduced = rows["op"] == Opcode.REDUCE
    assert summed.sum() == reduced.sum() > 0
