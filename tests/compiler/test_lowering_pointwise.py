"""Elementwise work after lowering: fused behind products, in chains, or of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.lowering_checks import check_both, whole
from tests.compiler.model_builder import expected, model_of, operators, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes import elementwise
from tilesmith.search_space.workloads.workload import Workload


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
    "powers": ("a = Pow(x, two) b = Add(a, one) c = Pow(b, minus_half) y = Pow(c, three)", 3),
    "other powers": (
        "p = Abs(x) q = Pow(p, fraction) r = Pow(x, four) s = Add(q, r) t = Add(s, one) "
        "y = Pow(t, minus_two)", None,
    ),
    "min and max": ("a = Min(x, z) b = Max(a, v) y = Sub(one, b)", 1),
    "roundings": ("a = Floor(x) b = Ceil(z) c = Sub(a, b) y = Round(c)", 1),
    "activations": (
        "a = Elu<alpha=0.5>(x) b = LeakyRelu(a) c = Softsign(b) y = PRelu(c, v)", None,
    ),
    "clips": ("a = Clip(x, one) b = Clip(x, , one) y = Sub(a, b)", 1),
    "erf, reciprocal, root": (
        "a = Abs(x) b = Add(a, one) c = Sqrt(b) d = Reciprocal(c) y = Erf(d)", 1,
    ),
    "scaled exponentials": ("a = Selu(x) y = Celu<alpha=0.5>(a)", None),
    "softplus": ("a = Softplus(x) b = Tanh(a) y = Mul(b, z)", 1),
    "threshold": ("y = ThresholdedRelu<alpha=0.3>(x)", 1),
    "constant mask": ("a = Neg(x) b = Where(mask, a, lowest) y = Softmax(b)", 2),
    "mask of one": ("y = Where(some, x, z)", 1),
    "logarithm": ("a = Abs(x) b = Add(a, one) y = Log(b)", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_chains(name: str) -> None:
    body, count = ELEMENTWISE[name]
    model = model_of(
        f"g (float[2, 3, 5, 4] x, float[2, 3, 5, 4] z) => (float[2, 3, 5, 4] y) {{ {body} }}",
        v=random(3, 1, 1), u=2 + np.abs(random(5, 4)), one=np.float32(1), two=np.float32(2),
        lowest=np.float32(-np.inf), mask=random(5, 4) > -1, some=random(5, 1) > 0,
        fraction=np.float32(0.75), four=np.float32(4), minus_two=np.float32(-2),
        three=np.float32(3), minus_half=np.float32(-0.5),
    )  # fmt: skip
    graph = check_both(model)
    assert count is None or len(graph.nodes) == count


def test_mish() -> None:
    check_both(model_of("g (float[3, 5] x) => (float[3, 5] y) { y = Mish(x) }", opset=18))


def test_celu_divides_by_nothing_as_others_do() -> None:
    model = model_of("g (float[3, 5] x) => (float[3, 5] y) { y = Celu<alpha=0.0>(x) }", opset=18)
    graph = import_model(model)
    inputs = {"x": random(3, 5)}
    found = build(graph, host_target()).run(inputs)
    np.testing.assert_array_equal(found["y"], expected(model, inputs)["y"])


def test_equal_elementwise_work_has_one_key_whatever_its_shape() -> None:
    text = "g (float[{0}] x, float[{0}] z) => (float[{0}] y) {{ y = Add(x, z) }}"
    keys = {
        next(iter(operators(whole(import_model(model_of(text.format(shape)))))))
        for shape in ("2, 3, 4", "24", "4, 1, 6")
    }
    assert keys == {"elementwise shape=24 expression=add(x0,x1)"}


def test_a_long_chain_is_several_kernels() -> None:
    names = ["x", *(f"t{i}" for i in range(299)), "y"]
    steps = (f"{then} = {('Sin', 'Neg')[i % 2]}({names[i]})" for i, then in enumerate(names[1:]))
    model = model_of(f"g (float[2, 3] x) => (float[2, 3] y) {{ {' '.join(steps)} }}")
    assert len(check_both(model).nodes) == 3, "of 128, 128 and 44 functions"


def test_each_kernel_of_a_long_chain_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an operator joins is decided before the formula of all of them is composed."""
    written: list[int] = []
    write = elementwise.elementwise_workload

    def counted(*arguments: Any) -> Workload:
        written.append(1)
        return write(*arguments)

    monkeypatch.setattr(elementwise, "elementwise_workload", counted)
    names = ["x", *(f"t{i}" for i in range(299)), "y"]
    steps = zip(names, names[1:], ["Tanh", "Neg", "Abs"] * 100, strict=False)
    body = " ".join(f"{after} = {operator}({before})" for before, after, operator in steps)
    graph = check_both(model_of(f"g (float[5] x) => (float[5] y) {{ {body} }}"))
    assert operators(graph).total() == 3  # of 128 functions at most
    assert len(written) == 2 * 3  # `check_both` lowers it twice


def test_flags_and_numbers_join_what_reads_them_as_floats() -> None:
    """A comparison cast to a float has another type inside a formula than its tensor had."""
    graph = check_both(
        model_of(
            "g (float[5] x, float[5] z) => (float[5] y) { b = Less(x, z) f = Cast<to=1>(b) "
            "n = Neg(f) e = Exp(n) s = Sub(x, e) c = Cast<to=1>(x) y = Mul(s, c) }"
        )
    )
    assert operators(graph).total() == 1


def test_a_tensor_cast_like_itself_stays_as_it_is() -> None:
    check_both(model_of("g (float[3, 5] x) => (float[3, 5] y) { y = CastLike(x, x) }"))
