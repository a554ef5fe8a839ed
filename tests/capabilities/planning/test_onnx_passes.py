"""The same encoder as a public configuration and as an ONNX file costs the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import helper

from tests.end_to_end.command import invoke, succeed

WIDTH, INNER, HEADS, DEPTH, ROWS = 256, 1024, 4, 2, 128
SIZE = WIDTH // HEADS
FIELDS = {
    "model_type": "bert", "hidden_size": WIDTH, "intermediate_size": INNER, "vocab_size": 1000,
    "num_attention_heads": HEADS, "num_hidden_layers": DEPTH,
}  # fmt: skip
NORMS = {
    "whole": "{y} = LayerNormalization <axis = -1> ({x}, gamma, beta)",
    "in parts": "{y}m = ReduceMean <axes = [-1]> ({x}) {y}d = Sub ({x}, {y}m) "
    "{y}q = Pow ({y}d, two) {y}v = ReduceMean <axes = [-1]> ({y}q) {y}e = Add ({y}v, tiny) "
    "{y}s = Sqrt ({y}e) {y}n = Div ({y}d, {y}s) {y}g = Mul ({y}n, gamma) {y} = Add ({y}g, beta)",
}


def lines(norm: str) -> Iterator[str]:
    """Nodes as exporters write them: biases, scales and a GELU number by number, and sizes that a
    chain of constants gives."""

    def linear(x: str, w: str, y: str) -> str:
        return f"{y}0 = MatMul ({x}, {w}) {y}b = Identity (b_{w}) {y} = Add ({y}b, {y}0)"

    yield "one = Equal (ask, nothing) shape = Where (one, ask, ids_shape)"
    yield "wide = Expand (ids, shape) words = Gather (table, wide)"
    yield norm.format(x="words", y="h0")
    for n in range(DEPTH):
        for name in "qkv":
            yield linear(f"h{n}", name, f"{name}{n}")
            yield f"{name}{n}r = Reshape ({name}{n}, heads)"
        for name, turn in (("q", "0, 2, 1, 3"), ("k", "0, 2, 3, 1"), ("v", "0, 2, 1, 3")):
            yield f"{name}{n}t = Transpose <perm = [{turn}]> ({name}{n}r)"
        yield f"s{n} = MatMul (q{n}t, k{n}t) c{n} = Div (s{n}, two) p{n} = Softmax (c{n})"
        yield f"a{n} = MatMul (p{n}, v{n}t) u{n} = Transpose <perm = [0, 2, 1, 3]> (a{n})"
        yield f"j{n} = Reshape (u{n}, joined) " + linear(f"j{n}", "o", f"o{n}")
        yield f"r{n} = Add (o{n}, h{n}) " + norm.format(x=f"r{n}", y=f"m{n}")
        yield linear(f"m{n}", "up", f"x{n}")
        yield f"d{n} = Div (x{n}, two) e{n} = Erf (d{n}) f{n} = Add (e{n}, tiny)"
        yield f"i{n} = Mul (x{n}, f{n}) g{n} = Mul (i{n}, two) " + linear(f"g{n}", "down", f"y{n}")
        yield f"z{n} = Add (y{n}, m{n}) " + norm.format(x=f"z{n}", y=f"h{n + 1}")


def save(path: Path, norm: str) -> None:
    weights = {"table": (1000, WIDTH), "gamma": (WIDTH,), "beta": (WIDTH,), "up": (WIDTH, INNER),
               "down": (INNER, WIDTH), "b_up": (INNER,)}  # fmt: skip
    weights |= dict.fromkeys("qkvo", (WIDTH, WIDTH))
    weights |= {f"b_{name}": (WIDTH,) for name in ("q", "k", "v", "o", "down")}
    graph = onnx.parser.parse_graph(
        f"bert (int64[1, {ROWS}] ids) => (float[1, {ROWS}, {WIDTH}] h{DEPTH}) <int64[2] ask = "
        f"{{-1, 1}}, int64[2] nothing = {{-1, -1}}, int64[2] ids_shape = {{1, {ROWS}}}, "
        f"int64[4] heads = {{0, -1, {HEADS}, {SIZE}}}, int64[3] joined = {{0, -1, {WIDTH}}}, "
        f"float two = {{2.0}}, float tiny = {{1e-12}}> {{ {' '.join(lines(norm))} }}"
    )
    for name, dims in weights.items():
        tensor = graph.initializer.add(name=name, data_type=1, dims=dims)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="nowhere.bin")
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.parametrize("norm", list(NORMS))
@pytest.mark.parametrize("tensor", [1, 4])
def test_an_encoder_costs_the_same_read_both_ways(norm: str, tensor: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    save(tmp_path / "m.onnx", NORMS[norm])
    words = ("--mesh", "trn1.32xlarge", "--tp", tensor, "--batch", 1, "--input", ROWS)
    expected = succeed("plan", tmp_path / "config.json", *words)["parts_us"]["pass"]
    found = succeed("plan", tmp_path / "m.onnx", *words)["parts_us"]["pass"]
    for name in ("attention", "norms", "layers", "pointwise", *(["collectives"] * (tensor > 1))):
        assert found[name] == pytest.approx(expected[name], rel=1e-4), name
    pooler = WIDTH * WIDTH / (DEPTH * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER))
    products = found["weights"] + found.get("products", 0.0)
    assert products == pytest.approx(expected["weights"] / (1 + pooler), rel=0.01)


def test_what_is_beside_products_may_have_any_sizes_and_weights_no_negative_ones(
    tmp_path: Path,
) -> None:
    text = "(float[4, 4] x, float s, float[N, M] y) => (float[4, 4] a, float q, float[N, M] r) { "
    text += "a = MatMul (x, w) b = Relu (s) q = Erf (b) r = Relu (y) }"
    for size, code in ((4, 0), (-4, 2)):
        graph = onnx.parser.parse_graph(f"g {text}")
        weight = graph.initializer.add(name="w", data_type=1, dims=(size, 4))
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="nowhere.bin")
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "m.onnx")
        told = invoke("plan", tmp_path / "m.onnx", "--mesh", "trn1.2xlarge", "--batch", 1)
        assert told.exit_code == code, told.stderr
        assert code == 0 or "weight 'w' has a negative size" in told.stderr
