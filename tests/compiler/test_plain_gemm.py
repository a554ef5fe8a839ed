"""Gemm with every form of bias and factors, quantised each way, beside the float32 model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilesmith as ts
from tests.compiler.model_builder import expected

ROWS = np.random.default_rng(1).standard_normal((3, 9, 6)).astype(np.float32)
ADDED = np.random.default_rng(2).standard_normal((9, 9)).astype(np.float32)

BIASES: dict[str, tuple[int, ...] | None] = {
    "none": None, "number": (), "one": (1,), "columns": (9,), "columns of a row": (1, 9),
    "rows": (9, 1), "all": (9, 9),
}  # fmt: skip


def gemm(bias: tuple[int, ...] | None, factors: bool, given: bool = False) -> onnx.ModelProto:
    """c * Gemm(x, w, bias), as many rows as columns; a bias that is `given` is an input."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((6, 9)), "c": np.linspace(0.5, 2, 9),
        **({} if bias is None or given else {"b": rng.standard_normal(bias) * 3}),
    }  # fmt: skip
    stated = {"alpha": 2.0, "beta": 0.5} if factors else {}
    names = ["x", "w", *([] if bias is None else ["b"])]
    nodes = [
        helper.make_node("Gemm", names, ["g"], **stated), helper.make_node("Mul", ["g", "c"], ["y"])
    ]  # fmt: skip
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (9, 6))]
    if given and bias is not None:
        inputs.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, bias))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in arrays.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("way", [{}, {"equalise": True}, {"weights": "int8", "block": 16}])
@pytest.mark.parametrize("factors", [False, True])
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_every_bias_of_gemm(
    bias: tuple[int, ...] | None, factors: bool, way: dict[str, object]
) -> None:
    model = gemm(bias, factors)
    written = ts.quantize(model, ROWS, **way).model  # type: ignore[arg-type]
    wanted = expected(model, {"x": ROWS[0]})["y"]
    step = 0.03 * np.abs(wanted).max()
    ours = ts.compile(written).run({"x": ROWS[0]})["y"]
    np.testing.assert_allclose(ours, wanted, atol=step)
    np.testing.assert_allclose(expected(written, {"x": ROWS[0]})["y"], wanted, atol=step)


def test_a_bias_that_is_given_is_added_behind_the_product() -> None:
    model = gemm((9, 9), factors=True, given=True)
    data = {"x": ROWS, "b": np.stack([ADDED, ADDED * 2, -ADDED])}
    sample = {"x": ROWS[0], "b": ADDED}
    for way in ({}, {"weights": "int4", "block": 16}):
        written = ts.quantize(model, data, **way).model  # type: ignore[arg-type]
        wanted = expected(model, sample)["y"]
        step = (0.3 if way else 0.03) * np.abs(wanted).max()
        np.testing.assert_allclose(ts.compile(written).run(sample)["y"], wanted, atol=step)


def test_a_bias_by_row_beside_bytes_is_not_taken_for_one_by_column() -> None:
    """In a file with Q/DQ pairs of other tools: nine rows, nine columns."""
    for shape in ((9, 1), (9, 9), (1, 9), (9,), ()):
        model = gemm(shape, factors=False)
        initial = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        scales = {"s": np.array(0.03, np.float32), "z": np.array(128, np.uint8)}
        whole = {"w": np.rint(initial["w"] * 40).astype(np.int8), "ws": np.array(0.025, np.float32)}
        arrays = {"b": initial["b"], "c": initial["c"], **scales, **whole}
        before = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["xr"]),
            helper.make_node("DequantizeLinear", ["w", "ws"], ["wr"]),
            helper.make_node("Gemm", ["xr", "wr", "b"], ["g"]),
        ]
        nodes = [*before, *list(model.graph.node)[1:]]
        del model.graph.node[:], model.graph.initializer[:]
        model.graph.node.extend(nodes)
        model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in arrays.items())
        wanted = expected(model, {"x": ROWS[0]})["y"]
        ours = ts.compile(model).run({"x": ROWS[0]})["y"]
        np.testing.assert_allclose(ours, wanted, atol=1e-3, err_msg=str(shape))
