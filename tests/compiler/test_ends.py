"""The caller's tensors in every odd way: an input that is an output, an output that is a weight, or
one given twice. Each comes out as it went in, in every element type, on every family of targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.driver.verifier import Verifier
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.onnx.inference.inference import DTYPE_NUMBERS
from tilesmith.compiler.rewriting.graph_pass import observed
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.support.errors import VerificationError

DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int8", "bool")


def target_of(name: str) -> Target:
    return host_target() if name == "cpu" else load_target(name)


def array(dtype: str, seed: int) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 4, (2, 3)).astype(to_numpy(dtype))


def model(dtype: str) -> onnx.ModelProto:
    """x goes in and out as it is, by way of nothing, and squared (of truth values: negated)."""
    operator, again = ("Not", ["x"]) if dtype == "bool" else ("Mul", ["x", "x"])
    weight = numpy_helper.from_array(array(dtype, 2), "w")
    constant = numpy_helper.from_array(array(dtype, 3), "c")
    three = numpy_helper.from_array(np.array([3, 2]), "three")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=constant),
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["same"], ["still"]),
        helper.make_node("Reshape", ["x", "three"], ["folded"]),
        helper.make_node("Squeeze", ["folded"], ["squeezed"]),
        helper.make_node(operator, again, ["y"]),
        helper.make_node(operator, ["still" for _ in again], ["also"]),
    ]
    names = ("x", "same", "still", "folded", "squeezed", "y", "y", "also", "w", "c", "x", "w")
    number = DTYPE_NUMBERS[dtype]
    shapes = {"folded": [3, 2], "squeezed": [3, 2]}
    outputs = [helper.make_tensor_value_info(n, number, shapes.get(n, [2, 3])) for n in names]
    inputs = [helper.make_tensor_value_info(name, number, [2, 3]) for name in ("x", "unread")]
    graph = helper.make_graph(nodes, "ends", inputs, outputs, [weight, three])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    made.ir_version = 10
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("target", "precision"),
    [("cpu", "fp32"), ("cpu", "bf16"), ("trn1", "fp32"), ("trn1", "bf16"), ("lpu1", "fp32")],
)
def test_ends_of_all_kinds(target: str, precision: str, dtype: str) -> None:
    with observed(Verifier()):
        options = BuildOptions(precision=precision)
        executable = build(import_model(model(dtype)), target_of(target), options=options)
    x = array(dtype, 1)
    found = executable.run({"x": x, "unread": x})
    squared = ~x if dtype == "bool" else (x * x).astype(x.dtype)
    wanted = {
        "x": x, "same": x, "still": x, "folded": x.reshape(3, 2), "squeezed": x.reshape(3, 2),
        "y": squared, "also": squared, "w": array(dtype, 2), "c": array(dtype, 3),
    }  # fmt: skip
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name].astype(float), value.astype(float))


def test_a_round_of_nodes_is_a_sentence_and_no_endless_loop() -> None:
    graph = import_model(model_of("g (float[2] x) => (float[2] y) { a = Relu(x) y = Exp(a) }"))
    rewriter = Rewriter(graph)
    first = graph.nodes[0]
    rewriter.replace(first, replace(first, inputs=("y",)))
    with pytest.raises(VerificationError, match="Relu 'a' of 'g' would need its own result"):
        rewriter.finish()


def test_a_pass_that_always_makes_another_node_ends_in_a_sentence() -> None:
    rewriter = Rewriter(import_model(model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")))
    with pytest.raises(VerificationError, match="a pass over 'g' does not come to an end"):
        for node in rewriter.nodes():
            rewriter.replace(node, replace(node))
