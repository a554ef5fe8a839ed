"""Wide graphs: compiling takes as many more steps as there are more nodes, not their square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model


def of_operands(operator: str) -> Callable[[int], onnx.ModelProto]:
    """One node of many operands."""

    def made(count: int) -> onnx.ModelProto:
        names = [f"x{i}" for i in range(count)]
        inputs = ", ".join(f"float[8] {name}" for name in names)
        body = f"y = {operator}({', '.join(names)})"
        return model_of(f"g ({inputs}) => (float[8] y) {{ {body} }}")

    return made


def split(count: int) -> onnx.ModelProto:
    """One node of many results."""
    names = [f"y{i}" for i in range(count)]
    outputs = ", ".join(f"float[8] {name}" for name in names)
    body = f"{', '.join(names)} = Split<num_outputs={count}>(x)"
    return model_of(f"g (float[{8 * count}] x) => ({outputs}) {{ {body} }}", opset=18)


def ends(count: int) -> onnx.ModelProto:
    """Many inputs, and a function of each as an output."""
    inputs = ", ".join(f"float[8] x{i}" for i in range(count))
    outputs = ", ".join(f"float[8] y{i}" for i in range(count))
    body = " ".join(f"y{i} = Softmax(x{i})" for i in range(count))
    return model_of(f"g ({inputs}) => ({outputs}) {{ {body} }}")


def chain(count: int) -> onnx.ModelProto:
    """Functions of each other, each a kernel."""
    body = " ".join(f"x{i + 1} = Softmax(x{i})" for i in range(count))
    return model_of(f"g (float[8] x0) => (float[8] x{count}) {{ {body} }}")


def constants(count: int) -> onnx.ModelProto:
    """Additions of a constant each, which become one."""
    body = " ".join(f"x{i + 1} = Add(x{i}, c{i})" for i in range(count))
    weights = {f"c{i}": np.full(8, i, np.float32) for i in range(count)}
    return model_of(f"g (float[8] x0) => (float[8] x{count}) {{ {body} }}", **weights)


def calls(work: Callable[[], Any]) -> int:
    """How many functions work calls, those in C left out."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    "shape",
    [of_operands("Max"), of_operands("Sum"), split, ends, chain, constants],
    ids=["max", "sum", "split", "ends", "chain", "constants"],
)
def test_four_times_as_many_nodes_take_four_times_as_many_steps(
    shape: Callable[[int], onnx.ModelProto],
) -> None:
    target = host_target()

    def steps(count: int) -> int:
        model = shape(count)
        return calls(lambda: build(import_model(model), target))

    steps(8)  # makes what all of them share
    few, many = steps(120), steps(480)
    assert many < 4.5 * few
