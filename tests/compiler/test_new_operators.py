"""Operators of opsets 23 on, natively, against onnx.reference and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import assert_close, random
from tests.compiler.node_checks import check_node, node_model
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build, extract_tasks
from tilesmith.compiler.onnx.importer import import_model


def check(operator: str, inputs: dict[str, Any], *, version: int = 24, **stated: Any) -> list[str]:
    """Compare with onnx.reference; nothing is on the host. Returns the kernels' operators."""
    model = node_model(operator, inputs, domain="", version=version, **stated)
    given = {name: array for name, array in inputs.items() if array is not None}
    executable = build(import_model(model), host_target())
    outputs = [value.name for value in model.graph.output]
    wanted = ReferenceEvaluator(model).run(outputs, given)
    assert_close(executable.run(given), dict(zip(outputs, wanted, strict=True)))
    assert executable.report.host == 0
    return [task.workload.operator for task in extract_tasks(import_model(model), host_target())]


def operands(
    heads: int = 4, shared: int = 2, rows: int = 3, keys: int = 5, flat: bool = False
) -> dict[str, NDArray[Any]]:
    found = {"q": random(2, heads, rows, 8), "k": random(2, shared, keys, 8, seed=1),
             "v": random(2, shared, keys, 6, seed=2)}  # fmt: skip
    if not flat:
        return found
    return {n: a.transpose(0, 2, 1, 3).reshape(2, a.shape[2], -1) for n, a in found.items()}


PAST = {"pk": random(2, 2, 4, 8, seed=3), "pv": random(2, 2, 4, 6, seed=4)}
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
KEEP = np.random.default_rng(0).random((2, 1, 3, 5)) > 0.4
BLIND = KEEP & (np.arange(3) != 1)[:, None]


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        (operands(), {}),
        (operands(flat=True), HEADS),
        (operands(flat=True, rows=1), HEADS | {"is_causal": 0}),
        (operands() | {"m": KEEP}, {"scale": 0.3}),
        (operands() | {"m": BLIND}, {"is_causal": 1}),
        (operands() | {"m": random(4, 3, 5)}, {"softcap": 2.0}),
        (operands() | {"m": KEEP[..., :3]}, {}),
        (operands() | {"m": None, **PAST}, {"is_causal": 1}),
        (operands(flat=True, rows=1, keys=1) | {"m": random(2, 4, 1, 5), **PAST}, HEADS),
        (operands(keys=3) | {"m": KEEP[..., :2].repeat(4, 3)[..., :7], **PAST}, {}),
        (operands() | {"m": None, "p": None, "w": None, "n": np.array([2, 5])}, {"is_causal": 1}),
        (operands(rows=1) | {"m": None, "p": None, "w": None, "n": np.array([2, 5])}, {}),
    ],
)
def test_attention(inputs: dict[str, Any], attributes: dict[str, Any]) -> None:
    outputs = ("y", "a", "b") if "pk" in inputs else ("y",)
    check("Attention", inputs, outputs=outputs, **attributes)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_attention_shows_its_scores(mode: int) -> None:
    inputs = operands(keys=3) | {"m": random(2, 1, 3, 7), **PAST}
    stated: dict[str, Any] = {"qk_matmul_output_mode": mode, "softcap": 3.0, "is_causal": 1}
    if mode == 0:  # the standard's text: before the cap; onnx.reference shows what comes after it
        stated["softcap"] = 0.0
    if mode == 2:  # minus infinities are equal, and their difference is no number
        stated["is_causal"] = 0
    check("Attention", inputs, outputs=("y", "a", "b", "s"), **stated)


def test_attention_with_windows() -> None:
    newest = {"version": 26, "left_window_size": 1}
    check("Attention", operands(rows=5), right_window_size=1, **newest)
    check("Attention", operands(rows=5) | {"m": None, **PAST}, is_causal=1, outputs=("y", "a", "b"),
          **newest)  # fmt: skip


def test_attention_of_onnxruntime() -> None:
    check_node("Attention", operands(flat=True), domain="", version=23, is_causal=0, **HEADS)
    check_node("Attention", operands() | {"m": KEEP}, domain="", version=23)


def test_attention_is_one_kernel_with_keys_shared_by_heads_and_earlier_ones() -> None:
    inputs = operands(rows=1, keys=1) | {"m": random(2, 1, 1, 5), **PAST}
    assert "attention" in check("Attention", inputs, outputs=("y", "a", "b"))
    assert "attention" in check("Attention", operands(shared=4) | {"m": KEEP})


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("turning", [0, 4])
def test_rotary_embeddings(interleaved: int, turning: int) -> None:
    half, places = (turning or 8) // 2, np.array([[0, 4, 2], [3, 3, 1]])
    tables = {"c": random(6, half, seed=1), "s": random(6, half, seed=2)}
    given = {name: table[places] for name, table in tables.items()}
    stated = {"interleaved": interleaved, "rotary_embedding_dim": turning}
    four, three = {"x": random(2, 4, 3, 8)}, {"x": random(2, 3, 32)}
    check("RotaryEmbedding", four | tables | {"p": places}, **stated)
    check("RotaryEmbedding", four | given, **stated)
    check("RotaryEmbedding", three | tables | {"p": places}, num_heads=4, **stated)
    check_node("RotaryEmbedding", three | given, domain="", version=23, num_heads=4, **stated)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("length", [1, 3])
def test_caches_are_written_into(mode: str, length: int) -> None:
    inputs: dict[str, Any] = {"p": random(2, 3, 6, 4), "u": random(2, 3, length, 4, seed=1)}
    starts = {"i": np.array([1, 5 if mode == "circular" or length == 1 else 3])}
    check("TensorScatter", inputs | starts, mode=mode)
    check("TensorScatter", inputs, mode=mode, axis=2)
    whole = {"p": random(1, 6, 4), "u": random(1, length, 4), "i": np.array([2])}
    check("TensorScatter", whole, mode=mode, axis=1)


def test_normalisations_in_all_forms() -> None:
    x = random(2, 3, 4, 5)
    check("RMSNormalization", {"x": x, "s": random(5)})
    check("RMSNormalization", {"x": x, "s": random(4, 5)}, axis=2, epsilon=1e-3)
    check("RMSNormalization", {"x": x, "s": random(1)}, axis=1)
    check("LayerNormalization", {"x": x, "s": random(5), "b": random(5)}, axis=2)
    check("LayerNormalization", {"x": x, "s": random(4, 5)}, axis=-2, outputs=("y", "m", "d"))
    check("GroupNormalization", {"x": x.transpose(0, 2, 1, 3), "s": random(4), "b": random(4)},
          num_groups=2)  # fmt: skip
    check("Swish", {"x": x})
    check("Swish", {"x": x}, alpha=1.5)
    check("Gelu", {"x": x}, approximate="tanh")
