"""StableHLO modules against jaxlib's interpreter: maps, shapes, products, reductions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilesmith
from tests.capabilities.stablehlo.stablehlo_modules import check, compare, interpreted, module_of
from tilesmith.search_space.support.errors import ModelError

pytest.importorskip("jaxlib", reason="jaxlib is not installed")
pytestmark = pytest.mark.extra
_SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-7, -1e-4, 0.5, -2.5, 88.0], np.float32)


@pytest.mark.parametrize(
    "operation",
    ["abs", "negate", "sign", "floor", "ceil", "round_nearest_even", "round_nearest_afz", "tanh"],
)
def test_maps_of_special_values(operation: str) -> None:
    check(
        module_of(f"%a = stablehlo.{operation} %0 : tensor<10xf32>\nreturn %a : tensor<10xf32>",
                  "10xf32", results="10xf32"),
        [_SPECIAL],
    )  # fmt: skip


def test_maps_that_lose_no_digits_near_zero() -> None:
    small = np.array([1e-8, -1e-5, 1e-3, -0.3, 0.7, 0.0, 30.0], np.float32)
    maps = ("exponential_minus_one", "log_plus_one", "logistic", "rsqrt", "cbrt")
    body = "\n".join(f"%a{i} = stablehlo.{n} %0 : tensor<7xf32>" for i, n in enumerate(maps))
    names = ", ".join(f"%a{i}" for i in range(len(maps)))
    types = ", ".join(["tensor<7xf32>"] * len(maps))
    module = module_of(f"{body}\nreturn {names} : {types}", "7xf32", results="7xf32 " * len(maps))
    executable = check(module, [small])
    found = executable.run({executable.inputs[0].name: small})
    exact = [np.expm1(small.astype(np.float64)), np.log1p(small.astype(np.float64))]
    for ours, wanted in zip(found.values(), exact, strict=False):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)


def test_angles_of_every_quadrant_and_axis() -> None:
    x, y = np.meshgrid(_SPECIAL[:5], _SPECIAL[:5])
    body = "%a = stablehlo.atan2 %0, %1 : tensor<5x5xf32>\nreturn %a : tensor<5x5xf32>"
    module = module_of(body, "5x5xf32", "5x5xf32", results="5x5xf32")
    executable = check(module, [y, x])
    names = [info.name for info in executable.inputs]
    (found,) = executable.run(dict(zip(names, (y, x), strict=True))).values()
    np.testing.assert_array_equal(np.signbit(found), np.signbit(np.arctan2(y, x)))


@pytest.mark.parametrize("dtype", ["i32", "ui32", "i8"])
def test_whole_numbers(dtype: str) -> None:
    kind = f"tensor<6x{dtype}>"
    names = ["add", "subtract", "multiply", "divide", "remainder", "maximum", "and", "xor",
             "shift_left", "shift_right_logical", "shift_right_arithmetic", "power"]  # fmt: skip
    body = "\n".join(f"%a{i} = stablehlo.{n} %0, %1 : {kind}" for i, n in enumerate(names))
    body += f"\n%b = stablehlo.popcnt %0 : {kind}\n%c = stablehlo.count_leading_zeros %0 : {kind}"
    listed = ", ".join([*(f"%a{i}" for i in range(len(names))), "%b", "%c"])
    count = len(names) + 2
    module = module_of(
        f"{body}\nreturn {listed} : {', '.join([kind] * count)}",
        f"6x{dtype}", f"6x{dtype}", results=f"6x{dtype} " * count,
    )  # fmt: skip
    types = {"i32": np.int32, "ui32": np.uint32, "i8": np.int8}
    first = np.array([7, -7, 0, 100, -128, 5], np.int64).astype(types[dtype])
    check(module, [first, np.array([2, 3, 1, 4, 2, 1], types[dtype])])


def test_broadcasts_cost_nothing_between_maps() -> None:
    module = module_of(
        """%a = stablehlo.broadcast_in_dim %1, dims = [2] : (tensor<4xf32>) -> tensor<2x3x4xf32>
        %b = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<3xf32>) -> tensor<2x3x4xf32>
        %c = stablehlo.add %a, %b : tensor<2x3x4xf32>
        %d = stablehlo.multiply %0, %c : tensor<2x3x4xf32>
        %e = stablehlo.transpose %a, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
        return %d, %e : tensor<2x3x4xf32>, tensor<4x2x3xf32>""",
        "2x3x4xf32", "4xf32", "3xf32", results="2x3x4xf32 4x2x3xf32",
    )  # fmt: skip
    report = check(module).report
    assert not report.host_nodes


def test_padding_between_before_and_beyond() -> None:
    module = module_of(
        """%a = stablehlo.pad %0, %1, low = [1, -1], high = [-2, 3], interior = [2, 1]
          : (tensor<3x4xf32>, tensor<f32>) -> tensor<6x9xf32>
        %b = stablehlo.reverse %0, dims = [0, 1] : tensor<3x4xf32>
        %c = stablehlo.slice %0 [0:3:2, 1:4] : (tensor<3x4xf32>) -> tensor<2x3xf32>
        return %a, %b, %c : tensor<6x9xf32>, tensor<3x4xf32>, tensor<2x3xf32>""",
        "3x4xf32", "f32", results="6x9xf32 3x4xf32 2x3xf32",
    )  # fmt: skip
    check(module)


@pytest.mark.parametrize(
    ("left", "right", "batch", "contracted", "result"),
    [
        ("2x3x4", "4x5", "[] x []", "[2] x [0]", "2x3x5"),
        ("2x3x4", "2x5x4", "[0] x [0]", "[2] x [2]", "2x3x5"),
        ("4x2x3", "3x5x2", "[1] x [2]", "[2] x [0]", "2x4x5"),
        ("3x4", "3x4", "[] x []", "[0, 1] x [0, 1]", ""),
        ("5x4", "2x5", "[] x []", "[0] x [1]", "4x2"),
        ("2x1x4", "2x4x3x1", "[0] x [0]", "[2] x [1]", "2x1x3x1"),
    ],
)
def test_products(left: str, right: str, batch: str, contracted: str, result: str) -> None:
    a, b, c = (f"{dims}xf32" if dims else "f32" for dims in (left, right, result))
    body = (
        f"%a = stablehlo.dot_general %0, %1, batching_dims = {batch}, contracting_dims = "
        f"{contracted} : (tensor<{a}>, tensor<{b}>) -> tensor<{c}>\nreturn %a : tensor<{c}>"
    )
    assert not check(module_of(body, a, b, results=c)).report.host_nodes


@pytest.mark.parametrize(
    ("options", "groups", "kernel", "result"),
    [
        ("pad = [[1, 1], [0, 2]]", "1", "3x3x4x2", "2x8x8x2"),
        ("stride = [2, 1], pad = [[1, 0], [-1, 2]], rhs_dilate = [2, 1]", "1", "3x3x4x2",
         "2x3x7x2"),
        ("pad = [[1, 2], [2, 1]], lhs_dilate = [2, 2]", "1", "3x3x4x2", "2x16x16x2"),
        ("pad = [[0, 0], [0, 0]], lhs_dilate = [3, 1], reverse = [true, false]", "1", "2x3x4x2",
         "2x21x6x2"),
        ("pad = [[1, 1], [1, 1]]", "4", "3x3x1x8", "2x8x8x8"),
    ],
)  # fmt: skip
def test_convolutions_with_channels_last(
    options: str, groups: str, kernel: str, result: str
) -> None:
    module = module_of(
        f"""%a = stablehlo.convolution(%0, %1)
          dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{{options}}}
          {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
          : (tensor<2x8x8x4xf32>, tensor<{kernel}xf32>) -> tensor<{result}xf32>
        return %a : tensor<{result}xf32>""",
        "2x8x8x4xf32", f"{kernel}xf32", results=f"{result}xf32",
    )  # fmt: skip
    check(module)


def test_reductions_by_one_operation_and_by_any() -> None:
    module = module_of(
        """%z = stablehlo.constant dense<2.0> : tensor<f32>
        %t = stablehlo.constant dense<false> : tensor<i1>
        %f = stablehlo.compare GE, %0, %0
          : (tensor<3x4x5xf32>, tensor<3x4x5xf32>) -> tensor<3x4x5xi1>
        %a = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0, 2]
          : (tensor<3x4x5xf32>, tensor<f32>) -> tensor<4xf32>
        %b = stablehlo.reduce(%f init: %t) applies stablehlo.or across dimensions = [1]
          : (tensor<3x4x5xi1>, tensor<i1>) -> tensor<3x5xi1>
        %c = stablehlo.reduce(%0 init: %z) across dimensions = [1]
          : (tensor<3x4x5xf32>, tensor<f32>) -> tensor<3x5xf32>
          reducer(%x: tensor<f32>, %y: tensor<f32>) {
            %p = stablehlo.multiply %x, %y : tensor<f32>
            %q = stablehlo.add %x, %y : tensor<f32>
            %r = stablehlo.add %p, %q : tensor<f32>
            stablehlo.return %r : tensor<f32>
          }
        return %a, %b, %c : tensor<4xf32>, tensor<3x5xi1>, tensor<3x5xf32>""",
        "3x4x5xf32", results="4xf32 3x5xi1 3x5xf32",
    )  # fmt: skip
    check(module)


def test_files_of_every_form(tmp_path: Path) -> None:
    module = module_of(
        "%a = stablehlo.add %0, %0 : tensor<3xf32>\nreturn %a : tensor<3xf32>",
        "3xf32", results="3xf32",
    )  # fmt: skip
    from tilesmith.capabilities.stablehlo.bindings import stablehlo

    version = stablehlo().get_current_version()
    artifact = stablehlo().serialize_portable_artifact_str(module, version)
    x = np.ones(3, np.float32)
    for name, held in (("a.mlir", module.encode()), ("b.stablehlo", artifact)):
        (tmp_path / name).write_bytes(held)
        model = tilesmith.compile(tmp_path / name)
        assert model.source.startswith(f"{name} sha256:")
        compare(list(model.run({model.inputs[0].name: x}).values()), interpreted(module, [x]))
    assert tilesmith.compile(tilesmith.from_stablehlo(artifact)).outputs


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        ("%a = stablehlo.add %0, %9 : tensor<3xf32>", "3xf32", "is not a valid StableHLO module"),
        ("return %0 : tensor<3xi128>", "3xi128", "element types that are supported are f32"),
        ("%a = stablehlo.cholesky %0 : tensor<3x3xcomplex<f32>>\n"
         "return %a : tensor<3x3xcomplex<f32>>", "3x3xcomplex<f32>",
         "stablehlo.cholesky.* is not supported"),
        ('%a = stablehlo.custom_call @lapack_spotrf_ffi(%0) : (tensor<3xf32>) -> tensor<3xf32>\n'
         "return %a : tensor<3xf32>", "3xf32", "calls 'lapack_spotrf_ffi'"),
        ("return %0 : tensor<99999999x99999999xf32>", "99999999x99999999xf32", "terabyte"),
        ("return %0 : tensor<?xf32>", "?xf32", r'for example shapes={"input0": \(1,\)}'),
    ],
)  # fmt: skip
def test_bad_modules_are_refused_in_a_sentence(body: str, kind: str, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        tilesmith.compile(tilesmith.from_stablehlo(module_of(body, kind, results=kind)))
    assert "\n" not in str(caught.value)


def test_nesting_that_would_overflow_the_parser_is_refused() -> None:
    text = "module {" + "module {" * 100_000 + "}" * 100_001
    with pytest.raises(ModelError, match="nests brackets"):
        tilesmith.compile(tilesmith.from_stablehlo(text))


def test_damaged_artifacts_do_not_end_the_process() -> None:
    from tilesmith.capabilities.stablehlo.bindings import stablehlo

    module = module_of(
        "%a = stablehlo.add %0, %0 : tensor<3xf32>\nreturn %a : tensor<3xf32>",
        "3xf32", results="3xf32",
    )  # fmt: skip
    whole = stablehlo().serialize_portable_artifact_str(module, stablehlo().get_current_version())
    no_text = whole.replace(b"main", b"m\xff\xfen")
    for damaged in (no_text, whole[: len(whole) // 2], b"ML\xefR" + bytes(range(255))):
        with pytest.raises(ModelError, match="is not a valid StableHLO artifact") as caught:
            tilesmith.compile(tilesmith.from_stablehlo(damaged))
        assert "\n" not in str(caught.value)


def test_open_dimensions_are_given_sizes() -> None:
    module = """module { func.func public @main(%0: tensor<?x4xf32>) -> tensor<?x1xf32> {
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %n = stablehlo.get_dimension_size %0, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
      %s = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [1]
        : (tensor<?x4xf32>, tensor<f32>) -> tensor<?xf32>
      %m = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
      %one = stablehlo.constant dense<1> : tensor<1xi32>
      %d = stablehlo.concatenate %m, %one, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
      %r = stablehlo.dynamic_reshape %s, %d : (tensor<?xf32>, tensor<2xi32>) -> tensor<?x1xf32>
      return %r : tensor<?x1xf32> } }"""
    model = tilesmith.from_stablehlo(module)
    compiled = tilesmith.compile(model, shapes={"input0": (3, 4)})
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (found,) = compiled.run({"input0": x}).values()
    np.testing.assert_allclose(found, x.sum(1, keepdims=True))
    with pytest.raises(ModelError, match=r'shapes={"input0": \(1, 4\)}'):
        tilesmith.compile(model)
    with pytest.raises(ModelError, match="3x5 does not fit it"):
        tilesmith.compile(model, shapes={"input0": (3, 5)})
