"""Chains say what they take and give, and of what type."""

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import (
    ChainBuilder,
    ChainValue,
    Operation,
    Rows,
    VectorTensor,
    inputs_of,
    outputs_of,
    types_of,
)


def test_rows_of_nested_loops() -> None:
    rows = Rows.of("x", 5, (2, 10), (3, 1))
    np.testing.assert_array_equal(rows.numbers, [5, 6, 7, 15, 16, 17])
    np.testing.assert_array_equal(Rows.of("x", 4, (3, 0)).numbers, [4, 4, 4])


def test_a_chain_is_typed_step_by_step() -> None:
    tensors = {
        "x": VectorTensor("x", 8, "int8", "input"),
        "w": VectorTensor("w", 320, "int8", "constant"),
        "b": VectorTensor("b", 1, "int32", "constant"),
        "y": VectorTensor("y", 8, "int8", "output"),
    }
    chain = ChainBuilder("fc", 8)
    x = chain.read(Rows.of("x", 0, (8, 1)))
    y = chain.product(x, Rows.of("w", 0, (320, 1)), 320)
    bias = chain.read(Rows.of("b", 0, (8, 0)))
    y = chain.compute(
        (y, bias), Operation("add", (0, 1), "int32"), Operation("convert", (2,), "int8")
    )
    chain.write(y, Rows.of("y", 0, (8, 1)))
    built = chain.chain()
    assert types_of(built, tensors) == {
        ChainValue(0): "int8", ChainValue(1): "int32", ChainValue(2): "int32",
        ChainValue(3): "int8",
    }  # fmt: skip
    assert [outputs_of(step) for step in built.steps] == [1, 1, 1, 1, 0]
    assert inputs_of(built.steps[3]) == (ChainValue(1), ChainValue(2))
