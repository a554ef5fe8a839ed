"""Attention of com.microsoft, natively, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.compiler.model_builder import assert_close, expected, random
from tests.compiler.node_checks import check_node, node_model
from tests.compiler.test_quantised_products import codes, number
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import ModelError

X, WEIGHT, BIAS = random(2, 5, 8), random(8, 24) / 3, random(24)
FLAGS = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.int32)
PAST = random(2, 2, 2, 3, 4, seed=5)
"""Keys and values of two sequences and two heads."""


@pytest.mark.parametrize(
    ("more", "attributes"),
    [
        ({"b": BIAS}, {}),
        ({"b": BIAS}, {"unidirectional": 1, "scale": 0.3}),
        ({"b": BIAS, "m": FLAGS}, {}),
        ({"b": BIAS, "m": np.array([2, 5], np.int32)}, {}),
        ({"b": BIAS, "m": np.array([4, 5, 1, 2], np.int32)}, {}),
        ({"b": BIAS, "m": np.repeat(FLAGS, 5, 0).reshape(2, 5, 5)}, {"mask_filter_value": -50.0}),
        ({"b": BIAS, "m": None, "p": None, "a": random(1, 2, 5, 5)}, {}),
        ({"b": BIAS, "m": np.ones((2, 8), np.int32), "p": PAST}, {"unidirectional": 1}),
        ({"b": random(20), "w": random(8, 20) / 3}, {"qkv_hidden_sizes": [8, 8, 4]}),
    ],
)
def test_attention_with_its_projection(more: dict[str, Any], attributes: dict[str, Any]) -> None:
    inputs = {"x": X, "w": more.pop("w", WEIGHT), **more}
    outputs = ("y", "p2") if inputs.get("p") is not None else ("y",)
    names = [name for name in ("w", "b") if inputs[name] is not None]
    check_node("Attention", inputs, constants=names, outputs=outputs, num_heads=2, **attributes)


def test_attention_of_bytes() -> None:
    inputs = {
        "x": codes(2, 5, 8), "w": codes(8, 24, dtype="int8"), "b": BIAS, "xs": number(0.02),
        "ws": number(0.01), "m": FLAGS, "xz": number(120, "uint8"), "wz": number(3, "int8"),
    }  # fmt: skip
    check_node("QAttention", inputs, constants=["w", "b", "ws", "wz"], num_heads=2)


QKV = {"q": random(2, 5, 8), "k": random(2, 6, 8, seed=1), "v": random(2, 6, 4, seed=2)}


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (QKV, {}),
        (QKV | {"b": random(20)}, {"scale": 0.4}),
        (QKV | {"b": None, "m": np.array([3, 6], np.int32)}, {}),
        (QKV | {"b": None, "m": (random(2, 6) > 0).astype(np.int32), "a": random(2, 2, 5, 6)}, {}),
        ({"q": random(2, 5, 8), "k": random(2, 2, 6, 4), "v": random(2, 2, 6, 4, seed=1)}, {}),
        ({"q": X, "k": X + 1, "v": X - 1, "b": None, "m": None, "a": None, "pk": PAST[0],
          "pv": PAST[1]}, {"unidirectional": 1}),
    ],
)  # fmt: skip
def test_attention_of_several_operands(inputs: dict[str, Any], attributes: dict[str, Any]) -> None:
    outputs = ("y", "k2", "v2") if "pk" in inputs else ("y",)
    constants = ["b"] if inputs.get("b") is not None else []
    check_node("MultiHeadAttention", inputs, outputs=outputs, constants=constants, num_heads=2,
               **attributes)  # fmt: skip


def test_packed_operands_are_those_they_are_packed_of() -> None:
    """onnxruntime has no packed ones on CPUs."""
    x = random(2, 5, 2, 3, 4)
    parts = [x[:, :, :, i].reshape(2, 5, 8) for i in range(3)]
    plain = node_model("MultiHeadAttention", dict(zip("qkv", parts, strict=True)), num_heads=2)
    wanted = expected(plain, dict(zip("qkv", parts, strict=True)))
    for inputs in ({"q": x}, {"q": parts[0], "k": np.ascontiguousarray(x[:, :, :, 1:])}):
        model = node_model("MultiHeadAttention", inputs, num_heads=2)
        assert_close(build(import_model(model), host_target()).run(inputs), wanted)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embeddings(interleaved: int) -> None:
    tables = {"c": np.cos(random(9, 4)), "s": np.sin(random(9, 4))}
    places = np.array([[0, 1, 2], [4, 8, 3]])
    for x, more in ((random(2, 3, 16), {}), (random(2, 2, 3, 8), {})):
        inputs = {"x": x, "p": places, **tables}
        check_node("RotaryEmbedding", inputs, interleaved=interleaved, **more)
        inputs["p"] = np.array([4])
        check_node("RotaryEmbedding", inputs, interleaved=interleaved, **more)
    partly = {"x": random(2, 3, 24), "p": places, **tables}
    check_node("RotaryEmbedding", partly, interleaved=interleaved, num_heads=2,
               rotary_embedding_dim=8)  # fmt: skip


HEADS = {"num_heads": 4, "kv_num_heads": 2}


def grouped(
    rows: int, before: int, lengths: list[int], past: int = 0, packed: bool = False, **more: Any
) -> dict[str, NDArray[Any]]:
    """Operands of sequences that have so many keys after the run, in buffers of `past`."""
    batch, size = len(lengths), 16
    q, k, v = random(batch, rows, 4 * size), random(batch, rows, 2 * size, seed=1), random(
        batch, rows, 2 * size, seed=2
    )  # fmt: skip
    found: dict[str, Any] = {"q": q, "k": k, "v": v}
    if packed:
        found = {"q": np.concatenate((q, k, v), axis=2), "k": None, "v": None}
    found["pk"], found["pv"] = (
        random(batch, 2, past or before, size, seed=s) if past or before else None for s in (3, 4)
    )
    found["sl"] = np.array(lengths, np.int32) - 1
    found["total"] = np.array(max(lengths), np.int32)
    found["c"] = np.cos(random(20, size // 2)) if more else None
    found["s"] = np.sin(random(20, size // 2)) if more else None
    return {name: a for name, a in found.items() if more or name not in "cs"}


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (grouped(5, 0, [5, 5]), {}),
        (grouped(5, 0, [5], packed=True, turned=1), {"do_rotary": 1}),
        (grouped(1, 6, [7], turned=1), {"do_rotary": 1, "rotary_interleaved": 1}),
        (grouped(1, 6, [7, 4]), {"scale": 0.3}),
        (grouped(3, 6, [9]), {"softcap": 2.0, "local_window_size": 4}),
        (grouped(1, 0, [5, 9], past=12, turned=1), {"do_rotary": 1}),
        (grouped(1, 0, [5, 9], past=12), {"local_window_size": 3}),
    ],
)
def test_attention_of_keys_shared_by_heads(
    inputs: dict[str, Any], attributes: dict[str, Any]
) -> None:
    outputs = ("y", "k2", "v2")
    model = node_model("GroupQueryAttention", inputs, outputs=outputs, constants={"total": 0},
                       **HEADS, **attributes)  # fmt: skip
    fed = {name: a for name, a in inputs.items() if a is not None and name != "total"}
    executable = build(import_model(model), host_target())
    assert executable.report.host == 0
    found, wanted = executable.run(fed), expected(model, fed)
    for batch, last in enumerate(inputs["sl"]):  # behind them there is nothing in particular
        for name in ("k2", "v2"):
            for values in (found, wanted):
                values[name] = np.array(values[name])
                values[name][batch, :, last + 1 :] = 0
    assert_close(found, wanted)


def test_the_length_of_present_keys_has_to_be_known() -> None:
    inputs = grouped(1, 6, [7])
    model = node_model("GroupQueryAttention", inputs, outputs=("y", "k2", "v2"), **HEADS)
    with pytest.raises(ModelError, match="GroupQueryAttention 'n' cannot be computed: the length"):
        import_model(model)
    shape = onnx.helper.make_tensor_value_info("k2", onnx.TensorProto.FLOAT, [1, 2, 7, 16])
    model.graph.output[1].CopyFrom(shape)
    executable = build(import_model(model), host_target())
    fed = {name: a for name, a in inputs.items() if a is not None}
    assert_close(executable.run(fed), expected(model, fed))
