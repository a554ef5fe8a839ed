"""Operators that are others put together: native, and equal to what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.lowering_checks import check_both, model_without_output_shape
from tests.compiler.model_builder import model_of, random


def check_native(text: str, opset: int = 17, tolerance: float = 2e-5, **weights: object) -> None:
    """No host node, with the output's shape left to inference."""
    model = model_without_output_shape(model_of(text, opset, **weights))
    check_both(onnx.shape_inference.infer_shapes(model), tolerance=tolerance)


@pytest.mark.parametrize("axes", ["axes=[-1], keepdims=0", "axes=[0, 2]", "keepdims=0"])
@pytest.mark.parametrize(
    "operator", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "ReduceLogSum"]
)
def test_norms_and_logarithms_of_sums(operator: str, axes: str) -> None:
    positive = "p = Abs(x) a = Add(p, one)"
    check_native(
        f"g (float[3, 5, 7] x) => (float y) {{ {positive} y = {operator}<{axes}>(a) }}",
        one=np.float32(1),
    )  # fmt: skip


def test_axes_given_as_inputs() -> None:
    check_native("g (float[3, 5] x) => (float y) { y = ReduceL2(x, at) }", 18, at=np.array([1]))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    text = f'y = DepthToSpace<blocksize=2, mode="{mode}">(x)'
    check_native(f"g (float[2, 12, 3, 5] x) => (float y) {{ {text} }}")


def test_space_to_depth() -> None:
    check_native("g (float[2, 3, 4, 6] x) => (float y) { y = SpaceToDepth<blocksize=2>(x) }")


@pytest.mark.parametrize(
    "body",
    [
        "y = Expand(x, to)",
        "e = Expand(x, to) y = Add(e, v)",
        "y = Tile(x, times)",
        "r = Relu(x) y = Tile(r, times)",
    ],
)
def test_repetitions(body: str) -> None:
    check_native(
        f"g (float[3, 1, 5] x) => (float y) {{ {body} }}",
        to=np.array([2, 3, 4, 5]), v=random(4, 1), times=np.array([1, 3, 2]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("ij,jk->ik", (3, 4), (4, 5)),
        ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)),
        ("bhqk,bkhd->bqhd", (2, 4, 3, 6), (2, 6, 4, 5)),
        ("bhwc,hkc->bhwk", (2, 3, 4, 5), (3, 6, 5)),
        ("abc,cd->dab", (2, 3, 4), (4, 5)),
        ("i,j->ij", (3,), (4,)),
        ("...pd,...qd->...pq", (2, 3, 4, 5), (2, 3, 6, 5)),
        ("...j,jk->...k", (2, 3, 4), (4, 5)),
        ("b...,...j->...jb", (2, 3), (3, 5)),
    ],
)
def test_einsum(equation: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    shapes = [", ".join(map(str, shape)) for shape in (left, right)]
    check_native(
        f"g (float[{shapes[0]}] x, float[{shapes[1]}] z) => (float y) "
        f'{{ y = Einsum<equation="{equation}">(x, z) }}'
    )


@pytest.mark.parametrize("equation", ["ii,ij->ij", "ij,jk->i", "...ii,ij->...j"])
def test_an_einsum_that_is_no_product_stays_on_the_host(equation: str) -> None:
    model = model_of(
        "g (float[4, 4] x, float[4, 4] z) => (float y) "
        f'{{ y = Einsum<equation="{equation}">(x, z) }}'
    )
    check_both(onnx.shape_inference.infer_shapes(model_without_output_shape(model)), host=1)


@pytest.mark.parametrize("equation", ["...ii", "i...i", "ab...->...", "...ab->ba..."])
def test_an_einsum_of_one_operand_may_have_an_ellipsis(equation: str) -> None:
    text = f'g (float[3, 3, 3] x) => (float y) {{ y = Einsum<equation="{equation}">(x) }}'
    check_both(model_without_output_shape(model_of(text)), host=1)


def test_products_whose_batches_broadcast() -> None:
    for left, right in (
        ("2, 1, 3, 5", "1, 4, 5, 7"),
        ("3, 5", "2, 5, 7"),
        ("2, 3, 5", "4, 1, 5, 7"),
    ):
        text = f"g (float[{left}] x, float[{right}] z) => (float y) {{ y = MatMul(x, z) }}"
        check_native(text)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    "attributes",
    [
        "",
        ", dilations=[2, 1], pads=[1, 0, 1, 1]",
        ", strides=[2, 2], pads=[1, 1, 1, 1]",
        ", strides=[2, 3], pads=[1, 0, 0, 1]",
        ", strides=[2, 2], output_padding=[1, 0]",
        ", strides=[4, 1]",
        ', strides=[2, 2], auto_pad="SAME_UPPER"',
        ', strides=[2, 2], auto_pad="SAME_LOWER"',
        ", strides=[3, 2], output_shape=[13, 11]",
    ],
)
def test_transposed_convolution(attributes: str, group: int) -> None:
    check_native(
        "g (float[2, 4, 5, 6] x) => (float y) "
        f"{{ c = ConvTranspose<kernel_shape=[3, 2], group={group}{attributes}>(x, w, b) "
        "y = Relu(c) }",
        w=random(4, 3, 3, 2), b=random(3 * group),
    )  # fmt: skip


def test_transposed_convolution_of_one_axis() -> None:
    check_native(
        "g (float[2, 4, 9] x) => (float y) "
        "{ y = ConvTranspose<kernel_shape=[4], strides=[2], pads=[1, 1]>(x, w) }",
        w=random(4, 3, 4),
    )


def test_a_dilated_transposed_convolution_that_strides() -> None:
    check_native(
        "g (float[2, 4, 5, 6] x) => (float y) "
        "{ y = ConvTranspose<strides=[2, 3], dilations=[2, 2], pads=[1, 0, 0, 1]>(x, w) }",
        w=random(4, 3, 2, 3),
    )


COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resizing_between_pixels(mode: str, coordinates: str) -> None:
    attributes = f'mode="{mode}", coordinate_transformation_mode="{coordinates}"'
    for shape, size in (((2, 3, 5, 7), (2, 3, 10, 14)), ((1, 2, 9, 8), (1, 2, 5, 3))):
        dims = ", ".join(map(str, shape))
        check_native(
            f"g (float[{dims}] x) => (float y) {{ y = Resize<{attributes}>(x, , , to) }}",
            to=np.array(size),
        )


def test_a_long_row_is_resized_without_a_product() -> None:
    text = 'y = Resize<mode="linear">(x, , scales)'
    check_native(
        f"g (float[1, 2, 3, 200] x) => (float y) {{ {text} }}",
        scales=np.float32([1, 1, 1, 1.5]),
    )


def test_cubic_weights_outside_are_left_out() -> None:
    text = 'y = Resize<mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5>(x, , scales)'
    check_native(
        f"g (float[1, 2, 6, 5] x) => (float y) {{ {text} }}", scales=np.float32([1, 1, 2, 2])
    )


def test_upsampling_of_before_resize() -> None:
    check_native(
        'g (float[1, 2, 4, 5] x) => (float y) { y = Upsample<mode="linear">(x, scales) }', 9,
        scales=np.float32([1, 1, 2, 2]),
    )  # fmt: skip
