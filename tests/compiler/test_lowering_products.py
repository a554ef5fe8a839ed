"""Lowering of convolutions, pooling and products: native numbers, and what becomes of nodes."""

from __future__ import annotations

import onnx
import pytest

from tests.compiler.lowering_checks import check_both, whole
from tests.compiler.model_builder import model_of, operators, random
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.workloads.workload import Workload

X = "float[2, 6, 9, 7] x"


@pytest.mark.parametrize(
    ("attributes", "weight"),
    [
        ("kernel_shape=[3, 3], pads=[1, 1, 1, 1]", (5, 6, 3, 3)),
        ("kernel_shape=[3, 2], pads=[2, 0, 1, 1], strides=[2, 1]", (5, 6, 3, 2)),
        ("kernel_shape=[3, 3], pads=[0, 1, 2, 3], dilations=[2, 1]", (5, 6, 3, 3)),
        ("kernel_shape=[1, 1], strides=[2, 2]", (17, 6, 1, 1)),
        ("kernel_shape=[1, 1]", (17, 6, 1, 1)),
        ("kernel_shape=[3, 3], group=6, pads=[1, 1, 1, 1]", (6, 1, 3, 3)),
        ('kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 2]', (5, 6, 3, 3)),
        ('kernel_shape=[2, 2], auto_pad="SAME_LOWER"', (5, 6, 2, 2)),
        ('kernel_shape=[2, 2], auto_pad="VALID"', (5, 6, 2, 2)),
    ],
)
def test_convolutions(attributes: str, weight: tuple[int, ...]) -> None:
    model = model_of(
        f"g ({X}) => (float[A, B, C, D] y) {{ c = Conv<{attributes}>(x, w, b) y = Relu(c) }}",
        w=random(*weight), b=random(weight[0]),
    )  # fmt: skip
    graph = check_both(model)
    assert len(graph.nodes) == 1


def test_convolutions_of_one_axis() -> None:
    line = model_of(
        "g (float[2, 6, 19] x) => (float[A, B, C] y) "
        "{ y = Conv<kernel_shape=[3], pads=[1, 0], strides=[2]>(x, w) }",
        w=random(5, 6, 3),
    )
    check_both(line)


@pytest.mark.parametrize(
    "pool",
    [
        "MaxPool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>",
        "MaxPool<kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 0], ceil_mode=1>",
        "MaxPool<kernel_shape=[2, 2], dilations=[2, 2]>",
        "AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>",
        "AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1>",
        "AveragePool<kernel_shape=[9, 7]>",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "ReduceMean<axes=[2, 3]>",
    ],
)
def test_pooling(pool: str) -> None:
    graph = check_both(model_of(f"g ({X}) => (float[A, B, C, D] y) {{ y = {pool}(x) }}"))
    assert [node.workload.operator for node in graph.nodes] == ["pool2d"]


def test_pooling_with_indices_stays_on_the_host() -> None:
    model = model_of(
        f"g ({X}) => (float[A, B, C, D] y) {{ y, i = MaxPool<kernel_shape=[2, 2]>(x) }}"
    )
    model.graph.output.append(onnx.helper.make_tensor_value_info("i", 7, (2, 6, 8, 6)))
    graph = whole(import_model(model))
    assert [node.kind for node in graph.nodes] == ["host"]


@pytest.mark.parametrize(
    ("text", "weights", "key"),
    [
        ("(float[3, 5] x) => (float[3, 7] y) { y = MatMul(x, w) }", {"w": (5, 7)},
         "matmul m=3 n=7 k=5 const=b"),
        ("(float[2, 3, 5] x) => (float[2, 3, 7] y) { y = MatMul(x, w) }", {"w": (5, 7)},
         "matmul m=6 n=7 k=5 const=b"),
        ("(float[2, 3, 5] x, float[2, 5, 7] z) => (float[2, 3, 7] y) { y = MatMul(x, z) }", {},
         "matmul m=3 n=7 k=5 batch=2"),
        ("(float[2, 3, 5] x, float[2, 7, 5] z) => (float[2, 3, 7] y) "
         "{ t = Transpose<perm=[0, 2, 1]>(z) y = MatMul(x, t) }", {},
         "matmul m=3 n=7 k=5 batch=2 tb=1"),
        ("(float[5, 3] x) => (float[3, 7] y) { t = Transpose(x) y = MatMul(t, w) }",
         {"w": (5, 7)}, "matmul m=3 n=7 k=5 ta=1 const=b"),
        ("(float[5] x) => (float[7] y) { y = MatMul(x, w) }", {"w": (5, 7)},
         "matmul m=1 n=7 k=5 const=b"),
        ("(float[3, 5] x) => (float[3] y) { y = MatMul(x, w) }", {"w": (5,)},
         "matmul m=3 n=1 k=5 const=b"),
        ("(float[3, 5] x) => (float[3, 7] y) { y = Gemm<transB=1>(x, w, b) }",
         {"w": (7, 5), "b": (7,)}, "matmul m=3 n=7 k=5 const=b epilogue=bias"),
        ("(float[5, 3] x) => (float[3, 7] y) { y = Gemm<transA=1, alpha=0.5, beta=2.0>(x, w, b) }",
         {"w": (5, 7), "b": (3, 1)},
         "matmul m=3 n=7 k=5 ta=1 const=b epilogue=multiply_constant:0.5,residual"),
        ("(float[3, 5] x, float[3, 7] c) => (float[3, 7] y) { y = Gemm(x, w, c) }",
         {"w": (5, 7)}, "matmul m=3 n=7 k=5 const=b epilogue=residual"),
    ],
)  # fmt: skip
def test_products(text: str, weights: dict[str, tuple[int, ...]], key: str) -> None:
    model = model_of(f"g {text}", **{n: random(*s, seed=3) for n, s in weights.items()})
    graph = check_both(model)
    assert operators(graph) == {key: 1}
    assert Workload.parse(key).key == key


@pytest.mark.parametrize("lead", [(), (1,)])
def test_matrices_turned_before_one_weight_are_turned_by_a_kernel(lead: tuple[int, ...]) -> None:
    """Rows of matrices that are not turned do not follow each other."""
    model = model_of(
        "g (float[2, 5, 3] x) => (float[2, 3, 7] y) { t = Transpose<perm=[0, 2, 1]>(x) "
        "y = MatMul(t, w) }",
        w=random(*lead, 5, 7),
    )
    assert "matmul m=6 n=7 k=5 const=b" in operators(check_both(model))
