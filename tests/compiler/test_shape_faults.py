"""Operands and attributes that do not go together are refused where ONNX's inference is silent."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.compiler.model_builder import model_of, random
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import ModelError


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        ("MaxPool<kernel_shape=[2, 2], pads=[1, 1, 1, 1], auto_pad='SAME_UPPER'>(x)", "0, 0, 1, 1"),
        ("Conv<pads=[0, 0, 0, 0], auto_pad='SAME_LOWER'>(x, w)", "1, 1, 0, 0"),
        ("Conv<pads=[1, 1, 1, 1], auto_pad='VALID'>(x, w)", "0, 0, 0, 0"),
    ],
)
def test_padding_that_is_stated_twice_is_refused(body: str, meant: str) -> None:
    quoted = body.replace("'", '"')
    text = f"g (float[1, 1, 3, 3] x) => (float[1, 1, A, B] y) {{ y = {quoted} }}"
    with pytest.raises(ModelError, match=rf"'auto_pad' is .* which here means \[{meant}\]; only"):
        import_model(model_of(text, w=random(1, 1, 2, 2)))
    stated = re.sub(r"pads=\[[^]]*\]", f"pads=[{meant}]", text)
    import_model(model_of(stated, w=random(1, 1, 2, 2)))


@pytest.mark.parametrize(
    ("stated", "scales", "zeros", "wrong"),
    [
        ("axis=1", (3,), (3,), "scales have the shape 3; one scale, or scales of the shape 4, are"),
        ("axis=-2", (4,), (4,), "scales have the shape 4; .* of the shape 2, are due"),
        ("axis=1", (4,), (3,), "scales have the shape 4 and its zero points 3; both have to be"),
        ("axis=2", (4,), (4,), "attribute 'axis' is 2; its input has the shape 2x4"),
        ("axis=1, block_size=3", (2, 3), (2, 3), "the shape 2x3; .* of the shape 2x2, are due"),
        ("axis=7", (1,), (), ""),
        ("axis=-1", (4,), (4,), ""),
        ("axis=1, block_size=3", (2, 2), (2, 2), ""),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    stated: str, scales: tuple[int, ...], zeros: tuple[int, ...], wrong: str
) -> None:
    known = {"s": np.ones(scales, np.float32), "z": np.zeros(zeros, np.uint8)}
    for text in (
        f"g (float[2, 4] x) => (uint8[2, 4] y) {{ y = QuantizeLinear<{stated}>(x, s, z) }}",
        f"g (uint8[2, 4] x) => (float[2, 4] y) {{ y = DequantizeLinear<{stated}>(x, s, z) }}",
    ):
        if wrong:
            with pytest.raises(ModelError, match=wrong):
                import_model(model_of(text, opset=21, **known))
        else:
            import_model(model_of(text, opset=21, **known))


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (3, 1), (4,), (1,), (), (5, 4), (3,), (1, 1, 4)])
def test_what_gemm_adds_broadcasts_to_the_product(shape: tuple[int, ...]) -> None:
    text = "g (float[2, 3] x) => (float[3, 4] y) { y = Gemm<transA=1, transB=1>(x, w, c) }"
    model = model_of(text, w=random(4, 2), c=random(*shape))
    try:
        np.broadcast_to(random(*shape), (3, 4))
    except ValueError:
        with pytest.raises(ModelError, match="Gemm 'y' cannot be computed: what is added has the"):
            import_model(model)
    else:
        import_model(model)


def test_a_diagonal_of_no_number_is_refused() -> None:
    text = "g (int64[4, 5] x, int64[0] k) => (int64[4, 5] y) { y = Trilu(x, k) }"
    with pytest.raises(ModelError, match="diagonal 'k' has the shape 0; one number is due"):
        import_model(model_of(text))


@pytest.mark.parametrize(
    ("stated", "wrong"),
    [
        ("num_scan_inputs=3", "'num_scan_inputs' is 3; it has 2 inputs"),
        ("num_scan_inputs=1, scan_input_directions=[1, 0]", "has 2 entries; 1 are due"),
        ("num_scan_inputs=1, scan_output_axes=[0, 0]", "has 2 entries; 1 are due"),
        ("num_scan_inputs=1, scan_input_directions=[64]", r"is \[64\]; 0 is forwards"),
        (
            "num_scan_inputs=1, scan_input_axes=[2]",
            "axis 2 is scanned of an input of the shape 5x1",
        ),
    ],
)
def test_lists_of_a_scan_fit_what_is_scanned(stated: str, wrong: str) -> None:
    body = (
        "b (float[1] s, float[1] n) => (float[1] t, float[1] r) { t = Add(s, n) r = Identity(t) }"
    )
    scan = f"t, r = Scan<body={body}, {stated}>(s, x)"
    text = f"g (float[1] s, float[5, 1] x) => (float[1] t, float[5, 1] r) {{ {scan} }}"
    with pytest.raises(ModelError, match=f"Scan .* cannot be computed: .*{wrong}"):
        import_model(model_of(text))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            "g (bfloat16[1, 3, 4, 8] q, bfloat16[2, 3, 6, 8] k, "
            "bfloat16[2, 3, 6, 8] v) => (bfloat16[A, B, C, D] y) { y = Attention(q, k, v) }",
            "the shapes 1x3x4x8, 2x3x6x8, 2x3x6x8; batches, .* have to agree",
        ),
        (
            "g (float[1, 128, 1] x, int64 step, float window) => (float[A, B, C, D] y) "
            "{ y = STFT(x, step, window) }",
            "its window has the shape scalar; one axis is due",
        ),
        (
            "g (float[2, 3] x, float[3] w) => (float[2, 3] y) "
            "{ y = LayerNormalization<axis=2147483648>(x, w) }",
            "'axis' is 2147483648",
        ),
    ],
)
def test_operands_are_compared_before_an_operator_is_put_together_from_others(
    text: str, wrong: str
) -> None:
    with pytest.raises(ModelError, match=wrong):
        import_model(model_of(text, opset=23))


def test_an_operator_that_is_newer_than_its_model_has_an_axis_of_its_input() -> None:
    """ONNX's inference would end the process: an expansion infers it as the newest there is."""
    model = model_of(
        "g (float[2, 3] x, float[3] w) => (float[2, 3] y) "
        "{ y = LayerNormalization<axis=2147483648>(x, w) }"
    )
    model.opset_import[0].version = 1
    with pytest.raises(ModelError, match="'axis' is 2147483648; its input has the shape 2x3"):
        import_model(model)


def test_an_unknown_node_without_a_name_is_refused() -> None:
    model = model_of("g (float[2] x) => (float[2] y) { y = Identity(x) }")
    model.graph.node.add(op_type="Cosh", domain="ai.onnx.ml", input=["x"])
    with pytest.raises(ModelError, match=r"node '' .* uses ai\.onnx\.ml\.Cosh, which is not part"):
        import_model(model)


def test_frames_that_do_not_move_on_are_refused() -> None:
    text = """g (float[1, 128, 1] x, float[16] w) => (float[A, B, C, D] y) {
        step = Constant<value = int64 {0}>() y = STFT(x, step, w) }"""
    with pytest.raises(ModelError, match="STFT 'y' has frame_step 0"):
        import_model(model_of(text))
