"""Lowering of what moves data: joins, splits, slices, padding, transposes, gathers, resizing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.lowering_checks import check_both, model_without_output_shape, whole
from tests.compiler.model_builder import assert_close, check, expected, model_of, operators, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build, prepared
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import ModelError

CONCAT = {
    "of two kernels": ("a = Conv(x, w) b = Relu(a) c = Sigmoid(x) y = Concat<axis=1>(b, c)", 0),
    "of the input": ("a = Conv(x, w) y = Concat<axis=1>(x, a)", 0),
    "in a chain": (
        "a = Conv(x, w) b = Concat<axis=1>(x, a) c = Exp(b) y = Concat<axis=1>(b, c)", 0,
    ),
    "then split": ("a = Conv(x, w) b = Concat<axis=1>(x, a) y, z = Split<axis=1>(b, sizes)", 0),
    "then sliced": ("a = Conv(x, w) b = Concat<axis=1>(x, a) y = Slice(b, s, e, at)", 0),
}  # fmt: skip


def test_a_piece_of_a_larger_tensor_is_copied_into_a_concatenation() -> None:
    model = model_of(
        "g (float[1, 4, 5, 5] x) => (float[1, 6, 5, 5] y) "
        "{ a = Conv(x, w0) b, c = Split<axis=1>(a) e = Conv(c, w2) d = Conv(b, w1) "
        "y = Concat<axis=1>(d, e, c) }",
        w0=random(4, 4, 1, 1), w1=random(2, 2, 1, 1), w2=random(2, 2, 1, 1, seed=1),
    )  # fmt: skip
    graph = check_both(model)
    assert sum(count for key, count in operators(graph).items() if "concat" in key) == 1


@pytest.mark.parametrize("channels", [4, 16])
@pytest.mark.parametrize("name", CONCAT)
def test_concatenation_in_place(name: str, channels: int) -> None:
    body, host = CONCAT[name]
    model = model_of(
        f"g (float[1, {channels}, 5, 5] x) => (float[1, C, 5, 5] y) {{ {body} }}",
        w=random(channels, channels, 1, 1), sizes=np.array([channels // 2, 3 * channels // 2]),
        s=np.array([1]), e=np.array([-2]), at=np.array([1]),
    )  # fmt: skip
    graph = check_both(model, host)
    assert "Concat" not in operators(graph)


@pytest.mark.parametrize(
    "text",
    [
        "a = Relu(x) b = Neg(x) y = Concat<axis=2>(a, b, x)",
        "a = Relu(x) y = Concat<axis=0>(a, a)",
        "y, z = Split<axis=2>(x, sizes)",
        "y = Slice(x, s, e, at, step)",
        "y = Slice(x, back_s, back_e, at, back)",
        "y = Pad(x, pads)",
        'y = Pad<mode="edge">(x, pads)',
        'y = Pad<mode="reflect">(x, pads)',
        "y = Pad(x, pads, value)",
        "y = Transpose<perm=[2, 0, 1]>(x)",
        "a = Transpose<perm=[2, 0, 1]>(x) y = Transpose<perm=[0, 2, 1]>(a)",
        "y = Gather<axis=1>(x, i)",
        "y = Gather<axis=-1>(x, i)",
        "y = Gather<axis=0>(x, last)",
        "a = Relu(x) y = Gather<axis=0>(a, last)",
        "y = Resize(x, , scales)",
        'y = Resize<coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , , to)',
        'y = Resize<nearest_mode="ceil">(x, , , to)',
    ],
)
def test_data_movement(text: str) -> None:
    model = model_of(
        "g (float[3, 5, 7] x) => (float y) { " + text + " }",
        sizes=np.array([3, 4]), s=np.array([1, -6]), e=np.array([4, 100]), at=np.array([1, 2]),
        step=np.array([2, 3]), back_s=np.array([100, -2]), back_e=np.array([-100, 1]),
        back=np.array([-1, -2]), pads=np.array([0, 1, 2, 1, 0, 3]), value=np.float32(1.5),
        i=np.array([[0, 2], [-1, 1]]), last=np.int64(-1), scales=np.float32([1, 2, 3]),
        to=np.array([2, 8, 10]),
    )  # fmt: skip
    check_both(onnx.shape_inference.infer_shapes(model_without_output_shape(model)))


@pytest.mark.parametrize(
    "text",
    [
        'y = Resize<mode="linear", coordinate_transformation_mode="tf_crop_and_resize">'
        "(x, whole, scales)",
        'y = Resize<coordinate_transformation_mode="align_corners">(x, , scales)',
        "y = Resize(x, , odd)",
    ],
)
def test_resizing_to_places_that_the_template_does_not_have(text: str) -> None:
    model = model_of(
        f"g (float[1, 1, 5, 7] x) => (float y) {{ {text} }}",
        scales=np.float32([1, 1, 2, 2]), whole=np.float32([0, 0, 0, 0, 1, 1, 1, 1]),
        odd=np.float32([1, 1, 1.5, 1.25]),
    )  # fmt: skip
    check_both(onnx.shape_inference.infer_shapes(model_without_output_shape(model)))


def test_embeddings_are_gathered_natively() -> None:
    model = model_of(
        "g (int64[1, 6] ids) => (float[1, 6, 8] y) { e = Gather(table, ids) y = Mul(e, two) }",
        table=random(30, 8), two=np.float32(2),
    )  # fmt: skip
    graph = check(model, whole)
    executable = build(import_model(model), host_target())
    ids = {"ids": np.array([[0, 29, 3, 3, 7, 11]])}
    assert executable.report.host == 0
    assert_close(executable.run(ids), expected(model, ids))
    assert graph.nodes[0].workload.operator == "gather"


@pytest.mark.parametrize("index", [5, -6])
def test_an_index_beyond_the_axis_is_refused(index: int) -> None:
    model = model_of(
        "g (float[5, 3] x) => (float[1, 3] y) { y = Gather(x, i) }", i=np.array([index])
    )
    with pytest.raises(ModelError, match=f"takes index {index} of an axis with 5 entries"):
        whole(import_model(model))


@pytest.mark.parametrize("count", [33, 65, 1025])
def test_many_tensors_are_joined_by_few_kinds_of_kernels(count: int) -> None:
    """Compiling a kernel of n parts takes more than n times as long as one of one."""
    names = [f"t{i}" for i in range(count)]
    bodies = " ".join(f"{name} = Mul(x, c{i})" for i, name in enumerate(names))
    text = f"g (float[3, 2] x) => (float[3, {2 * count}] y) {{ {bodies} y = Concat<axis=1>("
    model = model_of(
        f"{text}{', '.join(names)}) }}", **{f"c{i}": np.float32(i) for i in range(count)}
    )
    graph = prepared(import_model(model))
    joins = [n for n in graph.nodes if n.workload is not None and n.workload.operator == "concat"]
    assert max(len(node.inputs) for node in joins) <= 32
    assert len({node.workload for node in joins}) <= 4
    x = random(3, 2)
    wanted = np.concatenate([x * np.float32(i) for i in range(count)], axis=1)
    np.testing.assert_array_equal(run_reference(graph, {"x": x})["y"], wanted)
