"""Importing: shapes, symbolic dimensions, weights in other files, and every refusal's sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tests.compiler.model_builder import assert_close, check, expected, inputs_of, model_of, random
from tilesmith.compiler.driver.verifier import verify
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import ModelError


def test_light_resnet50_is_imported_whole(light_resnet50: Path) -> None:
    graph = import_model(light_resnet50)
    verify(graph)
    assert [(i.name, i.shape) for i in graph.inputs] == [("gpu_0/data_0", (1, 3, 224, 224))]
    assert [i.shape for i in graph.outputs] == [(1, 1000)]
    assert all(info.known for info in graph.tensors.values())
    assert sum(node.operator == "Conv" for node in graph.nodes) == 53


def test_symbolic_dimensions_take_the_values_given() -> None:
    model = model_of(
        "g (float[N, 3] x, float[N, 3] z) => (float[N, 3] y) { t = Relu(x) y = Add(t, z) }"
    )
    graph = import_model(model, {"x": (5, 3)})
    assert [info.shape for info in graph.inputs] == [(5, 3), (5, 3)]
    assert graph.info("t").shape == (5, 3)


def test_shapes_computed_at_run_time_become_known() -> None:
    text = """g (float[N, 6] x) => (float[A, B] y) {
        s = Shape(x) n = Gather(s, zero) m = Unsqueeze(n, zeros) t = Concat<axis=0>(m, rest)
        r = Reshape(x, t) y = Transpose<perm=[0, 2, 1]>(r) }"""
    model = model_of(
        text.replace("[A, B]", "[A, B, C]"),
        zero=np.int64(0), zeros=np.array([0]), rest=np.array([2, 3]),
    )  # fmt: skip
    graph = import_model(model, {"x": (4, 6)})
    assert [node.operator for node in graph.nodes] == ["Reshape", "Transpose"]
    assert graph.info("y").shape == (4, 3, 2)
    check(model, shapes={"x": (4, 6)})


def test_initialisers_that_are_also_inputs_are_weights() -> None:
    model = model_of("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", w=random(2))
    graph = import_model(model)
    assert [info.name for info in graph.inputs] == ["x"]
    assert "w" in graph.constants


def test_unknown_shapes_stay_unknown_and_run_on_the_host() -> None:
    model = model_of("g (float[6] x) => (int64[A, B] y) { y = NonZero(x) }")
    graph = import_model(model)
    assert graph.info("y").shape is None
    check(model)


def test_subgraphs_see_the_tensors_around_them() -> None:
    then = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["a"])], "then", [],
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["b"])], "else", [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    model = model_of("g (float[2] x, bool[1] c) => (float[2] y) { y = Identity(x) }", w=random(2))
    del model.graph.node[:]
    model.graph.node.append(
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    )
    graph = import_model(model)
    assert set(graph.nodes[0].captures) == {"x", "w"}
    x = {"x": random(2), "c": np.array([True])}
    assert_close(run_reference(graph, x), expected(model, x))


def test_local_functions_are_inlined() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[3] x) => (float[3] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["" : 17]> twice (a) => (b) { b = Add(a, a) }""")
    graph = import_model(model)
    assert [node.operator for node in graph.nodes] == ["Add"]


def test_weights_in_other_files_are_read(tmp_path: Path) -> None:
    weight = random(40, 40)
    model = model_of("g (float[2, 40] x) => (float[2, 40] y) { y = MatMul(x, w) }", w=weight)
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    graph = import_model(tmp_path / "m.onnx")
    np.testing.assert_array_equal(graph.constants["w"], weight)


def test_arrays_of_nodes_and_subgraphs_in_other_files_are_read(tmp_path: Path) -> None:
    """From the model's folder, wherever the reader is."""
    weight = random(3)
    (tmp_path / "w.bin").write_bytes(weight.tobytes())
    branch = parser.parse_graph("b () => (float[3] z) { z = Add(x, w) }")
    branch.initializer.append(_stored_in(numpy_helper.from_array(weight, "w"), "w.bin"))
    model = model_of(
        "g (float[3] x, bool[1] c) => (float[3] y, float[3] v) { y = If(c) v = Add(x, y) }"
    )
    for name in ("then_branch", "else_branch"):
        model.graph.node[0].attribute.append(helper.make_attribute(name, branch))
    constant = _stored_in(numpy_helper.from_array(weight, "k"), "w.bin")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["k"], value=constant))
    model.graph.node[2].input[1] = "k"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    x = random(3, seed=1)
    found = run_reference(import_model(tmp_path / "m.onnx"), {"x": x, "c": np.array([True])})
    np.testing.assert_array_equal(found["y"], x + weight)
    np.testing.assert_array_equal(found["v"], x + weight)


def test_a_sparse_weight_whose_indices_are_wrong_is_named() -> None:
    model = model_of("g (float[3] x) => (float[3] y) { y = Add(x, w) }")
    for indices in (np.array([1, 7]), np.array([[0, 0], [1, 1]])):
        del model.graph.sparse_initializer[:]
        model.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                numpy_helper.from_array(random(2), "w"), numpy_helper.from_array(indices), [3]
            )
        )
        with pytest.raises(ModelError, match=r"'w'|not a valid ONNX model"):
            import_model(model)


def _stored_in(tensor: onnx.TensorProto, location: str) -> onnx.TensorProto:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def _external(tmp_path: Path, location: str) -> Path:
    model = model_of("g (float[2, 4] x) => (float[2, 4] y) { y = MatMul(x, w) }")
    tensor = numpy_helper.from_array(random(4, 4), "w")
    model.graph.initializer.append(_stored_in(tensor, location))
    path = tmp_path / "inner" / "m.onnx"
    path.parent.mkdir()
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "", "w\0.bin"])
def test_weights_outside_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(random(4, 4).tobytes())
    with pytest.raises(ModelError, match="outside the model's folder"):
        import_model(_external(tmp_path, location))


def test_a_missing_weight_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"weight 'w' of 'm.onnx' cannot be read"):
        import_model(_external(tmp_path, "gone.bin"))


def test_missing_truncated_and_foreign_files(tmp_path: Path, light_resnet50: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        import_model(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="cannot be read"):
        import_model(tmp_path)
    whole = light_resnet50.read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path = tmp_path / f"{length}.onnx"
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"truncated|not a valid ONNX model"):
            import_model(path)
    path = tmp_path / "empty.onnx"
    onnx.save(model_of("g (float[2] x) => (float[2] x) { }"), path)
    with pytest.raises(ModelError, match="has no operators"):
        import_model(path)
    path = tmp_path / "text.onnx"
    path.write_text("this is no model at all\n" * 100)
    with pytest.raises(ModelError, match="not an ONNX model"):
        import_model(path)


@pytest.mark.parametrize(
    ("declared", "shapes", "message"),
    [
        ("float[N, 3]", {}, r"symbolic dimension .N.*shapes=\{.x.: \(1, 3\)\}"),
        ("float[N, 3]", {"x": (2, 4)}, "is Nx3; 2x4 does not fit"),
        ("float[N, 3]", {"x": (2, 3, 1)}, "does not fit"),
        (
            "float[N, 3]",
            {"y": (2, 3)},
            r"dimension 'y'; its inputs are x, its symbolic dimensions N",
        ),
        ("float[N, 3]", {"n": (2,)}, r"did you mean 'N'\?"),
        ("float[2, 3]", {"y": (2, 3)}, r"no input 'y'; its inputs are x"),
        ("float[N, 3]", {"x": (-1, 3)}, "no dimension may be negative"),
        ("float[N, N]", {"x": (2, 3)}, "given both as 2 and 3"),
        ("float", {}, "has no shape; give it one"),
    ],
)
def test_inputs_that_cannot_be_are_refused(
    declared: str, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    model = model_of(f"g ({declared} x) => ({declared} y) {{ y = Identity(x) }}")
    if declared == "float":
        model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match=message):
        import_model(model, shapes)


def test_operators_of_other_domains_are_named() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = com.vendor.Magic(x) }")
    model.opset_import.append(helper.make_opsetid("com.vendor", 1))
    with pytest.raises(ModelError, match=r"com.vendor.Magic, which is not part of ONNX"):
        import_model(model)


def test_a_tensor_that_nothing_writes_is_refused() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Add(x, ghost) }")
    with pytest.raises(ModelError, match="ghost"):
        import_model(model)


def test_models_of_before_broadcasting_are_brought_forward() -> None:
    node = helper.make_node("Add", ["x", "b"], ["y"], broadcast=1)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4]),
         helper.make_tensor_value_info("b", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 4])],
        [numpy_helper.from_array(random(4), "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)
    imported = import_model(model)
    assert imported.opset >= 7
    x = random(2, 3, 4)
    found = run_reference(imported, {"x": x})["y"]
    np.testing.assert_allclose(found, x + random(4), rtol=1e-6)


def test_models_too_old_to_be_converted_are_refused() -> None:
    model = model_of("g (float[2, 3, 4] x, float[3] b) => (float[2, 3, 4] y) { y = Add(x, b) }", 6)
    model.graph.node[0].attribute.extend(
        [helper.make_attribute("broadcast", 1), helper.make_attribute("axis", 1)]
    )
    with pytest.raises(ModelError, match="'g' is of opset 6 and cannot be brought to opset 10"):
        import_model(model)


def test_random_inputs_follow_the_declared_types() -> None:
    graph = import_model(model_of("g (int64[3] i) => (int64[3] y) { y = Identity(i) }"))
    assert inputs_of(graph)["i"].dtype == np.int64


def test_element_types_without_a_name_are_refused() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Identity(x) }")
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT6E2M3
    with pytest.raises(ModelError, match="'x' of 'g' has the unsupported dtype float6e2m3"):
        import_model(model)


def test_names_and_texts_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    model = model_of(
        'g (float[4] x) => (float[4] y) { y = Pad<mode="reflect">(x, pads) }', pads=np.array([0, 0])
    )
    whole = model.SerializeToString()
    for good, sentence in ((b"Pad", "not UTF-8"), (b"reflect", "'mode'")):
        path = tmp_path / "m.onnx"
        path.write_bytes(whole.replace(good, b"\xff" * len(good)))
        with pytest.raises(ModelError, match=sentence):
            import_model(path)


def test_weights_of_no_dtype_or_of_negative_extents_are_refused() -> None:
    model = model_of("g (float[2, 4] x) => (float[2, 4] y) { y = MatMul(x, w) }", w=random(4, 4))
    (weight,) = model.graph.initializer
    weight.dims[1] = -4
    with pytest.raises(ModelError, match="'w' of 'g'"):
        import_model(model)
    weight.dims[1], weight.data_type = 4, 77
    with pytest.raises(ModelError, match="dtype number 77"):
        import_model(model)


def test_operators_whose_inputs_do_not_go_together_are_refused() -> None:
    model = model_of("g (float[2, 5] x) => (float[2, 4] y) { y = MatMul(x, w) }", w=random(4, 4))
    with pytest.raises(ModelError, match=r"MatMul 'y' cannot be computed of inputs .* 2x5, 4x4"):
        import_model(model)


def test_texts_inside_a_model_are_left_to_the_host() -> None:
    """Of a cast to texts and back."""
    text = "g (float[3] x) => (float[3] y) { t = Cast<to=8>(x) y = Cast<to=1>(t) }"
    graph = import_model(model_of(text))
    assert graph.info("t").dtype == "string"


def test_groups_that_do_not_cut_channels_are_refused() -> None:
    text = "g (float[2, 6, 5] x) => (float[A, B, C] y) {{ y = GroupNormalization<{}>(x, s, b) }}"
    for given, size, opset, sentence in (
        ("num_groups=4", 6, 21, "num_groups=4, and its input is 2x6x5"),
        ("num_groups=0", 6, 18, "'num_groups' is 0; it has to be at least 1"),
        ("num_groups=3", 5, 18, "takes 's' of shape 5; one number for each of 3 groups"),
        ("epsilon=0.1", 6, 18, "Required attribute 'num_groups' is missing"),
    ):
        model = model_of(text.format(given), opset, s=random(size), b=random(size))
        with pytest.raises(ModelError, match=sentence):
            import_model(model)


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("y = GroupNormalization<num_groups=2>(x, s, s)", 18),
        ("y = GroupNormalization<num_groups=2>(x, w, w)", 21),
        ("y = MeanVarianceNormalization(x)", 13),
        ("y = GreaterOrEqual(x, x)", 12),
        ("y = LessOrEqual(x, x)", 13),
    ],
)
def test_shapes_are_inferred_where_onnx_infers_none(body: str, opset: int) -> None:
    weights = {"s": random(2), "w": random(4)}
    used = {name: value for name, value in weights.items() if f", {name}" in body}
    kind = "bool" if "Equal" in body else "float"
    text = f"g (float[2, 4, 3, 5] x) => ({kind}[A, B, C, D] y) {{ {body} }}"
    (output,) = import_model(model_of(text, opset, **used)).outputs
    assert (output.dtype, output.shape) == ("bool" if kind == "bool" else "float32", (2, 4, 3, 5))


def test_shapes_made_of_ones_are_known() -> None:
    """As older exporters of torch write `expand`: -1 keeps an extent."""
    graph = import_model(
        model_of(
            "g (float[2, 1, 3] x) => (float[A, B, C] y) {"
            "n = Shape(shape) o = ConstantOfShape<value = int64[1] {1}>(n) m = Mul(o, minus)"
            "e = Equal(shape, m) w = Where(e, o, shape) y = Expand(x, w) }",
            shape=np.array([-1, 4, 3]), minus=np.int64(-1),
        )
    )  # fmt: skip
    assert graph.info("y").shape == (2, 4, 3)
