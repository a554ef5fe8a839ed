"""Model files that are wrong on purpose: each ends in one sentence, in optimised Python, too.

The operators, shapes and attributes are the smallest that once ended the interpreter, read memory
of others or came out as an internal error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tilesmith
from tests.compiler.model_builder import model_of
from tests.end_to_end.command import refuse
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.graph.graph import Graph, TensorInfo, view
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.placement import place
from tilesmith.search_space.support.errors import ModelError, TilesmithError, VerificationError


def layer_norm(**attributes: Any) -> onnx.ModelProto:
    model = model_of(
        "g (float[2, 3, 4, 5] x, float[4, 5] w) => (float[2, 3, 4, 5] y) "
        "{ y = LayerNormalization(x, w) }"
    )
    model.graph.node[0].attribute.extend(
        helper.make_attribute(name, value, attr_type=2 if isinstance(value, int) else 7)
        for name, value in attributes.items()
    )
    return model


def attention(
    q: str,
    k: str,
    v: str,
    text: str = "",
    dtype: str = "float",
    past: tuple[str, ...] = (),
) -> onnx.ModelProto:
    caches = "".join(f", float[{shape}] past{i}" for i, shape in enumerate(past))
    names = ', "", past0, past1' if past else ""
    return model_of(
        f"g (float[{q}] Q, {dtype}[{k}] K, float[{v}] V{caches}) => (float[2, 3, 4, 8] Y) "
        f"{{ Y = Attention{text}(Q, K, V{names}) }}",
        opset=23,
    )


def resize(sizes: list[int]) -> onnx.ModelProto:
    text = 'g (float[1, 1, 4, 4] X) => (float Y) { Y = Resize<mode="cubic">(X, "", "", sizes) }'
    return model_of(text, opset=19, sizes=np.array(sizes))


def without_name() -> onnx.ModelProto:
    model = model_of("g (float[2] x, float[2] z) => (float[4] y) { y = Concat<axis=0>(x, z) }")
    model.graph.node[0].input[1] = ""
    return model


def declared() -> onnx.ModelProto:
    model = model_of(
        "g (float[1, 1, 2, 2] X, float[2] s) => (float y) "
        '{ Y = Resize<axes=[3, 2], mode="nearest">(X, "", s) y = ReduceMean<keepdims=0>(Y) }',
        opset=18,
    )
    model.graph.value_info.append(helper.make_tensor_value_info("Y", 11, [5, 3, 5]))
    return model


def split(outputs: int) -> onnx.ModelProto:
    text = (
        f"g (float[6] x) => (float a, float b, float c) {{ a, b, c = Split<num_outputs={outputs}>"
    )
    return model_of(f"{text}(x) }}", opset=18)


def graph_of(operation: str, inputs: str = "float[2, 3] x, float[2, 3] z") -> onnx.ModelProto:
    return model_of(f"g ({inputs}) => (float y) {{ y = {operation} }}", opset=18)


CASES: dict[str, tuple[onnx.ModelProto, str]] = {
    "axis of 33 bits": (layer_norm(axis=1 << 31), "attribute 'axis' is 2147483648; it has to be"),
    "axis of 64 bits": (layer_norm(axis=(1 << 63) - 1), "attribute 'axis' is 9223372036854775807"),
    "axis behind the last": (layer_norm(axis=4), "'axis' is 4; .* from -4 to 3 is allowed"),
    "an empty list": (layer_norm(ceil_mode=[]), "'ceil_mode' is none that LayerNormalization has"),
    "values too short": (
        attention("2, 3, 4, 8", "2, 3, 6, 8", "2, 3, 3, 8"),
        "2x3x4x8, 2x3x6x8, 2x3x3x8; batches, and lengths of K and V, have to agree",
    ),
    "keys of other size": (
        attention("2, 3, 4, 8", "2, 3, 6, 4", "2, 3, 6, 8"), "heads of Q and K .* one size",
    ),
    "keys of three axes": (
        attention("2, 3, 4, 8", "2, 3, 8", "2, 3, 6, 8"), "all three have 3 axes, or all three",
    ),
    "no heads": (
        attention("2, 4, 24", "2, 6, 24", "2, 6, 24", "<q_num_heads=0, kv_num_heads=3>"),
        "'q_num_heads' is 0; it has to be at least 1",
    ),
    "keys of whole numbers": (
        attention("2, 3, 4, 8", "2, 3, 6, 8", "2, 3, 6, 8", dtype="int16"),
        r"operand 'K' \('K'\) is of dtype int16; .* is allowed",
    ),
    "keys of other precision": (
        attention("2, 3, 4, 8", "2, 3, 6, 8", "2, 3, 6, 8", dtype="float16"),
        "operand 'Q' is of dtype float32 and operand 'K' .* of dtype float16",
    ),
    "earlier keys of other size": (
        attention("2, 3, 4, 8", "2, 3, 6, 8", "2, 3, 6, 8", past=("2, 3, 12, 17", "2, 3, 12, 8")),
        "past_key has the shape 2x3x12x17; 2x3xNx8 is due",
    ),
    "earlier values of other heads": (
        attention("2, 3, 4, 8", "2, 3, 6, 8", "2, 3, 6, 8", past=("2, 3, 12, 8", "2, 1, 12, 8")),
        "past_value has the shape 2x1x12x8; 2x3xNx8 is due",
    ),
    "fewer earlier values": (
        attention("2, 3, 4, 8", "2, 3, 6, 8", "2, 3, 6, 8", past=("2, 3, 12, 8", "2, 3, 11, 8")),
        "2x3x12x8 and 2x3x11x8; they have to be of one length",
    ),
    "a mask of other queries": (
        model_of(
            "g (float[2, 3, 4, 8] Q, float[2, 3, 6, 8] K, float[2, 3, 6, 8] V, float[17, 6] m) "
            "=> (float[2, 3, 4, 8] Y) { Y = Attention(Q, K, V, m) }",
            opset=23,
        ),
        "the mask has the shape 17x6, which does not broadcast",
    ),
    "mixed sum": (
        graph_of("Add(x, z)", "float[2, 3] x, int64[2, 3] z"),
        "Add 'y' mixes dtypes: operand 'x' is of dtype float32 and operand 'z' .* int64",
    ),
    "mixed join": (
        graph_of("Concat<axis=0>(x, z)", "float[2, 3] x, float16[2, 3] z"), "mixes dtypes",
    ),
    "a constant without a value": (graph_of("Constant()"), "has 0 values; it has to have one of"),
    "sizes of exabytes": (resize([1, 1, 3, 1 << 62]), "more than 1 TiB"),
    "no name": (without_name(), r"input 1 \('inputs'\) has to have a name"),
    "a shape of fewer axes": (declared(), "declared to have the shape 5x3x5"),
    "fewer parts": (split(2), "'num_outputs' is 2, and the node has 3 outputs"),
    "more parts": (split((1 << 31) - 1), "'num_outputs' is 2147483647"),
    "batches before the first": (
        graph_of("GatherND<batch_dims=-64>(x, z)", "float[2, 3] x, int64[2, 1] z"),
        "'batch_dims' is -64; .* from 0 to 1 is allowed",
    ),
    "an axis too many": (graph_of("Softmax<axis=2>(x)"), "'axis' is 2; .* from -2 to 1"),
    "a flag of 7": (graph_of("ReduceMean<keepdims=7>(x)"), "'keepdims' is 7; .* 0 or 1"),
    "no stride": (
        graph_of("MaxPool<kernel_shape=[1, 1], strides=[0, 1]>(x)", "float[1, 1, 4, 4] x"),
        "'strides' is 0; it has to be at least 1",
    ),
    "a word": (
        graph_of('MaxPool<kernel_shape=[1, 1], auto_pad="wrap">(x)', "float[1, 1, 4, 4] x"),
        "'auto_pad' is 'wrap'; it has to be one of NOTSET, SAME_UPPER",
    ),
    "dtype of none": (graph_of("Cast<to=0>(x)"), "'to' is 0, which is no element type"),
    "no dtype": (graph_of("Cast<to=99>(x)"), "'to' is 99, which is no element type"),
    "a list for a number": (graph_of("Softmax<axis=[1]>(x)"), "Mismatched attribute type .*axis"),
    "one output twice": (
        model_of("g (float[4] x) => (float y) { y, y = Split(x) }", opset=13),
        "'y' has been used as output names multiple times",
    ),
    "a weight of fewer axes": (
        graph_of("Conv(x, w)", "float[1, 2, 4, 4] x, float[3, 2, 1] w"),
        "shape 1x2x4x4 and its weight 3x2x1; both have to have the same number of axes",
    ),
    "an image of one axis": (
        graph_of("Conv(x, w)", "float[3] x, float[3] w"),
        "have to have the same number of axes, 3 or more",
    ),
    "a weight of bytes for other channels": (
        graph_of("ConvInteger(x, w, z)", "uint8[1, 5, 3, 3] x, uint8[1, 1, 2, 2] w, uint8 z"),
        "weight 1x1x2x2 with 1 groups is for inputs of 1 channels",
    ),
    "a weight for other channels": (
        graph_of("Conv(x, w)", "float[1, 2, 4, 4] x, float[3, 1, 2, 2] w"),
        "weight 3x1x2x2 with 1 groups is for inputs of 1 channels",
    ),
    "groups of no filters": (
        graph_of("Conv<group=2>(x, w)", "float[1, 2, 4, 4] x, float[3, 1, 2, 2] w"),
        "each group of as many filters",
    ),
    "a transposed weight for other channels": (
        graph_of("ConvTranspose(x, w)", "float[1, 2, 4, 4] x, float[3, 2, 2, 2] w"),
        "is for inputs of 3 channels",
    ),
    "a bias of other channels": (
        graph_of("Conv(x, w, b)", "float[1, 2, 4, 4] x, float[3, 2, 2, 2] w, float[2] b"),
        "its bias has the shape 2; one number a channel, 3, is due",
    ),
    "a window of another size": (
        graph_of("Conv<kernel_shape=[2, 1]>(x, w)", "float[1, 2, 4, 4] x, float[3, 2, 2, 2] w"),
        "'kernel_shape' is \\[2, 1\\] and its weight 3x2x2x2; both have to say the same",
    ),
    "a window of two billion elements": (
        graph_of("AveragePool<kernel_shape=[2147483548], pads=[2147483547, 0]>(x)",
            "float[1, 1, 100] x"),
        "'kernel_shape' is 2147483548; windows have at most 67108864 elements along an axis",
    ),
    "items far apart": (
        graph_of(
            'TfIdfVectorizer<max_gram_length=2, min_gram_length=2, mode="TF", ngram_counts=[0, 0], '
            "ngram_indexes=[0], pool_int64s=[2, 3], max_skip_count=4611686018427387904>(x)",
            "int64[6] x",
        ),
        "'max_skip_count' is 4611686018427387904; it has to be from 0 to 65536",
    ),
    "places beyond the pool": (
        graph_of(
            'TfIdfVectorizer<max_gram_length=2, min_gram_length=2, mode="TF", ngram_counts=[0, '
            "9223372036854775807], ngram_indexes=[0], pool_int64s=[2, 3], max_skip_count=0>(x)",
            "int64[6] x",
        ),
        "'ngram_counts' is .*; places in a pool of 2 are due, in their order",
    ),
    "an input of exabytes": (
        graph_of("Erf(x)", "float[1, 32, 4611686018427387904] x"), "input 'x' .* more than 1 TiB",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused(name: str) -> None:
    model, sentence = CASES[name]
    with pytest.raises(ModelError, match=sentence):
        tilesmith.compile(model)


_ALL = """
from tests.compiler.test_hostile import CASES
import tilesmith
from tilesmith.search_space.support.errors import ModelError
assert False, "assertions are off"
for name, (model, _) in CASES.items():
    try:
        tilesmith.compile(model)
    except ModelError:
        continue
    raise SystemExit(name)
"""


def test_optimised_python_refuses_the_same() -> None:
    command = [sys.executable, "-O", "-c", _ALL]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["axis of 33 bits", "values too short", "mixed sum"])
def test_commands_end_with_two_and_write_nothing(name: str, tmp_path: Path) -> None:
    model, artifact = tmp_path / "hostile.onnx", tmp_path / "m.tsm"
    onnx.save(CASES[name][0], model)
    refuse("compile", model, "-o", artifact)
    refuse("run", model)
    assert not artifact.exists()


def test_large_values_are_not_computed_while_a_model_is_read() -> None:
    """A window of two thousand million weights, of one constant."""
    model = model_of(
        "g (float[2] x) => (float[2] y) { h = HannWindow(n) s = Slice(h, a, b) y = Add(x, s) }",
        n=np.array((1 << 31) - 1, np.int32), a=np.array([0]), b=np.array([2]),
    )  # fmt: skip
    assert tilesmith.compile(model).report.host >= 1


def test_tensors_tied_to_two_places_are_an_error() -> None:
    """Not an assertion: what guards memory holds in optimised Python, too."""
    names = {n: TensorInfo(n, "float32", (4,)) for n in ("x", "y", "z")}
    nodes = (view("x", "y"), view("x", "z"), view("y", "z", offset=1))
    graph = Graph("g", (names["x"],), (names["z"],), nodes, {}, names, (("", 17),))
    with pytest.raises(VerificationError, match="'z' lies elsewhere than 4 bytes after 'y'"):
        place(graph, dict.fromkeys(names, 16))


OPERANDS = {
    "y = SoftmaxCrossEntropyLoss(x, i)": ("3, 5", "2", "labels have every axis of the scores"),
    "y = SoftmaxCrossEntropyLoss(x, i, x)": ("3, 5", "3", "weights have the shape 3x5; 5 numbers"),
    "y = NegativeLogLikelihoodLoss(x, i)": ("3, 5, 6", "3", "labels have every axis of the scores"),
    "y = InstanceNormalization(x, x, x)": ("3", "1", "its input has the shape 3; 3 axes and more"),
    "y = RotaryEmbedding(x, c, c)": ("2, 4, 3, 8", "1", "its caches 4 and 4; 3 or 4 axes are due"),
}


@pytest.mark.parametrize("body", OPERANDS)
def test_operands_that_do_not_belong_together(body: str) -> None:
    shape, labels, said = OPERANDS[body]
    text = f"g (float[{shape}] x, int64[{labels}] i) => (float[A] y) {{ {body} }}"
    with pytest.raises(ModelError, match=said):
        import_model(model_of(text, opset=23, c=np.ones(4, np.float32)))


def test_sizes_of_a_sequence_that_are_no_list() -> None:
    text = "g (float[3, 6] x) => (seq(float[A]) y) { y = SplitToSequence<axis=1>(x, sizes) }"
    with pytest.raises(TilesmithError, match="SplitToSequence"):
        build(import_model(model_of(text, sizes=np.ones((3, 6), np.int64))), host_target()).run(
            {"x": np.ones((3, 6), np.float32)}
        )
