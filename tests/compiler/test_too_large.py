"""Small files that ask for much: each is refused in a sentence, before much is done or taken."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.files.functions import DEEPEST
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import JobError, ModelError

SIDE = 100_000


def with_functions(calls: list[list[str]]) -> onnx.ModelProto:
    """Function `f<i>` calls what `calls[i]` names, one after the other; the model calls `f0`."""
    model = model_of("g (float[2] x) => (float[2] y) { y = Abs(x) }")
    model.graph.node[0].CopyFrom(helper.make_node("f0", ["x"], ["y"], domain="own"))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model.opset_import.append(opsets[1])
    for number, names in enumerate(calls):
        tensors = ["x", *(f"t{i}" for i in range(len(names) - 1)), "y"]
        nodes = [
            helper.make_node(
                name, [tensors[i]], [tensors[i + 1]], domain="own" * name[1:].isdigit()
            )
            for i, name in enumerate(names)
        ]
        model.functions.append(
            helper.make_function("own", f"f{number}", ["x"], ["y"], nodes, opsets)
        )
    return model


def doubling(levels: int) -> onnx.ModelProto:
    return with_functions([*([f"f{i + 1}"] * 2 for i in range(levels)), ["Abs"]])


def test_functions_that_double_are_counted_before_they_are_inlined() -> None:
    with pytest.raises(ModelError, match=f"would become {1 << 31} nodes once its functions"):
        import_model(doubling(31))
    assert len(import_model(doubling(4)).nodes) == 16


def test_functions_without_an_end_and_too_deep_ones() -> None:
    with pytest.raises(ModelError, match="function 'f0' of 'g' calls itself"):
        import_model(with_functions([["f1"], ["f0"]]))
    deep = with_functions([*([f"f{i + 1}"] for i in range(DEEPEST)), ["Abs"]])
    with pytest.raises(ModelError, match=f"more than {DEEPEST} deep"):
        import_model(deep)


def test_more_axes_than_arrays_have() -> None:
    shape = np.ones(65, np.int64)
    text = "g (float[1] x) => (float z) { y = Reshape(x, s) z = ReduceSum<keepdims=0>(y) }"
    with pytest.raises(ModelError, match=r"'y', which Reshape 'y' of .* has 65 axes; at most 64"):
        import_model(model_of(text, s=shape))
    model = model_of("g (float[1] x) => (float[1] y) { y = Abs(x) }")
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, [1] * 65))
    with pytest.raises(ModelError, match="input 'x' of 'g' has 65 axes"):
        import_model(model)


def test_extents_beside_one_of_nothing_are_too_large_as_well() -> None:
    """For numpy has no such array."""
    model = model_of("g (float[1] x) => (float[A, B, C] y) { y = Expand(x, s) }",
                     s=np.array([1 << 31, 0, 1 << 31]))  # fmt: skip
    with pytest.raises(ModelError, match="the sizes in the model are wrong"):
        import_model(model)


def _texts() -> Iterator[tuple[str, onnx.ModelProto]]:
    model = model_of("graph (float[batch] input) => (float[batch] output) { output = Abs(input) }")
    model.producer_name, model.graph.node[0].name = "producer", "node"
    helper.set_model_props(model, {"key": "value"})
    for text in ("graph", "batch", "input", "output", "Abs", "producer", "node", "key", "value"):
        yield text, model


@pytest.mark.parametrize(("text", "model"), list(_texts()))
def test_a_text_that_is_not_utf_8(text: str, model: onnx.ModelProto, tmp_path: Any) -> None:
    content, broken = model.SerializeToString(), b"\xff" * len(text)
    path = tmp_path / "m.onnx"
    path.write_bytes(content.replace(text.encode(), broken))
    with pytest.raises(ModelError, match="is not UTF-8; the file may be damaged"):
        import_model(path)


LARGE = {
    "an identity": ("float[2] x", "e = ConstantOfShape(s) y = EyeLike(e)", [SIDE, SIDE]),
    "a grid": ("float[1, 2, 3] x", "y = AffineGrid(x, s)", [1, 3, SIDE, SIDE]),
    "lines between": ("float[1, 1, 4, 4] x", 'y = Resize<mode="linear">(x, , , s)',
        [1, 1, SIDE, SIDE]),
    "curves between": ("float[1, 1, 4, 4] x", 'y = Resize<mode="cubic">(x, , , s)',
        [1, 1, SIDE, SIDE]),
    "copies": ("float[1] x", "y = Expand(x, s)", [SIDE, SIDE]),
    "tiles": ("float[1, 1] x", "y = Tile(x, s)", [SIDE, SIDE]),
    "one number": ("float[1] x", "a = ConstantOfShape(s) y = Add(a, x)", [SIDE, SIDE]),
    "edges": ("float[4, 4] x", "y = Pad(x, s)", [0, 0, SIDE, SIDE]),
    "a product": ("float[100000, 1] x", "t = Transpose(x) y = MatMul(x, t)", []),
    "a sum": ("float[100000, 1] x", "t = Transpose(x) y = Add(x, t)", []),
    "rows": ("float[100000] x", "a = Unsqueeze(x, s) y = Mul(a, x)", [1]),
    "steps apart": ("float[1, 1, 4, 4] x",
        "y = ConvTranspose<strides=[40000, 40000]>(x, x)", []),
    "pools undone": ("float[1, 1, 2, 2] x",
        "i = Cast<to=7>(x) y = MaxUnpool<kernel_shape=[90000, 90000]>(x, i)", []),
    "joined": ("float[40000, 40000] x", "y = Concat<axis=0>(x, x, x, x, x, x)", []),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_nothing_is_taken_for_what_has_no_room(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of eight gigabytes, whatever this one has."""
    for module in ("codegen.host.memory", "compiler.runtime.executable"):
        monkeypatch.setattr(f"tilesmith.{module}.machine_bytes", lambda: 1 << 33)
    inputs, body, shape = LARGE[name]
    weights = {"s": np.array(shape)} if shape else {}
    model = model_of(f"g ({inputs}) => (float[A] y) {{ {body} }}", 20, **weights)
    build(import_model(model_of("g (float[1] x) => (float[A] y) { y = Abs(x) }")), host_target())
    tracemalloc.start()
    try:
        with pytest.raises((ModelError, JobError), match="more than this machine gives"):
            build(import_model(model), host_target())
        assert tracemalloc.get_traced_memory()[1] < 1 << 28
    finally:
        tracemalloc.stop()


def test_a_loop_does_not_begin_to_stack_what_has_no_room() -> None:
    """Its condition is handed on; where the body computes it, nobody knows how long it goes on."""
    text = """g (int64 n, float x) => (float last, float[A] rows) {{
        last, rows = Loop(n, yes, x)
        <body = b (int64 i, bool c, float s) => (bool d, float t, float r)
        {{ d = {0} t = Add(s, s) r = Identity(s) }}>
    }}"""
    given = {"n": np.array(2**62), "x": np.array(1, np.float32)}
    counted = build(
        import_model(model_of(text.format("Identity(c)"), yes=np.array(True))), host_target()
    )
    with pytest.raises(
        JobError, match=r"Loop 'last' stacks 4611686018427387904 rows, 1.718e\+10 GiB"
    ):
        counted.run(given)
    found = counted.run({**given, "n": np.array(3)})["rows"]
    np.testing.assert_array_equal(found, [1, 2, 4])
    ended = model_of(text.format("Less(s, four)"), yes=np.array(True), four=np.float32(4))
    found = build(import_model(ended), host_target()).run(given)["rows"]
    np.testing.assert_array_equal(found, [1, 2, 4])
