"""Sorts and scatters by functions of one's own, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.capabilities.stablehlo.stablehlo_modules import compiled, run

pytest.importorskip("jaxlib", reason="jaxlib is not installed")
pytestmark = pytest.mark.extra

RNG = np.random.default_rng(0)
_FLAG = "(tensor<f32>, tensor<f32>) -> tensor<i1>"


def sort_of(shape: str, axis: int, comparator: str) -> str:
    """A module that sorts %0 and %1 by what a comparator says of %x and %y, numbers of %0."""
    both = f"tensor<{shape}xf32>, tensor<{shape}xi32>"
    return f"""module {{ func.func public @main(%0: tensor<{shape}xf32>, %1: tensor<{shape}xi32>)
        -> ({both}) {{
      %a:2 = "stablehlo.sort"(%0, %1) <{{dimension = {axis} : i64, is_stable = true}}> ({{
      ^bb0(%x: tensor<f32>, %y: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>):
        {comparator}
        stablehlo.return %c : tensor<i1>
      }}) : ({both}) -> ({both})
      return %a#0, %a#1 : {both} }} }}"""


BY_SIZE = f"""%p = stablehlo.abs %x : tensor<f32>
    %q = stablehlo.abs %y : tensor<f32>
    %c = stablehlo.compare LT, %p, %q, FLOAT : {_FLAG}"""
DOWN_BY_REST = f"""%n = stablehlo.constant dense<5.0> : tensor<f32>
    %p = stablehlo.remainder %x, %n : tensor<f32>
    %q = stablehlo.remainder %y, %n : tensor<f32>
    %c = stablehlo.compare GT, %p, %q, FLOAT : {_FLAG}"""
BY_DIFFERENCE = f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
    %d = stablehlo.subtract %x, %y : tensor<f32>
    %c = stablehlo.compare LT, %d, %z, FLOAT : {_FLAG}"""


@pytest.mark.parametrize(
    ("comparator", "key"),
    [
        pytest.param(BY_SIZE, np.abs, id="by size"),
        pytest.param(DOWN_BY_REST, lambda x: -np.fmod(x, 5), id="downwards by a remainder"),
        pytest.param(BY_DIFFERENCE, lambda x: x, id="by a difference"),
    ],
)
@pytest.mark.parametrize(("dims", "axis"), [((7,), 0), ((64,), 0), ((3, 5, 2), 1), ((4, 300), 1)])
def test_sorting_by_a_function(
    comparator: str, key: Callable[[Any], Any], dims: tuple[int, ...], axis: int
) -> None:
    x = RNG.integers(-12, 12, dims).astype(np.float32)
    places = np.arange(x.size, dtype=np.int32).reshape(dims)
    found = run(compiled(sort_of("x".join(map(str, dims)), axis, comparator)), [x, places])
    order = np.argsort(key(x), axis=axis, kind="stable")
    for ours, given in zip(found, (x, places), strict=True):
        np.testing.assert_array_equal(ours, np.take_along_axis(given, order, axis))


def scatter_of(function: str, unique: bool) -> str:
    """A module that writes rows %2 at %1 into %0 by what a function makes of %x and %y."""
    return f"""module {{ func.func public @main(%0: tensor<6x3xf32>, %1: tensor<5x1xi32>,
        %2: tensor<5x3xf32>) -> tensor<6x3xf32> {{
      %a = "stablehlo.scatter"(%0, %1, %2) <{{scatter_dimension_numbers = #stablehlo.scatter<
        update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
        index_vector_dim = 1>, unique_indices = {str(unique).lower()}}}> ({{
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        {function}
        stablehlo.return %c : tensor<f32>
      }}) : (tensor<6x3xf32>, tensor<5x1xi32>, tensor<5x3xf32>) -> tensor<6x3xf32>
      return %a : tensor<6x3xf32> }} }}"""


@pytest.mark.parametrize(
    ("places", "unique"),
    [
        pytest.param([4, 0, 5, -1, 9], True, id="each once, two outside"),
        pytest.param([4, 0, 4, -1, 4], False, id="one three times"),
    ],
)
@pytest.mark.parametrize(
    ("function", "join"),
    [
        pytest.param("%c = stablehlo.tanh %x : tensor<f32>", lambda x, y: np.tanh(x), id="apply"),
        pytest.param("%c = stablehlo.subtract %x, %y : tensor<f32>", lambda x, y: x - y, id="less"),
        pytest.param(
            "%p = stablehlo.multiply %x, %y : tensor<f32>\n%c = stablehlo.add %p, %y : tensor<f32>",
            lambda x, y: x * y + y, id="x y + y",
        ),
    ],
)  # fmt: skip
def test_scattering_by_a_function(
    function: str, join: Callable[[Any, Any], Any], places: list[int], unique: bool
) -> None:
    x, rows = (RNG.standard_normal(s).astype(np.float32) for s in ((6, 3), (5, 3)))
    listed = np.array(places, np.int32)[:, None]
    (found,) = run(compiled(scatter_of(function, unique)), [x, listed, rows])
    wanted = x.copy()
    for place, row in zip(places, rows, strict=True):
        if 0 <= place < len(x):
            wanted[place] = join(wanted[place], row)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_scattering_into_two_tensors() -> None:
    module = """module { func.func public @main(%0: tensor<4xf32>, %1: tensor<4xi32>,
        %2: tensor<2x1xi32>, %3: tensor<2xf32>, %4: tensor<2xi32>)
        -> (tensor<4xf32>, tensor<4xi32>) {
      %a:2 = "stablehlo.scatter"(%0, %1, %2, %3, %4) <{scatter_dimension_numbers =
        #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
        index_vector_dim = 1>}> ({
      ^bb0(%x: tensor<f32>, %i: tensor<i32>, %y: tensor<f32>, %j: tensor<i32>):
        %more = stablehlo.compare GT, %y, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %v = stablehlo.select %more, %y, %x : tensor<i1>, tensor<f32>
        %p = stablehlo.select %more, %j, %i : tensor<i1>, tensor<i32>
        stablehlo.return %v, %p : tensor<f32>, tensor<i32>
      }) : (tensor<4xf32>, tensor<4xi32>, tensor<2x1xi32>, tensor<2xf32>, tensor<2xi32>)
        -> (tensor<4xf32>, tensor<4xi32>)
      return %a#0, %a#1 : tensor<4xf32>, tensor<4xi32> } }"""
    given = [
        np.array([1, 5, 2, 0], np.float32), np.zeros(4, np.int32), np.array([[1], [3]], np.int32),
        np.array([4, 7], np.float32), np.array([8, 9], np.int32),
    ]  # fmt: skip
    best, place = run(compiled(module), given)
    assert best.tolist() == [1, 5, 2, 7]
    assert place.tolist() == [0, 0, 0, 9]


# -- functions of CHLO --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("written", "error"),
    [
        pytest.param('"chlo.erf_inv"(%0)', lambda x, y: math.erf(y) - x, id="erf_inv"),
        pytest.param("stablehlo.custom_call @mhlo.erf_inv(%0)", lambda x, y: math.erf(y) - x,
                     id="erf_inv as artifacts write it"),
        pytest.param('"chlo.erfc"(%0)', lambda x, y: y - math.erfc(x), id="erfc"),
    ],
)  # fmt: skip
def test_error_functions_keep_the_digits_of_float64(
    written: str, error: Callable[[float, float], float]
) -> None:
    x = np.array([-0.99, -0.3, 1e-9, 0.2, 0.7, 0.9999])
    module = f"""module {{ func.func public @main(%0: tensor<6xf64>) -> tensor<6xf64> {{
        %1 = {written} : (tensor<6xf64>) -> tensor<6xf64>
        return %1 : tensor<6xf64> }} }}"""
    (result,) = run(compiled(module), [x])
    np.testing.assert_allclose(list(map(error, x, result)), 0, atol=1e-13)
