"""Operators that read and write by index: as kernels, of any element type, every index checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.driver.pipeline import simplify, to_kernels
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import JobError, ModelError

Arrays = Mapping[str, NDArray[Any]]
RNG = np.random.default_rng(0)


def native(model: onnx.ModelProto, inputs: Arrays) -> Executable:
    """Nothing runs on the host; lowered graph and native code compute what onnxruntime does."""
    graph = import_model(model)
    lowered = to_kernels(simplify(graph))
    assert all(node.kind != "host" for node in lowered.nodes), [n.describe() for n in lowered.nodes]
    wanted = expected(model, inputs)
    assert_close(run_reference(lowered, inputs), wanted)
    executable = build(graph, host_target())
    assert executable.report.host == 0
    with executable.workspace() as work:  # what is read has to be written before
        work.memory.arena[:] = 0xA5
    assert_close(executable.run(inputs), wanted)
    return executable


def indices(extent: int, *shape: int, dtype: str = "int64") -> NDArray[Any]:
    return RNG.integers(-extent, extent, shape).astype(dtype)


def distinct(extent: int, *shape: int, axis: int) -> NDArray[Any]:
    """Indices of which no two along `axis` name the same entry, some counted from the end."""
    order = np.argsort(RNG.random((*shape[:axis], extent, *shape[axis + 1 :])), axis=axis)
    found = np.take(order, np.arange(shape[axis]), axis=axis)
    return np.where(RNG.random(found.shape) < 0.5, found, found - extent)


GATHERS = {
    "elements along the last axis": ("GatherElements<axis=-1>", (5, 7), indices(7, 5, 19)),
    "elements in the middle": ("GatherElements<axis=1>", (3, 5, 2, 9), indices(5, 3, 4, 2, 9)),
    "elements of a part": ("GatherElements<axis=0>", (5, 4, 19), indices(5, 3, 2, 17)),
    "elements by int32": ("GatherElements<axis=1>", (3, 5), indices(5, 3, 2, dtype="int32")),
    "places": ("GatherND", (4, 4, 19), indices(4, 2, 3, 2)),
    "whole places": ("GatherND", (4, 4), indices(4, 17, 2)),
    "places in batches": ("GatherND<batch_dims=1>", (3, 5, 7), indices(5, 3, 2, 1)),
    "rows": ("Gather<axis=1>", (3, 5, 7), indices(5, 2, 2)),
    "a number": ("Gather<axis=0>", (5, 3), indices(5)),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gathers_are_native(name: str) -> None:
    operator, shape, places = GATHERS[name]
    kind = "int32" if places.dtype == np.int32 else "int64"
    dims = ", ".join(map(str, shape))
    of = ", ".join(map(str, places.shape))
    index = f"{kind}[{of}]" if of else kind
    text = f"g (float[{dims}] x, {index} i) => (float y) {{ y = {operator}(x, i) }}"
    model = model_of(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    native(onnx.shape_inference.infer_shapes(model), {"x": random(*shape), "i": places})


SCATTERS = {
    "elements along the last axis": (
        "ScatterElements<axis=-1>", (5, 7), distinct(7, 5, 4, axis=1), (5, 4)),
    "elements in the middle": (
        "ScatterElements<axis=1>", (3, 5, 19), distinct(5, 3, 2, 19, axis=1), (3, 2, 19)),
    "elements of a part": ("ScatterElements<axis=0>", (5, 4), distinct(5, 3, 2, axis=0), (3, 2)),
    "slices": ("ScatterND", (5, 7, 19), np.array([[[0, -1]], [[4, 2]]]), (2, 1, 19)),
    "elements": ("ScatterND", (5, 7), np.array([[0, -1], [4, 2], [-2, 6]]), (3,)),
}  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_are_native(name: str, reduction: str) -> None:
    operator, shape, places, given = SCATTERS[name]
    head, _, attributes = operator.partition("<")
    inside = ", ".join(filter(None, (attributes.rstrip(">"), f'reduction="{reduction}"')))
    dims, of, by = (", ".join(map(str, part)) for part in (shape, places.shape, given))
    text = (
        f"g (float[{dims}] x, int64[{of}] i, float[{by}] u) => (float[{dims}] y) "
        f"{{ y = {head}<{inside}>(x, i, u) }}"
    )
    inputs = {"x": random(*shape), "i": places, "u": random(*given, seed=3)}
    native(model_of(text, 18), inputs)


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_updates_of_one_element_are_combined(reduction: str) -> None:
    text = f"""g (float[4, 3] x, int64[6, 3] i, float[6, 3] u, int64[6, 1] r) => (
        float[4, 3] y, float[4, 3] z) {{
            y = ScatterElements<axis=0, reduction="{reduction}">(x, i, u)
            z = ScatterND<reduction="{reduction}">(x, r, u) }}"""
    inputs = {"x": random(4, 3), "i": indices(4, 6, 3), "u": random(6, 3), "r": indices(4, 6, 1)}
    native(model_of(text, 18), inputs)


def test_of_updates_of_one_element_the_last_stays() -> None:
    text = """g (int64[3] x, int64[5] i, int64[5] u, int64[5, 1] r) => (int64[3] y, int64[3] z) {
        y = ScatterElements<axis=0>(x, i, u) z = ScatterND(x, r, u) }"""
    places = np.array([0, 1, -3, 1, 0])
    inputs = {"x": np.full(3, 9), "i": places, "u": np.arange(5), "r": places[:, None]}
    found = build(import_model(model_of(text, 18)), host_target()).run(inputs)
    for result in found.values():
        np.testing.assert_array_equal(result, [4, 3, 9])


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("bool", np.bool_), ("int8", np.int8), ("uint8", np.uint8), ("int16", np.int16),
        ("int32", np.int32), ("int64", np.int64), ("float16", np.float16), ("double", np.float64),
    ],
)  # fmt: skip
def test_elements_of_any_type(kind: str, dtype: Any) -> None:
    text = f"""g ({kind}[5, 19] x, int64[3] i, int64[3, 19] e, int64[4, 1] r, {kind}[4, 19] u) => (
        {kind}[3, 19] a, {kind}[3, 19] b, {kind}[4, 19] c, {kind}[5, 19] y) {{
            a = Gather(x, i) b = GatherElements(x, e)
            c = GatherND(x, r) y = ScatterND(x, r, u) }}"""
    x, u = ((random(*s, seed=7) * 50).astype(dtype) for s in ((5, 19), (4, 19)))
    places = np.array([[0], [3], [-1], [1]])
    native(
        model_of(text, 18),
        {"x": x, "u": u, "i": indices(5, 3), "e": indices(5, 3, 19), "r": places},
    )


BAD = {
    "GatherElements": ("y = GatherElements<axis=1>(x, i)", (5, 1), 4, 4),
    "GatherND": ("y = GatherND(x, i)", (1, 2), 4, 4),
    "ScatterElements": ("y = ScatterElements<axis=1>(x, i, u)", (5, 1), -5, 4),
    "ScatterND": ("y = ScatterND(x, i, v)", (1, 2), -5, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_an_index_out_of_range_is_a_sentence(name: str) -> None:
    body, shape, index, extent = BAD[name]
    weights = {"u": random(5, 1), "v": random(1)}
    dims = ", ".join(map(str, shape))
    body = body.replace("y =", "t = Relu(x) y =").replace("(x, i", "(t, i")
    text = f"g (float[5, 4] x, int64[{dims}] i) => (float y) {{ {body} }}"
    model = model_of(text, 18, **weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model = onnx.shape_inference.infer_shapes(model)
    executable = build(import_model(model), host_target())
    good = np.zeros(shape, np.int64)
    executable.run({"x": random(5, 4), "i": good})
    bad = good.copy()
    bad.reshape(-1)[-1] = index
    sentence = f"'y' takes index {index} of an axis with {extent} entries"
    with pytest.raises(JobError, match=sentence):
        executable.run({"x": random(5, 4), "i": bad})
    constant = text.replace(f", int64[{dims}] i", "").replace("(t, i", "(t, k")
    fixed = model_of(constant, 18, k=bad, **weights)
    fixed.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match=f"takes index {index} of an axis with {extent} entries"):
        build(import_model(onnx.shape_inference.infer_shapes(fixed)), host_target())


MOVES = {
    "Concat": "y = Concat<axis=1>(x, x)",
    "Split": "y, z = Split<axis=1>(x, parts)",
    "Slice": "y = Slice(x, one, five, one)",
    "Transpose": "y = Transpose(x)",
    "Expand": "y = Expand(x, larger)",
    "Tile": "y = Tile(x, twice)",
}


@pytest.mark.parametrize(
    ("kind", "dtype"), [("bool", np.bool_), ("int64", np.int64), ("float16", np.float16)]
)
@pytest.mark.parametrize("name", MOVES)
def test_what_moves_elements_moves_any(name: str, kind: str, dtype: Any) -> None:
    model = model_of(
        f"g ({kind}[5, 6] x) => ({kind} y) {{ {MOVES[name]} }}", parts=np.array([2, 4]),
        one=np.array([1]), five=np.array([5]), larger=np.array([4, 5, 6]), twice=np.array([2, 3]),
    )  # fmt: skip
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x = (random(5, 6) * 50).astype(dtype)
    native(onnx.shape_inference.infer_shapes(model), {"x": x})


def test_whole_numbers_around_others() -> None:
    text = "g (int64[3, 5] x) => (int64[4, 8] y) { y = Pad(x, pads, value) }"
    pads = np.array([1, 0, 0, 3])
    for value in (7, -3):
        model = model_of(text, pads=pads, value=np.int64(value))
        native(model, {"x": np.arange(15).reshape(3, 5)})
    graph = import_model(model_of(text, pads=pads, value=np.int64(2**53 + 1)))
    assert build(graph, host_target()).report.host == 1


@pytest.mark.parametrize(
    "body",
    [
        "y = Pad(x, pads, one)",
        "y = Trilu(x, k)",
        'y = ScatterElements<axis=1, reduction="add">(x, j, x)',
    ],
)
def test_what_computes_with_halves_is_a_kernel(body: str) -> None:
    model = model_of(
        f"g (float16[4, 4] x, int64 k) => (float16 y) {{ {body} }}", 18,
        pads=np.array([1, 0, 0, 1]), one=np.float16(1), j=np.tile(np.arange(4), (4, 1)),
    )  # fmt: skip
    model.graph.output[0].type.tensor_type.ClearField("shape")
    executable = build(import_model(onnx.shape_inference.infer_shapes(model)), host_target())
    assert executable.report.host == 0
    x = random(4, 4).astype(np.float16)
    found = executable.run({"x": x, "k": np.array(1)})["y"]
    wanted = {"Pad": np.pad(x, ((1, 0), (0, 1)), constant_values=1), "Tri": np.triu(x, 1)}
    np.testing.assert_array_equal(found, wanted.get(body[4:7], x + x))
