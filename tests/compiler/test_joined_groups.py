"""Groups of a convolution, joined for an array of multipliers: numbers, and when they are not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import expected, model_of, random
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.graph.graph import Graph, TensorInfo, kernel
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.families.trainium.backend.passes.groups import JoinGroups
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.workloads.workload import Workload

TRN1 = load_target("trn1")


@pytest.mark.parametrize(
    ("channels", "outputs", "groups"), [(12, 24, 6), (9, 6, 3), (144, 144, 48)]
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_values_are_right(channels: int, outputs: int, groups: int, precision: str) -> None:
    model = model_of(
        f"g (float[2, {channels}, 7, 6] x) => (float[2, {outputs}, 4, 3] y) {{ "
        f"c = Conv<group={groups}, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]>(x, w, b)"
        " y = Relu(c) }",
        w=random(outputs, channels // groups, 3, 3), b=random(outputs),
    )  # fmt: skip
    executable = build(import_model(model), TRN1, options=BuildOptions(precision=precision))
    inputs = {"x": random(2, channels, 7, 6)}
    found, wanted = executable.run(inputs)["y"], expected(model, inputs)["y"]
    limit = 1e-5 if precision == "fp32" else 2e-2
    assert np.abs(found - wanted).max() <= limit * np.abs(wanted).max()


def joined(text: str, size: int = 4) -> tuple[int, np.ndarray]:
    """Groups after the pass, and the weights."""
    work = Workload.parse(text)
    given = work.integer("c") // work.integer("groups")
    shape = (work.integer("oc"), given, work.integer("kh"), work.integer("kw"))
    image = (1, work.integer("c"), work.integer("h"), work.integer("w"))
    infos = {
        "x": TensorInfo("x", "float32", image),
        "w": TensorInfo("w", "float32", shape),
        "y": TensorInfo("y", "float32", (1, shape[0], *image[2:])),
    }
    node = kernel(work, ("x", "w"), "y", "conv")
    constants = {"w": random(*shape)} if work.is_constant("weight") else {}
    inputs = tuple(infos[name] for name in ("x", "w") if name not in constants)
    graph = Graph("g", inputs, (infos["y"],), (node,), constants, infos)
    after = JoinGroups(TRN1, size).run(graph)
    (found,) = after.nodes
    assert found.workload is not None
    weights = after.constants.get(found.inputs[1], np.zeros(0))
    return found.workload.integer("groups"), weights


SMALL = "conv2d c=128 h=28 w=28 oc=128 kh=3 kw=3 pad=1 groups=32"


def test_small_groups_fill_the_array() -> None:
    groups, weights = joined(f"{SMALL} const=weight")
    assert groups == 1
    assert weights.shape == (128, 128, 3, 3)
    assert np.count_nonzero(weights) == 128 * 4 * 9
    assert np.all(weights[5, 4:8] != 0)


def test_weights_that_vary_stay_apart() -> None:
    assert joined(SMALL)[0] == 32


def test_groups_stay_apart_where_zeros_take_longer_to_load_than_they_spare() -> None:
    text = "conv2d c=2048 h=7 w=7 oc=2048 kh=3 kw=3 pad=1 groups=32 const=weight"
    assert joined(text)[0] == 16
    assert joined(text, size=2)[0] == 32
