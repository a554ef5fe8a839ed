"""Bodies of control flow that differ in names alone are compiled once, and run as their own."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.lowering_checks import check_both
from tests.compiler.model_builder import assert_close, expected, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build, scheduled
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.onnx.captures import nameless
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import kernels_of


def _arm(result: str, read: str, held: float | None = None) -> onnx.GraphProto:
    """`result = Relu(read + read)`, or of `read + held`, by nodes with names of their own."""
    other, weights = read, []
    if held is not None:
        other = f"{result}_held"
        weights = [numpy_helper.from_array(np.array([held, 0, 1, 2], np.float32), other)]
    nodes = [
        helper.make_node("Add", [read, other], [f"{result}_sum"], name=f"sum of {result}"),
        helper.make_node("Relu", [f"{result}_sum"], [result], name=f"relu of {result}"),
    ]
    info = helper.make_tensor_value_info(result, TensorProto.FLOAT, [4])
    return helper.make_graph(nodes, f"for {result}", [], [info], weights)


def _ifs(*arms: tuple[onnx.GraphProto, onnx.GraphProto]) -> onnx.ModelProto:
    """`y0 = If(c)`, `y1 = If(c)`, ..., of inputs c and x, all of them outputs."""
    nodes, outputs = [], []
    for number, (first, second) in enumerate(arms):
        name = f"y{number}"
        arm = {"then_branch": first, "else_branch": second}
        nodes.append(helper.make_node("If", ["c"], [name], name=f"if {number}", **arm))
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]))
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, [4]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _graphs(model: onnx.ModelProto) -> list[Graph]:
    """The graph of every body, in order."""
    lowered = scheduled(import_model(model), host_target())
    return [body.graph for node in lowered.nodes for body in node.bodies]


EQUAL = _ifs((_arm("a", "x"), _arm("b", "z", 3)), (_arm("d", "y0"), _arm("e", "x", 3)))


@pytest.mark.parametrize("taken", [False, True])
def test_bodies_that_are_equal_but_for_names_share_a_graph_and_read_their_own(taken: bool) -> None:
    first, second, third, fourth = _graphs(EQUAL)
    assert first is third
    assert second is fourth
    inputs = {"c": np.array(taken), "x": random(4, seed=1), "z": random(4, seed=2)}
    got = build(import_model(EQUAL), host_target()).run(inputs)
    assert_close(got, expected(EQUAL, inputs))


def test_a_kernel_is_called_as_the_nodes_of_its_own_body() -> None:
    kernels = kernels_of(build(import_model(EQUAL), host_target()).recipe.steps)
    sources = {name for kernel in kernels for name in kernel.sources}
    assert sources == {f"{part} of {arm}" for part in ("sum", "relu") for arm in "abde"}


@pytest.mark.parametrize(
    "other",
    [_arm("d", "x", 4), _arm("d", "x"), _arm("d", "c_float", 3)],
    ids=["another value", "another number of operands", "another type"],
)
def test_bodies_that_differ_in_more_than_names_are_compiled_apart(other: onnx.GraphProto) -> None:
    model = _ifs((_arm("a", "x", 3), _arm("b", "x")), (other, _arm("e", "x", 5)))
    if "c_float" in other.node[0].input:
        model.graph.node.insert(0, helper.make_node("Cast", ["c"], ["c_float"], to=1))
    bodies = _graphs(model)
    assert bodies[0] is not bodies[2]
    check_both(model, host=2, opened=2)


def test_a_loop_in_each_of_two_branches_counts_for_itself() -> None:
    """Nested bodies that are equal, read what each is around."""

    def loop(result: str, read: str) -> onnx.NodeProto:
        step = [
            helper.make_node("Identity", ["go"], ["still"]),
            helper.make_node("Add", ["s", read], ["t"]),
        ]
        ends = [
            helper.make_tensor_value_info(*end)
            for end in (("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []),
                        ("s", TensorProto.FLOAT, [4]), ("still", TensorProto.BOOL, []),
                        ("t", TensorProto.FLOAT, [4]))
        ]  # fmt: skip
        body = helper.make_graph(step, "b", ends[:3], ends[3:])
        return helper.make_node("Loop", ["n", "", "x"], [result], body=body)

    model = _ifs((_arm("a", "x"), _arm("b", "x")))
    for arm, read in zip(model.graph.node[0].attribute, ("x", "z"), strict=True):
        result = arm.g.output[0].name
        del arm.g.node[:]
        arm.g.node.append(loop(result, read))
    model.graph.initializer.append(numpy_helper.from_array(np.array(3), "n"))
    x, z = random(4, seed=1), random(4, seed=2)
    for taken in (False, True):
        got = build(import_model(model), host_target()).run({"c": np.array(taken), "x": x, "z": z})
        wanted = [x + 3 * x, x + 3 * z]
        names = [arm.name for arm in model.graph.node[0].attribute]
        which = "then_branch" if taken else "else_branch"
        np.testing.assert_allclose(got["y0"], wanted[names.index(which)], rtol=1e-6, atol=1e-6)


def test_names_are_all_that_is_left_out_of_a_body() -> None:
    assert nameless(_arm("a", "x"))[0] == nameless(_arm("b", "y"))[0]
    assert nameless(_arm("a", "x"))[1] == ("sum of a", "relu of a")
    swapped = _arm("a", "x")
    swapped.node[0].input[1] = "y"  # x + y is not x + x
    assert nameless(swapped)[0] != nameless(_arm("a", "x"))[0]
