"""Operators of com.microsoft against onnxruntime, natively; what it lacks on CPUs against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tests.compiler.node_checks import check_node, node_model
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import ModelError

X, BIAS = random(2, 5, 8), random(8, seed=3)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        ("Gelu", {"x": X}, {}),
        ("BiasGelu", {"x": X, "b": BIAS}, {}),
        ("FastGelu", {"x": X}, {}),
        ("FastGelu", {"x": X, "b": BIAS}, {}),
        ("QuickGelu", {"x": X}, {}),
        ("QuickGelu", {"x": X}, {"alpha": 1.0}),
        ("FusedMatMul", {"a": X, "b": random(8, 3)}, {"alpha": 0.5}),
        ("FusedMatMul", {"a": random(2, 8, 5), "b": random(2, 3, 8)}, {"transA": 1, "transB": 1}),
        ("FusedMatMul", {"a": random(5, 2, 8), "b": random(2, 8, 3)}, {"transBatchA": 1}),
        ("TransposeMatMul", {"a": X, "b": random(2, 3, 8)}, {"transB": 1}),
        ("FusedGemm", {"a": random(5, 8), "b": random(8, 3), "c": random(3)},
         {"activation": "LeakyRelu", "activation_alpha": 0.2}),
        ("FusedGemm", {"a": random(5, 8), "b": random(3, 8)}, {"activation": "Relu", "transB": 1}),
        ("FusedConv", {"x": random(1, 4, 6, 6), "w": random(3, 4, 3, 3), "b": random(3)},
         {"activation": "Relu", "pads": [1, 1, 1, 1]}),
        ("FusedConv", {"x": random(1, 4, 6, 6), "w": random(3, 4, 3, 3), "b": random(3),
                       "z": random(1, 3, 4, 4)}, {"activation": "Relu"}),
        ("FusedConv", {"x": random(1, 4, 6, 6), "w": random(3, 4, 1, 1)},
         {"activation": "Clip", "activation_params": [-0.5, 0.5]}),
        ("CDist", {"a": random(5, 8), "b": random(7, 8)}, {"metric": "euclidean"}),
        ("Trilu", {"x": random(5, 6)}, {"upper": 0}),
    ],
)  # fmt: skip
def test_maps_and_products(
    operator: str, inputs: dict[str, Any], attributes: dict[str, Any]
) -> None:
    constants = [name for name in ("w",) if name in inputs]
    check_node(operator, inputs, constants=constants, **attributes)


def test_layers_that_are_normalised_with_what_is_added_before() -> None:
    gamma, beta = random(8, seed=1), random(8, seed=2)
    inputs = {"x": X, "s": random(2, 5, 8, seed=4), "g": gamma, "b": beta, "c": BIAS}
    sums = ("y", "", "", "t")
    check_node("SkipLayerNormalization", inputs, outputs=sums)
    few = {**inputs, "s": random(5, 8), "b": None}
    check_node("SkipLayerNormalization", few, constants=["g", "c"], epsilon=1e-3)
    rms = {"x": X, "s": inputs["s"], "g": gamma, "c": BIAS}
    check_node("SkipSimplifiedLayerNormalization", rms, outputs=sums, constants=["g", "c"])
    check_node("SimplifiedLayerNormalization", {"x": X, "g": gamma}, domain="", axis=-1)
    plain = {"x": X, "g": gamma, "b": beta}
    check_node("LayerNormalization", plain, domain="", version=14, constants=["g", "b"])


@pytest.mark.parametrize("placed", [False, True])
def test_embeddings_are_added_and_normalised(placed: bool) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 11, (2, 5)).astype(np.int32)
    inputs: dict[str, Any] = {
        "ids": ids, "segments": ids % 2, "words": random(11, 8), "places": random(9, 8),
        "kinds": random(2, 8), "g": random(8), "b": random(8, seed=1),
        "mask": (rng.random((2, 5)) > 0.5).astype(np.int32) if placed else None,
        "positions": (ids % 9) if placed else None,
    }  # fmt: skip
    names = ["words", "places", "kinds", "g", "b"]
    outputs = ("y", "m", "t") if placed else ("y", "m")
    check_node(
        "EmbedLayerNormalization", inputs, constants=names, outputs=outputs,
        kinds={"m": onnx.TensorProto.INT32},
    )  # fmt: skip


def test_inverses_on_the_host() -> None:
    for dtype in (np.float32, np.float64):
        x = (random(2, 3, 3) + 2 * np.eye(3, dtype=np.float32)).astype(dtype)
        kinds = {"y": int(onnx.helper.np_dtype_to_tensor_dtype(x.dtype))}
        check_node("Inverse", {"x": x}, host=1, kinds=kinds)
    with pytest.raises(ModelError, match="Inverse 'n' cannot be computed: its input holds no sq"):
        import_model(node_model("Inverse", {"x": random(2, 3)}))


@pytest.mark.parametrize(
    ("rows", "bits", "size", "zeros"),
    [(96, 4, 32, False), (80, 4, 16, True), (200, 4, 128, True), (96, 8, 32, False)],
)
@pytest.mark.parametrize("length", [1, 5])
def test_products_by_packed_weights_of_activations_in_eight_bits(
    length: int, rows: int, bits: int, size: int, zeros: bool
) -> None:
    """onnxruntime rounds units and codes at other places: a code may be off by one."""
    rng, columns, blocks = np.random.default_rng(bits), 37, -(-rows // size)
    packed = rng.integers(0, 256, columns * -(-blocks * bits // 8)).astype(np.uint8)
    inputs: dict[str, Any] = {
        "a": random(2, length, rows),
        "b": rng.integers(0, 256, (columns, blocks, size * bits // 8)).astype(np.uint8),
        "s": (rng.random((columns, blocks)) / 2**bits).astype(np.float32),
        "z": packed if zeros else None,
    }
    names = [name for name in ("b", "s", "z") if inputs[name] is not None]
    stated = {"K": rows, "N": columns, "bits": bits, "block_size": size, "accuracy_level": 4}
    made = check_node("MatMulNBits", inputs, constants=names, tolerance=2e-3, **stated)
    found = [str(getattr(step, "workload", "")) for step in made.recipe.steps]
    assert any("activations=int8" in text for text in found), found


@pytest.mark.parametrize(
    ("bits", "zeros"),
    [(2, "packed"), (4, "none"), (4, "packed"), (4, "numbers"), (8, "none"), (8, "packed")],
)
def test_products_by_packed_weights(bits: int, zeros: str) -> None:
    rng, rows, columns, size = np.random.default_rng(bits), 80, 5, 32
    blocks = -(-rows // size)
    given = {
        "none": None,
        "packed": rng.integers(0, 256, columns * -(-blocks * bits // 8)).astype(np.uint8),
        "numbers": rng.integers(0, 9, (columns, blocks)).astype(np.float32),
    }[zeros]
    inputs: dict[str, Any] = {
        "a": random(2, 3, rows),
        "b": rng.integers(0, 256, (columns, blocks, size * bits // 8)).astype(np.uint8),
        "s": (rng.random((columns, blocks)) / 8).astype(np.float32), "z": given, "g": None,
        "c": random(columns),
    }  # fmt: skip
    names = [name for name in ("b", "s", "z", "c") if inputs[name] is not None]
    stated = {"K": rows, "N": columns, "bits": bits, "block_size": size}
    check_node("MatMulNBits", inputs, constants=names, **stated)


def _run(model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    return build(import_model(model), host_target()).run(inputs)


def test_what_onnxruntime_has_for_other_devices_only() -> None:
    x, erf = random(2, 3, 4, 6), np.vectorize(math.erf)
    gelu = lambda v: 0.5 * v * (1 + erf(v / math.sqrt(2)))  # noqa: E731
    total = x + random(6)
    found = _run(node_model("BiasSplitGelu", {"x": x, "b": random(6)}), {"x": x, "b": random(6)})
    wanted = total[..., :3] * gelu(total[..., 3:])
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-5)

    inputs = {"x": x, "g": random(6), "b": random(6, seed=1)}
    model = node_model("GroupNorm", inputs, activation=1, groups=2)
    rows = x.reshape(2, 12, 2, 3).transpose(0, 2, 1, 3).reshape(4, -1)
    rows = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    y = rows.reshape(2, 2, 12, 3).transpose(0, 2, 1, 3).reshape(x.shape)
    y = y * inputs["g"] + inputs["b"]
    np.testing.assert_allclose(_run(model, inputs)["y"], y / (1 + np.exp(-y)), 1e-4, 1e-4)

    inputs = {"x": x, "w": random(5, 1, 1, 6), "b": random(5)}
    found = _run(node_model("NhwcConv", inputs, constants={"w": 0, "b": 0}), {"x": x})
    wanted = x @ inputs["w"].reshape(5, 6).T + inputs["b"]
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, True)])
def test_rows_of_packed_tables(bits: int, zeros: bool) -> None:
    rng, blocks = np.random.default_rng(bits), 3
    inputs: dict[str, Any] = {
        "b": rng.integers(0, 256, (11, blocks * 32 * bits // 8)).astype(np.uint8),
        "i": rng.integers(0, 11, (2, 5)),
        "s": (rng.random((11, blocks)) / 8).astype(np.float32),
        "z": rng.integers(0, 256, (11, -(-blocks * bits // 8))).astype(np.uint8) if zeros else None,
    }
    names = [name for name in ("b", "s", "z") if inputs[name] is not None]
    check_node("GatherBlockQuantized", inputs, constants=names, bits=bits, block_size=32)


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("BeamSearch", {}, "node 'n' of 'g' uses com.microsoft.BeamSearch"),
        ("Gelu", {"alpha": 1.0}, "Gelu 'n': attribute 'alpha' is none that is understood"),
        ("QuickGelu", {"alpha": 2}, "attribute 'alpha' is not a number"),
        ("GroupNorm", {}, "GroupNorm 'n' lacks the attribute 'activation'"),
        ("FusedGemm", {}, "FusedGemm 'n' has 1 inputs; from 2 to 3 are taken"),
        ("QuickGelu", {}, "its output 1 is not supported"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    operator: str, attributes: dict[str, Any], message: str
) -> None:
    outputs = ("y", "z") if "output 1" in message else ("y",)
    model = node_model(operator, {"x": X}, outputs=outputs, **attributes)
    with pytest.raises(ModelError, match=message.replace("(", r"\(")):
        import_model(model)


def test_operators_in_bodies_are_understood_or_refused_by_name() -> None:
    text = (
        "g (float[2, 3] x, bool c) => (float[2, 3] y) { y = If (c) <"
        "then_branch = t () => (float[2, 3] a) { a = com.microsoft.Gelu(x) },"
        "else_branch = e () => (float[2, 3] b) { b = com.microsoft.QuickGelu(x) }> }"
    )
    x = random(2, 3)
    model = model_of(text)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    executable = build(import_model(model), host_target())
    for condition in (True, False):
        inputs = {"x": x, "c": np.array(condition)}
        assert_close(executable.run(inputs), expected(model, inputs))
    unknown = model_of(text.replace("QuickGelu", "SlowGelu"))
    unknown.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(ModelError, match=r"uses com\.microsoft\.SlowGelu"):
        import_model(unknown)
