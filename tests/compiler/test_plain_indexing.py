"""Gathers and scatters whose places are known, against onnxruntime, and what becomes of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.lowering_checks import check_both
from tests.compiler.model_builder import model_of, operators, random

GATHERS = {
    "every element": ([2, 3], np.stack(np.indices((2, 3)), -1)),
    "every row": ([5, 4], np.arange(5).reshape(5, 1)),
    "rows": ([5, 4], np.array([[4], [-5], [2]])),
    "pairs": ([5, 4, 3], np.array([[[4, 0], [-1, -4]], [[2, 3], [0, 1]]])),
    "whole indices": ([2, 3], np.array([[1, 2], [0, 0]])),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gathers_at_known_places_are_movement(name: str) -> None:
    shape, indices = GATHERS[name]
    dims = ", ".join(map(str, shape))
    result = ", ".join(map(str, (*indices.shape[:-1], *shape[indices.shape[-1] :])))
    graph = check_both(
        model_of(
            f"g (float[{dims}] x) => (float[{result}] y) {{ a = Relu(x) y = GatherND(a, at) }}",
            at=indices.astype(np.int64),
        )
    )
    if name.startswith("every"):
        assert not any("gather" in key for key in operators(graph))


def test_gathers_of_rows_known_at_run_time_are_gathers() -> None:
    model = model_of(
        "g (float[5, 4] x) => (float[2, 3, 4] y) { a = Relu(x) b = Softmax<axis=0>(a) "
        "c = Slice(b, s, e) i = Cast<to=7>(c) k = Reshape(i, shape) y = GatherND(a, k) }",
        s=np.array([0, 0]), e=np.array([3, 2]), shape=np.array([2, 3, 1]),
    )  # fmt: skip
    check_both(model)


SCATTERS = {
    "in the middle": ([6, 3], np.array([[2], [3]]), [2, 3]),
    "at the start": ([6, 3], np.array([[0], [1], [2]]), [3, 3]),
    "at the end, from behind": ([6, 3], np.array([[-2], [-1]]), [2, 3]),
    "everything": ([2, 3], np.array([[0], [1]]), [2, 3]),
    "within a row": ([6, 3, 2], np.array([[1, 0], [1, 1], [1, 2], [2, 0]]), [4, 2]),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_of_neighbours_are_joins(name: str) -> None:
    shape, indices, updates = SCATTERS[name]
    x, u = (", ".join(map(str, dims)) for dims in (shape, updates))
    model = model_of(
        f"g (float[{x}] x, float[{u}] u) => (float[{x}] y) "
        "{ a = Relu(x) b = Exp(u) y = ScatterND(a, at, b) }",
        at=indices.astype(np.int64),
    )
    check_both(model)


ALONG = {
    "the outermost axis": (0, [5, 3], [1, 2], 0),
    "an inner axis": (1, [2, 5, 3], [-2, -1], 0),
    "behind axes of one": (1, [1, 5, 3], [4], 0),
    "apart": (1, [2, 5, 3], [0, 3], 1),
}
"""Axis, shape of the data, places, scatters that stay."""


@pytest.mark.parametrize("name", ALONG)
def test_elements_that_differ_along_their_axis_alone_are_movement(name: str) -> None:
    axis, shape, places, stay = ALONG[name]
    dims = [len(places) if at == axis else extent for at, extent in enumerate(shape)]
    x, u = (", ".join(map(str, d)) for d in (shape, dims))
    at = np.broadcast_to(np.array(places).reshape([-1] + [1] * (len(shape) - axis - 1)), dims)
    model = model_of(
        f"g (float[{x}] x, float[{u}] u) => (float[{x}] y, float[{u}] z) {{ a = Relu(x) b = Exp(u) "
        f"y = ScatterElements<axis={axis}>(a, at, b) z = GatherElements<axis={axis}>(a, at) }}",
        at=at.astype(np.int64),
    )
    kept = [key for key in operators(check_both(model)) if "elements" in key]
    assert len(kept) == stay, kept


def test_elements_that_differ_along_other_axes_stay() -> None:
    model = model_of(
        "g (float[2, 5] x) => (float[2, 2] y) { a = Relu(x) y = GatherElements<axis=1>(a, at) }",
        at=np.array([[0, 1], [1, 2]]),
    )
    assert any("gather_elements" in key for key in operators(check_both(model)))


@pytest.mark.parametrize("batch", [1, 2])
def test_rows_written_one_after_another_are_one_join(batch: int) -> None:
    rows = " ".join(
        f"u{t} = Exp<>(x{t}) s{t + 1} = ScatterElements<axis=1>(s{t}, at{t}, u{t})"
        for t in range(3)
    ).replace("<>", "")
    given = ", ".join(f"float[{batch}, 1, 4] x{t}" for t in range(3))
    model = model_of(
        f"g ({given}) => (float[{batch}, 3, 4] y) {{ {rows} y = Relu(s3) }}",
        s0=np.zeros((batch, 3, 4), np.float32),
        **{f"at{t}": np.full((batch, 1, 4), t) for t in range(3)},
    )
    found = operators(check_both(model))
    assert not any(word in key for key in found for word in ("scatter", "slice")), found


def assignment() -> onnx.ModelProto:
    """Columns 0 to 3 and 4 to 5 of zeros are assigned, as PyTorch writes it."""
    return model_of(
        "g (float[2, 3, 4] x, float[2, 3, 2] z) => (float[2, 3, 6] y) "
        "{ o = Transpose<perm=[2, 1, 0]>(zeros) u = Exp(x) v = Exp(z) "
        "a = Transpose<perm=[2, 1, 0]>(u) b = Transpose<perm=[2, 1, 0]>(v) "
        "p = ScatterND(o, left, a) q = ScatterND(p, right, b) y = Transpose<perm=[2, 1, 0]>(q) }",
        zeros=np.zeros((2, 3, 6), np.float32), left=np.arange(4).reshape(4, 1),
        right=np.arange(4, 6).reshape(2, 1),
    )  # fmt: skip


def test_assigned_columns_are_one_join() -> None:
    graph = check_both(assignment())
    assert not any("transpose" in key for key in operators(graph)), operators(graph)


def test_transposes_that_do_not_cancel_stay() -> None:
    model = model_of(
        "g (float[2, 3, 4] x) => (float[4, 3, 4] y) { a = Transpose<perm=[2, 0, 1]>(x) "
        "b = Exp(w) c = Concat<axis=1>(a, b) y = Transpose<perm=[0, 2, 1]>(c) }",
        w=random(4, 2, 3),
    )
    check_both(model)
