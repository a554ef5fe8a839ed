"""How long compiling takes for each node, by the shape of the graph and its size.

    python benchmarks/compile_time.py [--only NAME ...] [--nodes 1000,4000] [--target cpu]

Processor milliseconds a node (of `ends`, an input; of `constants`, a constant; of `max`, `sum` and
`split`, an operand) to compile each graph with default schedules. A warm-up at the first size
makes the kernels beforehand, so that what is told is the compiler's own: where it grows with the
nodes, something is not linear.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilesmith
from tilesmith.display.output import table

WIDTH = 8
"""Elements of every tensor."""


def info(name: str, *dims: int) -> onnx.ValueInfoProto:
    """A float tensor of `WIDTH` elements, or of `dims`."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims or (WIDTH,))


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    **constants: np.ndarray,
) -> onnx.ModelProto:
    """A model of opset 17."""
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def names(prefix: str, count: int) -> list[str]:
    """`count` names."""
    return [f"{prefix}{number}" for number in range(count)]


def chain(count: int) -> onnx.ModelProto:
    """Functions of each other, with a product between that keeps them from becoming one kernel."""
    nodes, last = [], "x"
    for number in range(count):
        name = f"y{number}"
        if number % 2:
            nodes.append(helper.make_node("MatMul", [last, "w"], [name]))
        else:
            nodes.append(helper.make_node("Relu", [last], [name]))
        last = name
    weights = np.eye(WIDTH, dtype=np.float32)
    return model(nodes, [info("x", 1, WIDTH)], [info(last, 1, WIDTH)], w=weights)


def fan(count: int) -> onnx.ModelProto:
    """Functions of one input, added up by one node."""
    parts = names("y", count)
    nodes = [helper.make_node("Softmax", ["x"], [name]) for name in parts]
    return model([*nodes, helper.make_node("Sum", parts, ["z"])], [info("x")], [info("z")])


def constants(count: int) -> onnx.ModelProto:
    """Additions of a constant each."""
    held = {name: np.full(WIDTH, n, np.float32) for n, name in enumerate(names("c", count))}
    nodes, last = [], "x"
    for number, name in enumerate(held):
        nodes.append(helper.make_node("Add", [last, name], [f"y{number}"]))
        last = f"y{number}"
    return model(nodes, [info("x")], [info(last)], **held)


def several(operator: str) -> Callable[[int], onnx.ModelProto]:
    """One node of that many operands."""

    def made(count: int) -> onnx.ModelProto:
        parts = names("x", count)
        node = helper.make_node(operator, parts, ["y"])
        return model([node], [info(name) for name in parts], [info("y")])

    return made


def split(count: int) -> onnx.ModelProto:
    """One node of that many results, all of them outputs."""
    parts = names("y", count)
    node = helper.make_node("Split", ["x"], parts)
    return model([node], [info("x", count * WIDTH)], [info(name) for name in parts])


def ends(count: int) -> onnx.ModelProto:
    """That many inputs, and a function of each as an output."""
    nodes = [helper.make_node("Softmax", [f"x{n}"], [f"y{n}"]) for n in range(count)]
    inputs, outputs = names("x", count), names("y", count)
    return model(nodes, [info(name) for name in inputs], [info(name) for name in outputs])


def branch(operator: str, read: str) -> onnx.GraphProto:
    """A body of one operator on a tensor of the graph around it."""
    body = [helper.make_node(operator, [read], [f"{operator}_{read}"])]
    return helper.make_graph(body, "b", [], [info(f"{operator}_{read}")])


def unlike(count: int) -> onnx.ModelProto:
    """Branches one after the other, of which no two are equal."""
    nodes, last = [], "x"
    for number in range(count):
        held = np.arange(number, number + WIDTH, dtype=np.float32)
        scale = numpy_helper.from_array(held, "scale")
        body = [helper.make_node("Mul", [last, "scale"], [f"m{number}"])]
        scaled = helper.make_graph(body, "b", [], [info(f"m{number}")], [scale])
        arms = {"then_branch": scaled, "else_branch": branch("Neg", last)}
        nodes.append(helper.make_node("If", ["c"], [f"y{number}"], **arms))
        last = f"y{number}"
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, ())
    return model(nodes, [info("x"), condition], [info(last)])


def ifs(count: int) -> onnx.ModelProto:
    """Branches one after the other, on one condition: but for names, all are equal."""
    nodes, last = [], "x"
    for number in range(count):
        arms = {"then_branch": branch("Relu", last), "else_branch": branch("Neg", last)}
        nodes.append(helper.make_node("If", ["c"], [f"y{number}"], **arms))
        last = f"y{number}"
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, ())
    return model(nodes, [info("x"), condition], [info(last)])


def loops(count: int) -> onnx.ModelProto:
    """Loops one after the other, of as many steps as an input says, and of one body."""
    nodes, last = [], "x"
    for number in range(count):
        scalars = [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
        ]
        step = [
            helper.make_node("Identity", ["go"], ["still"]),
            helper.make_node("Tanh", ["s"], ["t"]),
        ]
        still = helper.make_tensor_value_info("still", TensorProto.BOOL, ())
        body = helper.make_graph(step, "b", [*scalars, info("s")], [still, info("t")])
        nodes.append(helper.make_node("Loop", ["n", "", last], [f"y{number}"], body=body))
        last = f"y{number}"
    steps = helper.make_tensor_value_info("n", TensorProto.INT64, ())
    return model(nodes, [info("x"), steps], [info(last)])


SHAPES: dict[str, Callable[[int], onnx.ModelProto]] = {
    "chain": chain,
    "fan": fan,
    "constants": constants,
    "max": several("Max"),
    "sum": several("Sum"),
    "split": split,
    "ends": ends,
    "ifs": ifs,
    "loops": loops,
    "unlike": unlike,
}


def main() -> None:
    options = argparse.ArgumentParser(description="processor milliseconds a node to compile graphs")
    options.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES))
    options.add_argument("--nodes", default="1000,4000", help="how many, one or several")
    options.add_argument("--target", default="cpu")
    chosen = options.parse_args()
    sizes = [int(size) for size in chosen.nodes.split(",")]
    rows = []
    for name in chosen.only:
        cells = []
        for size in sizes[:1] + sizes:
            made = SHAPES[name](size)
            start = time.process_time()
            tilesmith.compile(made, target=chosen.target)
            cells.append(f"{1e3 * (time.process_time() - start) / size:.2f}")
        rows.append([name, *cells[1:]])
    print(table(["graph", *[f"ms/node of {size}" for size in sizes]], rows))


if __name__ == "__main__":
    main()
