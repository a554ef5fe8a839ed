"""Every lowering rule: the same numbers in numpy and as native code, and what becomes of nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from codegen.host import host_target
from compiler.build import build, extract_tasks
from compiler.onnx_import import import_model
from compiler.pipeline import simplify, to_kernels
from search_space.workload import Workload
from tests.compiler.model_builder import (
    assert_close,
    check,
    expected,
    inputs_of,
    model_of,
    operators,
    random,
)


def whole(graph: Any) -> Any:
    return to_kernels(simplify(graph))


def check_both(model: onnx.ModelProto, host: int = 0, tolerance: float = 2e-5) -> Any:
    """Compare the lowered graph in numpy, and the executable, with onnxruntime."""
    lowered = check(model, whole, tolerance=tolerance)
    hosts = [node.describe() for node in lowered.nodes if node.kind == "host"]
    assert len(hosts) == host, hosts
    executable = build(import_model(model), host_target())
    assert executable.report.host == host
    executable._arena.view(np.float32)[:] = np.nan  # what is read has to be written before
    inputs = inputs_of(lowered)
    assert_close(executable.run(inputs), expected(model, inputs), tolerance)
    return lowered


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


def test_convolutions_of_one_axis_and_of_three() -> None:
    line = model_of(
        "g (float[2, 6, 19] x) => (float[A, B, C] y) "
        "{ y = Conv<kernel_shape=[3], pads=[1, 0], strides=[2]>(x, w) }",
        w=random(5, 6, 3),
    )
    check_both(line)
    volume = model_of(
        "g (float[1, 2, 4, 4, 4] x) => (float[A, B, C, D, E] y) "
        "{ c = Conv<kernel_shape=[2, 2, 2]>(x, w) y = Relu(c) }",
        w=random(3, 2, 2, 2, 2),
    )
    check_both(volume, host=1)


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


def test_a_product_with_broadcast_batches_stays_on_the_host() -> None:
    model = model_of(
        "g (float[2, 1, 3, 5] x, float[1, 4, 5, 7] z) => (float[2, 4, 3, 7] y) { y = MatMul(x, z) }"
    )
    check_both(model, host=1)


@pytest.mark.parametrize(
    ("body", "epilogue"),
    [
        ("y = Add(c, x)", "bias,residual"),
        ("s = Add(x, c) y = Relu(s)", "bias,residual,relu"),
        ("m = Mul(c, x) y = Sigmoid(m)", "bias,multiply,sigmoid"),
        ("m = Mul(c, two) y = Add(m, half)", "bias"),
        ("y = Clip(c, zero, six)", "bias,clip"),
        ("y = Clip(c, zero)", "bias,relu"),
        ("y = LeakyRelu<alpha=0.2>(c)", "bias,leaky_relu:0.2"),
        ("y = HardSigmoid(c)", "bias,hard_sigmoid"),
        ("y = HardSwish(c)", "bias,hard_swish"),
        ("s = Sigmoid(c) y = Mul(c, s)", "bias,silu"),
        ("y = Tanh(c)", "bias,tanh"),
        ("g = GlobalAveragePool(x) y = Mul(c, g)", None),
    ],
)
def test_epilogues_fuse_into_a_convolution(body: str, epilogue: str | None) -> None:
    model = model_of(
        "g (float[1, 6, 5, 7] x) => (float[1, 6, 5, 7] y) "
        f"{{ c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, w, b) {body} }}",
        w=random(6, 6, 3, 3), b=random(6), two=np.float32(2), half=np.float32(0.5),
        zero=np.float32(0), six=np.float32(6),
    )  # fmt: skip
    graph = check_both(model)
    if epilogue is not None:
        assert len(graph.nodes) == 1
        assert ",".join(map(str, graph.nodes[0].workload.epilogue)) == epilogue
    else:  # squeeze and excite: a scale for each channel, made by another kernel
        assert [str(s) for s in graph.nodes[-1].workload.epilogue] == ["bias", "scale"]


def test_of_two_convolutions_the_deeper_takes_the_sum() -> None:
    model = model_of(
        "g (float[1, 4, 5, 5] x) => (float[1, 4, 5, 5] y) "
        "{ a = Conv(x, w1) b = Relu(a) c = Conv(b, w2) d = Conv(x, w3) y = Add(c, d) }",
        w1=random(4, 4, 1, 1), w2=random(4, 4, 1, 1, seed=1), w3=random(4, 4, 1, 1, seed=2),
    )  # fmt: skip
    graph = check_both(model)
    deep = next(node for node in graph.nodes if node.outputs == ("y",))
    assert "c" not in graph.tensors
    assert deep.inputs[2] == "d"


def test_a_value_read_twice_is_not_fused_away() -> None:
    model = model_of(
        "g (float[1, 4, 5, 5] x) => (float[1, 4, 5, 5] y, float[1, 4, 5, 5] c) "
        "{ c = Conv(x, w1) y = Relu(c) }",
        w1=random(4, 4, 1, 1),
    )
    graph = check_both(model)
    assert len(graph.nodes) == 2


ELEMENTWISE = {
    "chain": ("a = Add(x, z) b = Exp(a) y = Mul(b, v)", 1),
    "broadcast twice": ("a = Add(x, v) y = Div(a, u)", 1),
    "diamond": ("a = Exp(x) b = Neg(a) c = Abs(a) y = Add(b, c)", 2),
    "powers": ("a = Pow(x, two) b = Add(a, one) c = Pow(b, minus_half) y = Pow(c, three)", 2),
    "min and max": ("a = Min(x, z) b = Max(a, v) y = Sub(one, b)", 1),
    "roundings": ("a = Floor(x) b = Ceil(z) c = Sub(a, b) y = Round(c)", 1),
    "activations": (
        "a = Elu<alpha=0.5>(x) b = LeakyRelu(a) c = Softsign(b) y = PRelu(c, v)", None,
    ),
    "clips": ("a = Clip(x, one) b = Clip(x, , one) y = Sub(a, b)", 1),
    "erf, reciprocal, root": (
        "a = Abs(x) b = Add(a, one) c = Sqrt(b) d = Reciprocal(c) y = Erf(d)", 1,
    ),
    "logarithm": ("a = Abs(x) b = Add(a, one) y = Log(b)", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_chains(name: str) -> None:
    body, count = ELEMENTWISE[name]
    model = model_of(
        f"g (float[2, 3, 5, 4] x, float[2, 3, 5, 4] z) => (float[2, 3, 5, 4] y) {{ {body} }}",
        v=random(3, 1, 1), u=2 + np.abs(random(5, 4)), one=np.float32(1), two=np.float32(2),
        three=np.float32(3), minus_half=np.float32(-0.5),
    )  # fmt: skip
    graph = check_both(model)
    assert count is None or len(graph.nodes) == count


def test_equal_elementwise_work_has_one_key_whatever_its_shape() -> None:
    text = "g (float[{0}] x, float[{0}] z) => (float[{0}] y) {{ y = Add(x, z) }}"
    keys = {
        next(iter(operators(whole(import_model(model_of(text.format(shape)))))))
        for shape in ("2, 3, 4", "24", "4, 1, 6")
    }
    assert keys == {"elementwise shape=24 expression=add(x0,x1)"}


def test_integers_and_odd_operators_run_on_the_host() -> None:
    model = model_of(
        "g (float[4, 6] x) => (float[4, 6] y, int64[4] i) "
        "{ r = Relu(x) y = CumSum(r, axis) a = ArgMax<axis=1, keepdims=0>(r) i = Add(a, a) }",
        axis=np.int64(1),
    )
    graph = check_both(model, host=3)
    assert graph.info("i").dtype == "int64"


def test_only_unknown_operators_leave_the_native_code() -> None:
    model = model_of(
        "g (float[1, 16, 6, 6] x) => (float[1, 16, 6, 6] y) "
        "{ a = Conv<kernel_shape=[1, 1]>(x, w) b = CumSum(a, one) "
        "y = Conv<kernel_shape=[1, 1]>(b, w) }",
        w=random(16, 16, 1, 1), one=np.int64(1),
    )  # fmt: skip
    check_both(model, host=1)


@pytest.mark.parametrize("size", [3, 5])
def test_local_response_normalisation(size: int) -> None:
    model = model_of(
        "g (float[2, 7, 4, 3] x) => (float[2, 7, 4, 3] y) "
        f"{{ y = LRN<size={size}, alpha=0.1, beta=0.75, bias=1.5>(x) }}"
    )
    check_both(model)


def test_shapes_known_only_at_run_time() -> None:
    model = model_of(
        "g (float[4, 6] x) => (float[A] y) "
        "{ r = Relu(x) f = Flatten<axis=0>(r) s = Squeeze(f, zero) n = Greater(s, limit) "
        "y = Compress(s, n) }",
        zero=np.array([0]), limit=np.float32(0.5),
    )  # fmt: skip
    check_both(model, host=2)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax(name: str, axis: int) -> None:
    text = f"g (float[3, 5, 7] x) => (float[3, 5, 7] y) {{ y = {name}<axis={axis}>(x) }}"
    check_both(model_of(text))


@pytest.mark.parametrize(
    "text",
    [
        "y = LayerNormalization<axis=-1>(x, g6, b6)",
        "y = LayerNormalization<axis=1, epsilon=0.01>(x, g3, b3)",
        "y = InstanceNormalization(x, c4, d4)",
    ],
)
def test_normalisations(text: str) -> None:
    model = model_of(
        f"g (float[2, 4, 5, 6] x) => (float[2, 4, 5, 6] y) {{ {text} }}",
        g6=random(6), b6=random(6), g3=random(4, 5, 6), b3=random(4, 5, 6, seed=4), c4=random(4),
        d4=random(4, seed=2),
    )  # fmt: skip
    check_both(model)


@pytest.mark.parametrize(
    "text",
    [
        "y = ReduceMean<axes=[-1], keepdims=0>(x)",
        "y = ReduceSum(x, at)",
        "y = ReduceMax<axes=[1]>(x)",
        "y = ReduceMin<keepdims=1>(x)",
        "y = ReduceProd<axes=[0, 1]>(x)",
        "m = ReduceMean<axes=[2]>(x) y = Sub(x, m)",
    ],
)
def test_reductions(text: str) -> None:
    model = model_of("g (float[3, 5, 7] x) => (float y) { " + text + " }", at=np.array([0, 2]))
    inferred = onnx.shape_inference.infer_shapes(model_without_output_shape(model))
    check_both(inferred)


def model_without_output_shape(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


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
        'y = Resize<mode="linear">(x, , scales)',
        'y = Resize<coordinate_transformation_mode="align_corners">(x, , scales)',
    ],
)
def test_resizing_that_stays_on_the_host(text: str) -> None:
    model = model_of(
        f"g (float[1, 1, 5, 7] x) => (float y) {{ {text} }}",
        scales=np.float32([1, 1, 2, 2]),
    )  # fmt: skip
    inferred = onnx.shape_inference.infer_shapes(model_without_output_shape(model))
    check_both(inferred, host=1)


def test_scales_that_are_no_ratio_of_the_extents_stay_on_the_host() -> None:
    model = model_of(
        "g (float[1, 1, 5, 7] x) => (float[1, 1, 7, 9] y) { y = Resize(x, , odd) }",
        odd=np.float32([1, 1, 1.5, 1.3]),
    )
    assert [node.kind for node in whole(import_model(model)).nodes] == ["host"]


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


def test_tasks_are_distinct_and_weighted(light_resnet50: Any) -> None:
    tasks = extract_tasks(import_model(light_resnet50))
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
