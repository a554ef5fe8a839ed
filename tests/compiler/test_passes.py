"""Each pass: the same numbers before and after, and the shape of what it leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.compiler.model_builder import (
    assert_close,
    check,
    expected,
    inputs_of,
    model_of,
    operators,
    random,
)
from tilesmith.compiler.driver.pipeline import SIMPLIFICATIONS, simplify
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.activations import RecogniseActivations
from tilesmith.compiler.passes.affine import FoldAffine
from tilesmith.compiler.passes.batch_norm import ExpandBatchNorm
from tilesmith.compiler.passes.canonical import Canonicalise
from tilesmith.compiler.passes.constant_folding import FoldConstants
from tilesmith.compiler.passes.dead_code import RemoveDeadCode
from tilesmith.compiler.passes.normalisation import RecogniseNormalisations
from tilesmith.compiler.passes.padding import FoldPadding
from tilesmith.compiler.passes.scales import MoveScales
from tilesmith.compiler.passes.views import MakeViews
from tilesmith.compiler.rewriting.graph_pass import apply

X4 = "g (float[2, 4, 5, 6] x) => "


def test_constants_are_folded_but_random_numbers_are_not() -> None:
    model = model_of(
        X4 + "(float[2, 4, 5, 6] y) { c = Add(a, b) d = Sqrt(c) y = Mul(x, d) }",
        a=np.full((4, 1, 1), 2.0, np.float32), b=np.full((4, 1, 1), 7.0, np.float32),
    )  # fmt: skip
    graph = check(model, FoldConstants().run)
    assert operators(graph) == {"Mul": 1}
    assert float(graph.constants["d"][0, 0, 0]) == 3.0
    noise = model_of("g () => (float[3] y) { y = RandomNormal<shape=[3]>() }")
    assert operators(FoldConstants().run(import_model(noise))) == {"RandomNormal": 1}


def test_an_output_may_be_a_constant() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Neg(w) }", w=random(2)
    )
    assert operators(check(model, FoldConstants().run)) == {"Relu": 1}


def test_dead_nodes_and_dead_outputs_go() -> None:
    model = model_of(
        X4 + "(float[2, 4, 5, 6] y) { a = Neg(x) b = Exp(a) y, m = Dropout(x) }", opset=9
    )
    graph = check(model, RemoveDeadCode().run)
    assert [node.outputs for node in graph.nodes] == [("y",)]


def test_shape_only_operators_become_one_view() -> None:
    model = model_of(
        """g (float[2, 1, 4, 6] x) => (float[8, 6] y) {
        a = Squeeze(x, one) b = Identity(a) c = Transpose<perm=[0, 1, 2]>(b)
        d = Reshape(c, s) e = Unsqueeze(d, one) f = Transpose<perm=[1, 0, 2]>(e)
        h = Flatten<axis=2>(f) y = Relu(h) }""",
        one=np.array([1]), s=np.array([-1, 6]),
    )  # fmt: skip
    passes = (Canonicalise(), MakeViews(), RemoveDeadCode())
    graph = check(model, lambda g: apply(g, passes))
    assert operators(graph) == {"View": 1, "Relu": 1}


def test_a_view_between_input_and_output_stays() -> None:
    model = model_of("g (float[2, 3] x) => (float[1, 6] y) { y = Flatten<axis=0>(x) }")
    graph = check(model, MakeViews().run)
    assert operators(graph) == {"View": 1}
    both = model_of("g (float[2] x) => (float[2] y) { y = Identity(x) }")
    assert operators(check(both, Canonicalise().run)) == {"Identity": 1}


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Identity(x) b = Relu(a) y = Identity(b)", {"Relu": 1}),
        ("a = Relu(x) y = Dropout(a)", {"Relu": 1}),
        ("a = Relu(x) b = Cast<to=1>(a) y = Mul(b, one)", {"Relu": 1}),
        ("a = Relu(x) y = Add(zero, a)", {"Relu": 1}),
        ("a = Relu(x) y = Concat<axis=1>(a)", {"Relu": 1}),
        ("y = Sum(x, x, x, w)", {"Add": 3}),
        ("y = Max(x, w, zero)", {"Max": 2}),
        ("y = Mean(x, w)", {"Add": 1, "Mul": 1}),
        ("y = Sub(x, w)", {"Add": 1}),
        ("y = Div(x, w)", {"Mul": 1}),
        ("y = Sub(w, x)", {"Sub": 1}),
        ("y = Div(one, x)", {"Div": 1}),
    ],
)
def test_canonical_forms(body: str, left: dict[str, int]) -> None:
    model = model_of(
        X4 + f"(float[2, 4, 5, 6] y) {{ {body} }}",
        one=np.float32(1), zero=np.float32(0), w=1 + np.abs(random(4, 1, 6)),
    )  # fmt: skip
    graph = check(model, Canonicalise().run)
    assert operators(graph) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Slice(x, first, last, axis, back)", {"Slice": 1}),
        ("y = Slice(x, zero, far, axis, one)", {"Relu": 1}),
        ("y = Slice(x, zero, far, axis)", {"Relu": 1}),
        ("y = Slice(x, zero, far, axis, three)", {"Slice": 1, "Relu": 1}),
        ("y = Pad(x, shifted)", {"Pad": 1}),
        ("y = Pad(x, nothing)", {"Relu": 1}),
    ],
)
def test_only_what_keeps_every_element_in_place_disappears(body: str, left: dict[str, int]) -> None:
    """The shapes agree in all of these, but for the steps of three."""
    result = "2, 4, 2, 6" if "three" in body else "2, 4, 5, 6"
    model = model_of(
        X4 + f"(float[{result}] z) {{ {body} z = Relu(y) }}",
        first=[-1], last=[-(2**31)], far=[2**31], axis=[2], back=[-1], zero=[0], one=[1], three=[3],
        shifted=[0, 0, 1, 0, 0, 0, -1, 0], nothing=[0] * 8,
    )  # fmt: skip
    assert operators(check(model, Canonicalise().run)) == {"Relu": 1} | left


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_softmax_before_opset_13_flattens(axis: int) -> None:
    model = model_of(X4 + f"(float[2, 4, 5, 6] y) {{ y = Softmax<axis={axis}>(x) }}", opset=11)
    graph = check(model, lambda g: apply(g, (Canonicalise(), MakeViews())))
    assert graph.nodes[-1].operator in ("View", "Softmax")


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 5), (2, 4, 5, 6)])
def test_batch_norm_is_a_scale_and_a_shift(shape: tuple[int, ...]) -> None:
    text = ", ".join(map(str, shape))
    model = model_of(
        f"g (float[{text}] x) => (float[{text}] y) "
        "{ y = BatchNormalization<epsilon=0.01>(x, s, b, m, v) }",
        s=random(4), b=random(4, seed=1), m=random(4, seed=2), v=np.abs(random(4, seed=3)),
    )  # fmt: skip
    assert operators(check(model, ExpandBatchNorm().run)) == {"Mul": 1, "Add": 1}


def folded(graph: Graph) -> Graph:
    return apply(graph, (Canonicalise(), ExpandBatchNorm(), FoldAffine()))


@pytest.mark.parametrize("bias", ["", ", bias"])
@pytest.mark.parametrize(
    ("convolution", "weight"),
    [
        ("Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=2>", (4, 2, 3, 3)),
        ("ConvTranspose<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>", (4, 4, 3, 3)),
    ],
)
def test_batch_norm_scale_and_shift_move_into_a_convolution(
    convolution: str, weight: tuple[int, ...], bias: str
) -> None:
    model = model_of(
        X4 + f"(float[2, 4, 5, 6] y) {{ a = {convolution}(x, w{bias}) "
        "b = BatchNormalization(a, s, t, m, v) c = Mul(b, half) d = Sub(c, t1) y = Div(d, s1) }",
        w=random(*weight), bias=random(4, seed=7), s=random(4), t=random(4, seed=1),
        m=random(4, seed=2), v=1 + np.abs(random(4, seed=3)), half=np.float32(0.5),
        t1=random(4, 1, 1), s1=2 + np.abs(random(1, 4, 1, 1)),
    )  # fmt: skip
    graph = check(model, folded)
    assert [node.operator for node in graph.nodes] == [convolution.split("<")[0]]


def test_a_convolution_read_twice_keeps_its_weights() -> None:
    model = model_of(
        X4 + "(float[2, 4, 5, 6] y) { a = Conv(x, w) b = Mul(a, s) y = Add(a, b) }",
        w=random(4, 4, 1, 1), s=random(4, 1, 1),
    )  # fmt: skip
    assert operators(check(model, folded)) == {"Conv": 1, "Mul": 1, "Add": 1}


def test_a_scale_that_varies_in_space_stays() -> None:
    model = model_of(
        X4 + "(float[2, 4, 5, 6] y) { a = Conv(x, w) y = Mul(a, s) }",
        w=random(4, 4, 1, 1), s=random(5, 6),
    )  # fmt: skip
    assert operators(check(model, folded)) == {"Conv": 1, "Mul": 1}


@pytest.mark.parametrize("gemm", ["Gemm<transB=1, beta=0.5>", "Gemm<beta=2.0>", "Gemm<alpha=3.0>"])
@pytest.mark.parametrize("c", [(5,), (1, 5), (1,), (3, 1), None])
def test_scales_move_into_a_gemm(gemm: str, c: tuple[int, ...] | None) -> None:
    model = model_of(
        f"g (float[3, 4] x) => (float[3, 5] y) {{ a = {gemm}(x, w{', c' if c else ''}) "
        "b = Mul(a, s) y = Add(b, t) }",
        w=random(5, 4) if "transB" in gemm else random(4, 5), c=random(*(c or (1,))),
        s=random(5), t=random(1, 5),
    )  # fmt: skip
    graph = check(model, folded)
    assert graph.nodes[0].operator == "Gemm"
    assert len(graph.nodes) == (3 if c == (3, 1) else 1)


def test_scales_leave_the_operands_of_a_product() -> None:
    model = model_of(
        "g (float[2, 3, 4] q, float[2, 4, 3] k) => (float[2, 3, 3] y) "
        "{ a = Mul(q, s) b = Mul(t, k) y = MatMul(a, b) }",
        s=np.float32(0.5), t=np.float32(0.25),
    )  # fmt: skip
    graph = check(model, MoveScales().run)
    assert [node.operator for node in graph.nodes] == ["MatMul", "Mul"]


def test_the_scale_of_a_tensor_that_is_multiplied_by_itself_is_moved_twice() -> None:
    model = model_of(
        "g (float[4, 4] x) => (float[4, 4] y) { a = Mul(x, s) y = MatMul(a, a) }", s=np.float32(0.5)
    )
    graph = check(model, MoveScales().run)
    assert [node.operator for node in graph.nodes] == ["MatMul", "Mul"]


GELU = "h = Erf(d) e = Add(h, one) "
ACTIVATIONS = {
    "silu": "s = Sigmoid(x) y = Mul(s, x)",
    "hard_swish": "y = HardSwish(x)",
    "hard_swish of sigmoid": "s = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y = Mul(x, s)",
    "hard_swish of clip": "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
    "hard_swish of scaled clip": "a = Add(three, x) c = Clip(a, zero, six) d = Div(c, six) "
    "y = Mul(x, d)",
    "gelu": f"d = Div(x, root2) {GELU} m = Mul(x, e) y = Mul(m, half)",
    "gelu halved first": f"d = Div(x, root2) {GELU} m = Mul(half, x) y = Mul(m, e)",
    "gelu by product": f"d = Mul(x, over_root2) {GELU} m = Mul(half, e) y = Mul(x, m)",
    "gelu_tanh": "p = Pow(x, three) c = Mul(p, cubic) a = Add(x, c) s = Mul(a, root_2_pi) "
    "h = Tanh(s) e = Add(one, h) m = Mul(half, x) y = Mul(m, e)",
    "gelu_tanh by products": "p = Mul(x, x) q = Mul(p, x) c = Mul(cubic, q) a = Add(c, x) "
    "s = Mul(root_2_pi, a) h = Tanh(s) e = Add(h, one) m = Mul(x, e) y = Mul(half, m)",
}


def numbers(**more: float) -> dict[str, np.float32]:
    known = {
        "one": 1, "three": 3, "zero": 0, "six": 6, "half": 0.5, "root2": math.sqrt(2),
        "over_root2": math.sqrt(0.5), "cubic": 0.044715, "root_2_pi": math.sqrt(2 / math.pi),
    }  # fmt: skip
    return {name: np.float32(value) for name, value in {**known, **more}.items()}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_recognised(name: str) -> None:
    model = model_of(f"g (float[3, 7] x) => (float[3, 7] y) {{ {ACTIVATIONS[name]} }}", **numbers())
    graph = check(model, lambda g: apply(g, (RecogniseActivations(), RemoveDeadCode())))
    assert [node.operator for node in graph.nodes] == [name.split()[0]]
    whole = simplify(import_model(model))
    assert [node.operator for node in whole.nodes] == [name.split()[0]]


def test_the_newest_operators_are_recognised_too() -> None:
    for text in ("Gelu", 'Gelu<approximate="tanh">'):
        model = model_of(f"g (float[3, 7] x) => (float[3, 7] y) {{ y = {text}(x) }}", opset=20)
        assert operators(check(model, RecogniseActivations().run)).keys() <= {"gelu", "gelu_tanh"}


@pytest.mark.parametrize("wrong", [{"half": 0.6}, {"root2": 1.5, "over_root2": 0.6}, {"one": 1.5}])
def test_near_misses_are_not_recognised(wrong: dict[str, float]) -> None:
    model = model_of(
        f"g (float[3, 7] x) => (float[3, 7] y) {{ {ACTIVATIONS['gelu']} }}", **numbers(**wrong)
    )
    graph = check(model, lambda g: apply(g, (RecogniseActivations(), RemoveDeadCode())))
    assert "gelu" not in operators(graph)


NORM = "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) {square} v = ReduceMean<axes=[-1]>(q) "
NORM += "e = Add(v, small) r = Sqrt(e) "


@pytest.mark.parametrize("square", ["q = Pow(d, two)", "q = Mul(d, d)"])
@pytest.mark.parametrize(
    ("rest", "left"),
    [
        ("n = Div(d, r) s = Mul(n, g1) y = Add(s, b1)", {"LayerNormalization": 1}),
        (
            "i = Reciprocal(r) n = Mul(d, i) s = Mul(g1, n) y = Add(b1, s)",
            {"LayerNormalization": 1},
        ),
        ("i = Div(one, r) n = Mul(d, i) y = Mul(n, g1)", {"LayerNormalization": 1}),
        ("n = Div(d, r) y = Add(n, b1)", {"LayerNormalization": 1, "Add": 1}),
        ("y = Div(d, r)", {"LayerNormalization": 1}),
    ],
)
def test_layer_norm_is_recognised(square: str, rest: str, left: dict[str, int]) -> None:
    model = model_of(
        f"g (float[2, 3, 8] x) => (float[2, 3, 8] y) {{ {NORM.format(square=square)} {rest} }}",
        two=np.float32(2), small=np.float32(1e-5), one=np.float32(1), g1=random(8), b1=random(8),
    )  # fmt: skip
    graph = check(model, lambda g: apply(g, (RecogniseNormalisations(), RemoveDeadCode())))
    assert operators(graph) == left


@pytest.mark.parametrize(
    ("rest", "left"),
    [
        ("n = Div(x, r) y = Mul(n, g1)", {"RMSNormalization": 1}),
        ("i = Reciprocal(r) n = Mul(x, i) y = Mul(g1, n)", {"RMSNormalization": 1}),
        ("i = Reciprocal(r) n = Mul(i, x) s = Mul(n, g1) y = Add(s, b1)",
         {"RMSNormalization": 1, "Add": 1}),
        ("n = Div(x, r) y = Mul(n, x)", {"RMSNormalization": 1, "Mul": 1}),
    ],
)  # fmt: skip
def test_rms_norm_is_recognised(rest: str, left: dict[str, int]) -> None:
    text = NORM.partition("d = Sub(x, m)")[2].format(square="q = Pow(x, two)")
    model = model_of(
        f"g (float[2, 3, 8] x) => (float[2, 3, 8] y) {{ {text} {rest} }}",
        two=np.float32(2), small=np.float32(1e-5), g1=random(8), b1=random(8),
    )  # fmt: skip
    graph = check(model, lambda g: apply(g, (RecogniseNormalisations(), RemoveDeadCode())))
    assert operators(graph) == left


def test_softmax_is_recognised_over_the_last_axis_only() -> None:
    body = (
        "m = ReduceMax<axes=[{a}]>(x) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, at) y = Div(e, s)"
    )
    for axis, left in ((-1, {"Softmax": 1}), (1, None)):
        model = model_of(
            f"g (float[2, 3, 8] x) => (float[2, 3, 8] y) {{ {body.format(a=axis)} }}",
            at=np.array([axis]),
        )
        graph = check(model, lambda g: apply(g, (RecogniseNormalisations(), RemoveDeadCode())))
        assert left is None or operators(graph) == left
        assert left is not None or "Softmax" not in operators(graph)


@pytest.mark.parametrize(
    ("pad", "conv", "left"),
    [
        ("Pad(x, p)", "Conv<pads=[1, 0, 2, 1], strides=[2, 1]>", {"Conv": 1}),
        ("Pad(x, p, zero)", 'Conv<auto_pad="VALID">', {"Conv": 1}),
        ("Pad(x, p, one)", "Conv", {"Pad": 1, "Conv": 1}),
        ('Pad<mode="edge">(x, p)', "Conv", {"Pad": 1, "Conv": 1}),
        ("Pad(x, channels)", "Conv<group=2>", {"Pad": 1, "Conv": 1}),
        ("Pad(x, p)", 'Conv<auto_pad="SAME_UPPER">', {"Pad": 1, "Conv": 1}),
    ],
)
def test_zero_padding_moves_into_a_convolution(pad: str, conv: str, left: dict[str, int]) -> None:
    model = model_of(
        X4 + f"(float[A, B, C, D] y) {{ t = {pad} y = {conv}(t, w) }}",
        p=np.array([0, 0, 1, 0, 0, 0, 0, 2]), channels=np.array([0, 2, 0, 0, 0, 2, 0, 0]),
        zero=np.float32(0), one=np.float32(1), w=random(4, 4, 3, 3),
    )  # fmt: skip
    graph = check(model, lambda g: apply(g, (FoldPadding(), RemoveDeadCode())))
    assert operators(graph) == left


def test_every_simplification_returns_the_same_object_when_it_has_nothing_to_do() -> None:
    model = model_of(
        "g (float[3, 4] x) => (float[3, 5] y) { a = Gemm(x, w, c) y = Relu(a) }",
        w=random(4, 5), c=random(5),
    )  # fmt: skip
    graph = import_model(model)
    for step in SIMPLIFICATIONS:
        assert step.run(graph) is graph, step.name


def test_rewriting_keeps_the_order_and_the_outputs() -> None:
    model = model_of(
        "g (float[4] x) => (float[4] y, float[4] z) { y = Identity(x) a = Neg(x) z = Identity(a) }"
    )
    graph = check(model, Canonicalise().run)
    assert [info.name for info in graph.outputs] == ["y", "z"]
    inputs = inputs_of(graph)
    assert_close(run_reference(graph, inputs), expected(model, inputs))
