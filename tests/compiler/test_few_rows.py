"""Few, long or no rows on accelerators: they fit, need no host, and are what ONNX says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import expected, model_of, random
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import kernels_of
from tilesmith.search_space.hardware.target import load_target

TRN1 = load_target("trn1")
SCALE, BIAS = random(3000, seed=2), random(3000, seed=3)
MODELS = {
    "few rows": ("[3, 50257] x) => (float[3, 50257] y) { y = Softmax<axis=1>(x) }", 13),
    "logarithm": ("[2, 60000] x) => (float[2, 60000] y) { y = LogSoftmax<axis=1>(x) }", 13),
    "channels": ("[1, 5, 40, 40] x) => (float[1, 5, 40, 40] y) { y = Softmax<axis=1>(x) }", 13),
    "first axis": ("[900, 3] x) => (float[900, 3] y) { y = Softmax<axis=0>(x) }", 13),
    "groups": (
        "[1, 8, 160, 160] x) => (float[1, 8, 160, 160] y) { "
        "y = GroupNormalization<num_groups=2>(x, s, b) }",
        21,
    ),
    "scaled": (
        "[1, 60000] x) => (float[1, 60000] y) { "
        "n = LayerNormalization<epsilon=0.01>(x, long, again) r = Relu(n) y = Add(r, x) }",
        17,
    ),
    "greatest": (
        "[1, 7, 30, 30] x) => (float[1, 30, 30] y) { y = ReduceMax<axes=[1], keepdims=0>(x) }",
        13,
    ),
    "least": (
        "[150, 9, 4] x) => (float[150, 1, 4] y) { y = ReduceMin<axes=[1]>(x) }",
        13,
    ),
    "means": (
        "[2, 70, 20, 20] x) => (float[2, 1, 20, 20] y) { m = ReduceMean<axes=[1]>(x) y = Relu(m) }",
        13,
    ),
    "linear": (
        '[1, 6, 17, 30] x) => (float[1, 6, 40, 45] y) { y = Resize<mode="linear">(x, , , size) }',
        18,
    ),
    "cubic": (
        "[2, 3, 9, 8] x) => (float[2, 3, 5, 20] y) { "
        'y = Resize<mode="cubic", coordinate_transformation_mode="align_corners">'
        "(x, , , small) }",
        18,
    ),
    "sums": ("[300, 200] x) => (float[200] y) { y = ReduceSum<keepdims=0>(x, zero) }", 13),
    "all": (
        "[1, 300000] x) => (float[1, 1] y) { m = ReduceMean<axes=[1]>(x) y = Sigmoid(m) }",
        13,
    ),
}
WEIGHTS = {
    "s": SCALE[:2], "b": BIAS[:2], "long": np.tile(SCALE, 20), "again": np.tile(BIAS, 20),
    "zero": np.array([0]), "size": np.array([1, 6, 40, 45]), "small": np.array([2, 3, 5, 20]),
}  # fmt: skip


@pytest.mark.parametrize("which", MODELS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_values_are_onnxruntimes(which: str, precision: str) -> None:
    text, opset = MODELS[which]
    used = {name: w for name, w in WEIGHTS.items() if name in text.split("{")[1].split("(x")[1]}
    if which == "groups":  # a scale a channel from opset 21 on
        used = {"s": SCALE[:8], "b": BIAS[:8]}
    model = model_of(f"g (float{text}", opset=opset, **used)
    executable = build(import_model(model), TRN1, options=BuildOptions(precision=precision))
    assert executable.report.host == 0, executable.report.host_nodes
    inputs = {"x": random(*(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim))}
    found, wanted = executable.run(inputs)["y"], expected(model, inputs)["y"]
    assert found.shape == wanted.shape
    limit = 2e-5 if precision == "fp32" else 2e-2
    assert np.abs(found - wanted).max() <= limit * np.abs(wanted).max()


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((6, 900), 1), ((2, 7, 4, 5), 1), ((9,), 0), ((2, 32000), 1), ((2, 7, 12, 11), 1)],
)
def test_extremes_are_found_on_the_device(
    operator: str, last: int, shape: tuple[int, ...], axis: int
) -> None:
    rest = shape[:axis] + shape[axis + 1 :]
    model = model_of(
        f"g (float{list(shape)} x) => (int64{list(rest)} y) {{ "
        f"y = {operator}<axis={axis}, keepdims=0, select_last_index={last}>(x) }}"
    )
    executable = build(import_model(model), TRN1)
    assert executable.report.host == 0, executable.report.host_nodes
    x = np.round(2 * random(*shape))  # of several that are alike, the first or the last
    found, wanted = executable.run({"x": x})["y"], expected(model, {"x": x})["y"]
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, wanted)


def test_what_is_not_a_number_is_an_extreme_and_gathers_take_the_place() -> None:
    model = model_of(
        """g (float[4, 6] x) => (int64[4] i, float[4, 3] y) {
        i = ArgMax<axis=1, keepdims=0>(x) y = Gather(t, i) }""",
        t=random(6, 3),
    )
    x = random(4, 6)
    x[0, 2], x[1, 5], x[1, 1], x[2, 3] = np.nan, np.nan, np.inf, -np.inf
    executable = build(import_model(model), TRN1)
    assert executable.report.host == 0
    found = executable.run({"x": x})
    wanted = ReferenceEvaluator(model).run(None, {"x": x})
    for name, value in zip(("i", "y"), wanted, strict=True):
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_what_is_not_a_number_is_an_extreme_over_channels(operator: str) -> None:
    model = model_of(
        f"g (float[2, 7, 12, 11] x) => (int64[2, 1, 12, 11] y) {{ y = {operator}<axis=1>(x) }}"
    )
    x = random(2, 7, 12, 11)
    x[0, 3, 0], x[1, 5:, 1], x[:, 2, 2], x[:, 4, 3] = np.nan, np.nan, np.inf, -np.inf
    found = build(import_model(model), TRN1).run({"x": x})["y"]
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("places", [[1], [-2, -1], [1, 2], [2, 1], [0, 0]])
def test_neighbours_are_picked_as_slices(axis: int, places: list[int]) -> None:
    dims = [4, 5, 6]
    dims[axis] = len(places)
    model = model_of(
        f"g (float[4, 5, 6] x) => (float{dims} y) {{ "
        f"a = Tanh(x) b = Gather<axis={axis}>(a, i) y = Neg(b) }}",
        i=np.array(places),
    )
    executable = build(import_model(model), TRN1)
    assert executable.report.host == 0
    picked = [step.workload.split()[0] for step in kernels_of(executable.recipe.steps)]
    assert ("gather" in picked) == (places in ([2, 1], [0, 0]))
    x = random(4, 5, 6)
    wanted = np.take(-np.tanh(x), places, axis)
    np.testing.assert_allclose(executable.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operator", ["Round", "Floor", "Ceil"])
def test_numbers_are_rounded_on_the_device(operator: str) -> None:
    model = model_of(f"g (float[3, 12] x) => (float[3, 12] y) {{ y = {operator}(x) }}")
    halves = [-2.5, -1.5, -0.5, -0.25, 0.0, 0.5, 1.5, 2.5, 0.49999997, 1e-30, -1e-30, 3.0]
    large = [2.0**22 - 0.5, 2.0**22 + 0.5, 2.0**23 - 1, 2.0**24, 1e30, 8388607.5 / 2]
    x = np.array([halves, [*large, *(-v for v in large)], [np.inf, -np.inf, np.nan] * 4], "f4")
    executable = build(import_model(model), TRN1)
    assert executable.report.host == 0, executable.report.host_nodes
    np.testing.assert_array_equal(executable.run({"x": x})["y"], expected(model, {"x": x})["y"])


def test_quantised_numbers_are_clipped_on_the_device() -> None:
    model = model_of(
        """g (float[2, 9] x) => (float[2, 9] y) {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }""",
        s=np.float32(0.125), z=np.uint8(7),
    )  # fmt: skip
    x = np.array([[0.0625, 0.1875, -0.0625, 3e38, -3e38, 1e6, -1e6, 31.0, 30.9]] * 2, "f4")
    x[1, 3:5] = np.inf, -np.inf
    executable = build(import_model(model), TRN1)
    assert executable.report.host == 0, executable.report.host_nodes
    np.testing.assert_array_equal(executable.run({"x": x})["y"], expected(model, {"x": x})["y"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_models_of_16_bits_run_on_the_device(dtype: str, precision: str) -> None:
    weight = random(16, 8)
    model = model_of(
        f"""g ({dtype}[4, 16] x) => ({dtype}[4, 8] y, {dtype}[4, 16] z) {{
        w = Cast<to={10 if dtype == "float16" else 16}>(wide) h = MatMul(x, w) y = Relu(h)
        z = Add(x, x) }}""",
        wide=weight,
    )
    executable = build(import_model(model), TRN1, options=BuildOptions(precision=precision))
    assert executable.report.host == 0, executable.report.host_nodes
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    x = random(4, 16).astype(ml_dtypes.bfloat16).astype(kind)
    found = executable.run({"x": x})
    assert found["y"].dtype == found["z"].dtype == kind
    wanted = np.maximum(x.astype("f4") @ weight.astype(kind).astype("f4"), 0)
    assert np.abs(found["y"].astype("f4") - wanted).max() < 2e-2 * wanted.max()
    np.testing.assert_array_equal(found["z"], x + x)
