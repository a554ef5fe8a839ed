"""Models compiled for ranges of their sizes, against onnxruntime at many sizes, primes too."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.model_builder import assert_close, expected, model_of
from tests.compiler.varying_models import CASES, Case, compiled
from tilesmith.compiler.varying.executable import VaryingExecutable
from tilesmith.search_space.expressions.sizes import Axes
from tilesmith.search_space.support.errors import JobError, ModelError


@cache
def ready(name: str) -> tuple[Case, VaryingExecutable]:
    case = CASES[name]()
    return case, compiled(case.model, case.shapes)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_models_are_right_at_every_size_of_their_ranges(name: str, data: st.DataObject) -> None:
    case, model = ready(name)
    sizes = {
        size.name: data.draw(st.integers(size.low, size.high), size.name)
        for size in model.recipe.sizes
    }
    inputs = case.inputs(sizes)
    assert_close(model.run(inputs), expected(case.model, inputs))


@pytest.mark.parametrize("name", CASES)
def test_models_are_right_at_the_ends_of_their_ranges(name: str) -> None:
    case, model = ready(name)
    for pick in ("low", "high"):
        inputs = case.inputs({size.name: getattr(size, pick) for size in model.recipe.sizes})
        for _ in range(2):  # the second time nothing is bound any more
            assert_close(model.run(inputs), expected(case.model, inputs))


def test_a_region_is_cut_where_the_model_becomes_another() -> None:
    _, model = ready("clipped")
    ranges = [(v.region[0].low, v.region[0].high) for v in model.recipe.variants]
    assert ranges[0] == (1, 1)
    assert ranges[-1][1] == 25
    assert any(high in (7, 8) for _, high in ranges), "a slice that ends at 8 does so from 8 on"
    ends = [end for low, high in ranges for end in (low - 1, high)]
    assert ends[1:-1:2] == ends[2::2], "regions follow each other"


def test_what_follows_from_the_sizes_is_computed_once_for_each_of_them() -> None:
    _, model = ready("attention")
    last = model.recipe.variants[-1]
    operators = {part.operator for part in last.prologue}
    assert operators >= {"Range", "Gather"}
    assert len(last.held) >= 2, "positions and mask are held"


def test_kernels_are_native_at_every_size() -> None:
    _, model = ready("cache")
    for variant in model.recipe.variants:
        assert not any("matmul" in name for name in variant.report.host_nodes)


def test_inputs_outside_their_ranges_are_refused_by_name_axis_and_range() -> None:
    case, model = ready("cache")
    good = case.inputs({"b": 2, "p": 3, "n": 4})
    for change, words in (
        ({"before": np.zeros((2, 31, 6), np.float32)}, ("axis 1 (p)", "'before'", "31", "2 to 30")),
        ({"new": np.zeros((4, 4, 6), np.float32)}, ("axis 0 (b)", "'new'", "4", "2 to 3")),
        ({"new": np.zeros((3, 4, 6), np.float32)}, ("'new'", "'before'", "both are 'b'")),
        ({"weights": np.zeros((2, 8), np.float32)}, ("axis 1", "'weights'", "8", "7")),
        ({"new": np.zeros((2, 4, 5), np.float32)}, ("axis 2", "'new'", "5", "6")),
        ({"new": np.zeros((2, 4), np.float32)}, ("'new'", "2 axes", "3")),
        ({"new": np.zeros((2, 4, 6), np.float64)}, ("'new'", "float64", "float32")),
    ):
        with pytest.raises(ModelError) as caught:
            model.run({**good, **change})
        for word in words:
            assert word in str(caught.value)
    with pytest.raises(ModelError, match="input 'new' of 'cache' is missing"):
        model.run({"before": good["before"], "weights": good["weights"]})
    assert_close(model.run(good), expected(case.model, good))


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (
            {"q": (1, 4)},
            ("'q'", "no input and no symbolic dimension", "are x, its", "dimensions n"),
        ),
        ({"x": ((1, 4),)}, ("'x'", "2 axes", "1 are given")),
        ({"x": ((1, 4), (5, 6))}, ("axis 1", "'x'", "is 5", "5..6")),
        ({"n": (4, 1)}, ("'n'", "4..1", "at least 1")),
        ({"n": (0, 4)}, ("'n'", "0..4", "at least 1")),
        ({"n": Axes((3, 4))}, ("'n' is one symbolic dimension", "3x4 are 2 extents")),
        ({"n": (1, 4), "x": ((1, 5), 5)}, ("'n'", "1..4", "1..5")),
    ],
)
def test_ranges_that_do_not_fit_the_model_are_refused(
    shapes: dict[str, tuple[int, int]], words: tuple[str, ...]
) -> None:
    model = model_of("g (float[n, 5] x) => (float[n, 5] y) { y = Relu(x) }")
    with pytest.raises(ModelError) as caught:
        compiled(model, shapes)
    for word in words:
        assert word in str(caught.value)


def test_axes_without_a_name_get_one() -> None:
    model = model_of("g (float[n, 5] x) => (float[n, 5] y) { y = Relu(x) }")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].Clear()
    found = compiled(model, {"x": ((1, 9), 5)})
    assert [str(size) for size in found.recipe.sizes] == ["x_0=1..9"]
    x = np.arange(-10, 10, dtype=np.float32).reshape(4, 5)
    assert np.array_equal(found.run({"x": x})["y"], np.maximum(x, 0))


def test_at_gives_the_model_at_one_choice_of_sizes() -> None:
    case, model = ready("cache")
    sizes = {"b": 2, "p": 17, "n": 1}
    inputs = case.inputs(sizes)
    one = model.at(sizes)
    assert [info.shape for info in one.inputs] == [(2, 17, 6), (2, 1, 6), (2, 18)]
    bound = one.bind(inputs)
    bound.run()
    assert_close(bound.outputs(), expected(case.model, inputs))
    with pytest.raises(ModelError, match="'p' of 'cache' is 31; it was compiled for 2 to 30"):
        model.at({**sizes, "p": 31})


def test_no_code_is_made_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilesmith.codegen.native import toolchain

    case, model = ready("cache")

    def refuse(*arguments: object) -> None:
        raise AssertionError("code is made")

    monkeypatch.setattr(toolchain, "emit_object", refuse)
    inputs = case.inputs({"b": 3, "p": 29, "n": 5})
    assert_close(model.run(inputs), expected(case.model, inputs))


def test_many_sizes_keep_little_bound() -> None:
    case = Case(model_of("g (float[n] x) => (float[n] y) { y = Relu(x) }"), {"n": (2, 400)})
    model = compiled(case.model, case.shapes)
    for n in range(2, 401, 3):
        inputs = case.inputs({"n": n})
        assert np.array_equal(model.run(inputs)["y"], np.maximum(inputs["x"], 0))
    assert len(model._bound) <= 64


def test_a_dimension_may_be_a_formula_of_others() -> None:
    case, model = ready("cache")
    weights = model.inputs[2]
    assert weights.shape is not None
    assert str(weights.shape[1]) == "n + p"
    assert isinstance(case.model, onnx.ModelProto)


def test_constant_indices_are_looked_at_at_every_size() -> None:
    """What is in range of a long axis need not be in range of a short one."""
    model = model_of(
        "g (float[n, 4] x) => (float[2, 4] y) { a = Relu(x) y = Gather(a, at) }",
        at=np.array([0, 5]),
    )
    found = compiled(model, {"n": (2, 64)})
    for size in (6, 7, 31, 64):
        x = np.random.default_rng(size).random((size, 4), dtype=np.float32)
        np.testing.assert_array_equal(found.run({"x": x})["y"], x[[0, 5]])
    with pytest.raises(JobError, match="takes index 5 of an axis with 3 entries"):
        found.run({"x": np.zeros((3, 4), np.float32)})
