"""Shorter expressions of VXM: fewer operations, the same numbers but for one rounding less."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.families.lpu.codegen.dataflow import (
    Chain,
    ChainBuilder,
    Compute,
    Dataflow,
    Operation,
    Read,
    Rows,
    VectorTensor,
)
from tilesmith.families.lpu.codegen.scheduling.rewriting.simplifying import simplified
from tilesmith.families.lpu.simulator.execution.arithmetic import computed

ROWS = 6
RANDOM = np.random.default_rng(5)


def contents() -> dict[str, np.ndarray]:
    scales = (RANDOM.random((1, 320)) / 64).astype(np.float32)
    return {
        "sums": RANDOM.integers(-9000, 9000, (ROWS, 320), dtype=np.int32),
        "other": RANDOM.integers(0, 256, (ROWS, 320), dtype=np.uint8),
        "scales": scales,
    }


def program(*operations: Operation) -> Dataflow:
    """Three operands (whole sums, bytes, a row of scales), and an expression of them."""
    tensors = {
        "sums": VectorTensor("sums", ROWS, "int32", "input"),
        "other": VectorTensor("other", ROWS, "uint8", "input"),
        "scales": VectorTensor("scales", 1, "float32", "constant"),
        "out": VectorTensor("out", ROWS, operations[-1].dtype, "output"),
    }
    builder = ChainBuilder("expression", ROWS)
    inputs = [
        builder.read(Rows.of(name, 0, (ROWS, int(tensors[name].rows > 1))))
        for name in ("sums", "other", "scales")
    ]
    builder.write(builder.compute(inputs, *operations), Rows.of("out", 0, (ROWS, 1)))
    return Dataflow("program", tensors, (builder.chain(),))


def result(chain: Chain, held: dict[str, np.ndarray]) -> tuple[np.ndarray, int]:
    """What a chain gives, and its operations."""
    (step,) = (s for s in chain.steps if isinstance(s, Compute))
    inputs = []
    for value in step.inputs:
        read = chain.steps[value.step]
        assert isinstance(read, Read)
        inputs.append(held[read.rows.tensor][read.rows.numbers])
    return computed(step.operations, step.outputs, inputs)[0], len(step.operations)


def compared(*operations: Operation) -> int:
    """Operations that are left; what they give is what all of them gave, but for one step."""
    held, flow = contents(), program(*operations)
    found = simplified(flow, held.get)
    made, more = found.flow, found.contents
    want, _ = result(flow.chains[0], held)
    got, left = result(made.chains[0], {**held, **more})
    assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max() <= 1
    assert (got != want).mean() < 1e-2
    return left


def test_requantising_is_a_conversion_a_product_and_bytes() -> None:
    left = compared(
        Operation("convert", (0,), "float32"),
        Operation("multiply", (3, 2), "float32"),
        Operation("multiply", (4, -1), "float32", 3.7),
        Operation("convert", (5,), "int32"),
        Operation("add", (6, -1), "int32", 0.0),
        Operation("convert", (7,), "uint8"),
    )
    assert left == 3


def test_a_factor_goes_into_both_sides_of_a_sum() -> None:
    left = compared(
        Operation("convert", (0,), "float32"),
        Operation("multiply", (3, 2), "float32"),
        Operation("convert", (1,), "float32"),
        Operation("multiply", (5, -1), "float32", 0.25),
        Operation("add", (4, 6), "float32"),
        Operation("multiply", (-1, 7), "float32", 0.9),
        Operation("convert", (8,), "int32"),
        Operation("convert", (9,), "uint8"),
    )
    assert left == 6


def test_what_is_read_twice_and_what_bounds_bytes_stays() -> None:
    left = compared(
        Operation("convert", (0,), "float32"),
        Operation("multiply", (3, 2), "float32"),
        Operation("multiply", (4, -1), "float32", 3.7),
        Operation("add", (4, 5), "float32"),
        Operation("convert", (6,), "int32"),
        Operation("maximum", (7, -1), "int32", 12.0),
        Operation("maximum", (8, -1), "int32", -5.0),
        Operation("convert", (9,), "uint8"),
    )
    assert left == 7


@pytest.mark.parametrize(("zero", "fewer"), [(120.0, 1), (0.0, 2), (121.0, 0)])
def test_an_even_zero_point_is_added_before_rounding(zero: float, fewer: int) -> None:
    operations = (
        Operation("convert", (0,), "float32"),
        Operation("multiply", (3, -1), "float32", 0.5),  # every other result is a tie
        Operation("convert", (4,), "int32"),
        Operation("add", (5, -1), "int32", zero),
        Operation("convert", (6,), "uint8"),
    )
    held, flow = contents(), program(*operations)
    found = simplified(flow, held.get)
    made, more = found.flow, found.contents
    want, _ = result(flow.chains[0], held)
    got, left = result(made.chains[0], {**held, **more})
    np.testing.assert_array_equal(got, want)
    assert left == len(operations) - fewer
