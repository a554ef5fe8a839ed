"""What lowering leaves to the host, and the tasks it finds in a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compiler.lowering_checks import check_both
from tests.compiler.model_builder import model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import extract_tasks
from tilesmith.compiler.onnx.importer import import_model


def test_odd_operators_run_on_the_host() -> None:
    model = model_of(
        "g (float[4, 6] x) => (float[4, 6] y, int64[4] i) "
        "{ r = Relu(x) y = Mod<fmod=1>(r, turns) a = ArgMax<axis=1, keepdims=0>(r) "
        "i = Add(a, a) }",
        turns=np.array([1, 2, 3, 4, 1, 0.5], np.float32),
    )
    graph = check_both(model, host=1)
    assert graph.info("i").dtype == "int64"


def test_only_unknown_operators_leave_the_native_code() -> None:
    model = model_of(
        "g (float[1, 16, 6, 6] x) => (float[1, 16, 6, 6] y) "
        "{ a = Conv<kernel_shape=[1, 1]>(x, w) "
        "b = Mod<fmod=1>(a, nine) "
        "y = Conv<kernel_shape=[1, 1]>(b, w) }",
        w=random(16, 16, 1, 1), nine=np.float32(9),
    )  # fmt: skip
    check_both(model, host=1)


def test_shapes_known_only_at_run_time() -> None:
    model = model_of(
        "g (float[4, 6] x) => (float[A] y) "
        "{ r = Relu(x) f = Flatten<axis=0>(r) s = Squeeze(f, zero) n = Greater(s, limit) "
        "y = Compress(s, n) }",
        zero=np.array([0]), limit=np.float32(0.5),
    )  # fmt: skip
    check_both(model, host=1)


def test_tasks_are_distinct_and_weighted(light_resnet50: Any) -> None:
    tasks = extract_tasks(import_model(light_resnet50), host_target())
    by_operator: dict[str, int] = {}
    for task in tasks:
        name = task.workload.operator
        by_operator[name] = by_operator.get(name, 0) + task.weight
    assert by_operator == {"conv2d": 53, "pool2d": 2, "matmul": 1, "softmax": 1}
    assert len({task.workload.key for task in tasks}) == len(tasks)
    flops = sum(
        task.weight * 2 * task.workload.integer("oc") * task.workload.integer("c")
        for task in tasks
        if task.workload.operator == "conv2d" and task.workload.integer("kh") == 1
    )
    assert flops > 0
    first = tasks[0].workload.key
    assert first == (
        "conv2d c=3 h=224 w=224 oc=64 kh=7 kw=7 stride=2 pad=3 const=weight epilogue=bias,relu"
    )
