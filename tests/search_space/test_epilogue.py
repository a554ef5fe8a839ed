"""Every epilogue step: the compiled formula agrees with its numpy reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search_space.programs import result
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.schedules.cpu.algorithms import conv_winograd
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.epilogue import STEPS, EpilogueStep, operand_name, reference
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

FLOATING = sorted(name for name, kind in STEPS.items() if not kind.takes)
"""Steps of any value; those of integer products and bytes have tests of their own."""


@given(st.lists(st.sampled_from(FLOATING), min_size=1, max_size=3), st.integers(0, 9999))
def test_compiled_and_reference_formulas_agree(names: list[str], seed: int) -> None:
    workload = Workload.parse(f"matmul m=3 n=4 k=2 epilogue={','.join(names)}")
    template, rng = template_of("matmul"), np.random.default_rng(seed)
    arrays = {
        o.name: rng.uniform(0.1, 1.0, o.shape).astype(np.float32)
        for o in template.operands(workload)
    }
    found = result(lower(Schedule(template.compute(workload))), arrays)  # type: ignore[attr-defined]
    product = template.reference(workload, arrays)
    expected = reference(workload.epilogue, product, arrays, template.channel_axis(workload))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FLOATING)
def test_negative_inputs_too(name: str) -> None:
    if name == "sqrt":
        return
    workload = Workload.parse(f"matmul m=2 n=3 k=2 epilogue={name}")
    template, rng = template_of("matmul"), np.random.default_rng(1)
    arrays = {
        o.name: rng.uniform(-3, 3, o.shape).astype(np.float32) for o in template.operands(workload)
    }
    found = result(lower(Schedule(template.compute(workload))), arrays)  # type: ignore[attr-defined]
    product = template.reference(workload, arrays)
    expected = reference(workload.epilogue, product, arrays, template.channel_axis(workload))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_steps_print_as_they_are_typed() -> None:
    assert str(EpilogueStep.parse("clip:0:6")) == "clip"
    assert str(EpilogueStep.parse("clip:-1:1")) == "clip:-1:1"
    assert str(EpilogueStep("leaky_relu")) == "leaky_relu"
    assert EpilogueStep.parse("clip:-1:1") == EpilogueStep("clip", (-1.0, 1.0))


def test_operands_are_named_by_step_and_position() -> None:
    steps = [EpilogueStep(name) for name in ("relu", "bias", "residual")]
    assert [operand_name(s, i) for i, s in enumerate(steps)] == [None, "bias1", "residual2"]


INTEGER = "matmul m=5 n=7 k=9 dtype=uint8 weights=int8 epilogue="


@pytest.mark.parametrize(
    ("epilogue", "dtype"),
    [
        ("correction", "int32"),
        ("rescale", "float32"),
        ("correction,rescale,bias,gelu", "float32"),
        ("correction,rescale,relu,quantise_uint8", "uint8"),
        ("rescale,residual_uint8,clip:0:9,quantise_int8", "int8"),
        ("rescale,fake_quantise,quantise_uint8", "uint8"),
        ("bias,relu", "int32"),
    ],
)
def test_integer_products_are_requantised(epilogue: str, dtype: str) -> None:
    workload = Workload.parse(INTEGER + epilogue)
    template, rng = template_of("matmul"), np.random.default_rng(3)
    arrays = {
        o.name: rng.uniform(0.01, 2, o.shape).astype(np.float32)
        if o.dtype == "float32"
        else rng.integers(-100, 100, o.shape).astype(to_numpy(o.dtype))
        for o in template.operands(workload)
    }
    found = result(lower(Schedule(template.compute(workload))), arrays)
    product = arrays["a"].astype(np.int64) @ arrays["b"].astype(np.int64)
    assert np.array_equal(template.reference(workload, arrays), product)
    expected = reference(workload.epilogue, product.astype(np.int32), arrays, 1)
    assert found.dtype == to_numpy(template.output(workload).dtype) == dtype
    if dtype == "float32":
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    else:
        np.testing.assert_array_equal(found, expected)


def test_bytes_are_saturated_and_rounded_to_even() -> None:
    x = np.array([0.5, 1.5, -3.0, 300.0, np.nan, np.inf, -np.inf], np.float32)
    p = np.array([1.0, 2.0], np.float32)
    unsigned, signed = (STEPS[f"quantise_{name}"].formula(x, p) for name in ("uint8", "int8"))
    assert unsigned.tolist() == [2, 4, 0, 255, 0, 255, 0]
    assert signed.tolist() == [2, 4, -1, 127, 0, 127, -128]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (INTEGER + "quantise_uint8", "need 'rescale' first"),
        (INTEGER + "rescale,correction", "takes sums of integer products"),
        (INTEGER + "rescale,quantise_int8,relu", "not quantised yet"),
        ("matmul m=2 n=2 k=2 epilogue=correction", "takes sums of integer products"),
        ("matmul m=2 n=2 k=2 weights=int8", "stand beside dtype=uint8"),
    ],
)
def test_steps_that_do_not_fit_are_refused(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Workload.parse(text)


@pytest.mark.parametrize("text", ["relu:1", "clip:1", "clip:a:b", "nothing", ""])
def test_bad_steps_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="epilogue step"):
        EpilogueStep.parse(text)


@pytest.mark.parametrize("size", [4, 5])
def test_winograd_requantises_as_other_algorithms_do(size: int) -> None:
    workload = Workload.parse(f"conv2d c=2 h={size} w={size} oc=3 kh=3 kw=3 pad=1 const=weight "
                              "epilogue=bias,quantise_uint8")  # fmt: skip
    template, rng = template_of("conv2d"), np.random.default_rng(2)
    arrays = {
        o.name: rng.standard_normal(o.shape).astype(np.float32)
        for o in template.operands(workload)[:3]
    }
    arrays |= {template.operands(workload)[3].name: np.array([0.1, 120.0], np.float32)}
    definition = conv_winograd.compute(workload, Geometry.of(workload), 2)
    found = result(lower(Schedule(definition)), arrays)
    product = template.reference(workload, arrays)
    expected = reference(workload.epilogue, product, arrays, template.channel_axis(workload))
    assert found.dtype == np.uint8
    assert np.abs(found.astype(np.int32) - expected.astype(np.int32)).max() <= 1
