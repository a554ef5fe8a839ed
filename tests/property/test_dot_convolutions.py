"""Convolutions in dot products, drawn shapes: exact for every instruction that multiplies and adds.

What is expected is numpy's, in 64 bits; data and weights are of the whole range of bytes, so that
sums of two products leave 16 bits.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.conformance.template_checks import check_config, physical
from tilesmith.codegen.host.machine import cpu_target, host_target
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import compile_config
from tilesmith.codegen.programs.structures import default_of, lowered, space_of
from tilesmith.compiler.backends.backend import backends
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.convolution.template import convolve
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.instruction_set import instruction_set
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


def target_of(isa: str, features: str = "") -> Target:
    chosen = instruction_set(isa)
    own = ",".join(filter(None, (chosen.features, features)))
    return cpu_target(isa, isa, chosen.triple or "x86_64-unknown-linux-gnu", features=own)


TARGETS = {
    "vpdpbusd zmm": target_of("avx512", "+avx512vnni"),
    "vpmaddwd zmm": target_of("avx512"),
    "vpdpbusd ymm": target_of("avx2", "+avxvnni"),
    "pmaddwd xmm": target_of("sse"),
    " ": target_of("generic"),
}

HOST = host_target()
NO_SHRINK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Every example compiles: what fails is small already."""

Arrays = dict[str, NDArray[np.integer]]

whole = st.builds(
    lambda n, c, oc, image, taps, steps, pad, groups, const: Workload.parse(
        f"conv2d n={n} c={c * groups} oc={oc * groups} h={image[0]} w={image[1]} kh={taps[0]} "
        f"kw={taps[1]} stride={steps[0]} dilation={steps[1]} pad={pad} groups={groups} "
        f"weights=int8 dtype=uint8 {const}"
    ),
    st.integers(1, 2), st.sampled_from([1, 3, 4, 6, 16, 20]), st.sampled_from([1, 8, 16, 19]),
    st.tuples(st.integers(5, 7), st.integers(5, 17)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([(1, 1), (2, 1), (1, 2)]), st.sampled_from(["0", "1", "1x0x0x2"]),
    st.sampled_from([1, 1, 2]), st.sampled_from(["", "const=weight"]),
)  # fmt: skip

depthwise = st.builds(
    lambda c, image, taps, steps, pad: Workload.parse(
        f"depthwise_conv2d n=2 c={c} h={image[0]} w={image[1]} kh={taps[0]} kw={taps[1]} "
        f"stride={steps[0]} dilation={steps[1]}x1 pad={pad} weights=int8 dtype=uint8 const=weight"
    ),
    st.sampled_from([3, 16, 21]), st.tuples(st.integers(5, 7), st.integers(5, 17)),
    st.tuples(st.integers(1, 3), st.integers(1, 5)), st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    st.sampled_from(["0", "1", "1x0x0x2"]),
)  # fmt: skip
workloads = st.one_of(whole, depthwise)


def inputs_of(workload: Workload, rng: np.random.Generator) -> Arrays:
    found = {}
    for operand in template_of(workload.operator).inputs(workload):
        ends = np.iinfo(to_numpy(operand.dtype))
        values = rng.integers(ends.min, ends.max + 1, operand.shape)
        extreme = rng.choice([ends.min, ends.max], operand.shape)
        chosen = np.where(rng.random(operand.shape) < 0.5, values, extreme)
        found[operand.name] = chosen.astype(to_numpy(operand.dtype))
    return found


def expected(workload: Workload, arrays: Arrays) -> NDArray[np.int64]:
    data, weight = (arrays[name].astype(np.int64) for name in ("data", "weight"))
    frame = int(arrays["pad_value"][0]) if "pad_value" in arrays else 0
    return convolve(Geometry.of(workload), data, weight, frame)


def agree(workload: Workload, config: Config, found: NDArray[np.integer], arrays: Arrays) -> None:
    """The result of a kernel, in its physical layout, against what is expected."""
    shape = template_of(workload.operator).output(workload).shape
    layout = Layout.parse(config.text("output_layout"))
    got = layout.unpack(found.reshape(layout.concrete_shape(shape)), shape)
    where = f"{workload.key} | {config.key}"
    np.testing.assert_array_equal(got, expected(workload, arrays), err_msg=where)


@pytest.mark.parametrize("instruction", TARGETS)
@settings(deadline=None, phases=NO_SHRINK, max_examples=4)
@given(workloads, st.integers(0, 999))
def test_sums_are_exact(instruction: str, workload: Workload, seed: int) -> None:
    target, rng = TARGETS[instruction], np.random.default_rng(seed)
    arrays = inputs_of(workload, rng)
    configs = [default_of(workload, target), *space_of(workload, target).sample(rng, 1)]
    try:
        backends["cpu"].check(target)
    except TargetError as error:
        pytest.skip(str(error))
    for config in configs:
        given = physical(template_of(workload.operator), workload, config, arrays)
        agree(workload, config, compile_config(workload, target, config)(given), arrays)


@settings(deadline=None, phases=NO_SHRINK, max_examples=2)
@given(workloads, st.integers(0, 999))
def test_programs_are_right_before_and_after_the_passes(workload: Workload, seed: int) -> None:
    target, rng = TARGETS["vpdpbusd zmm"], np.random.default_rng(seed)
    arrays = inputs_of(workload, rng)
    (config,) = space_of(workload, target).sample(rng)
    given = physical(template_of(workload.operator), workload, config, arrays)
    bound = lowered(workload, target, config)
    for program in (bound, finish(bound)):
        verify(program, target)
        views = {  # groups are part of the batch, pixels of a pointwise convolution one row
            buffer.name: given[buffer.name].reshape([e.constant or 0 for e in buffer.shape])
            for buffer in program.parameters
            if buffer.role == "input"
        }
        agree(workload, config, interpret(program, views)[program.parameters[-1].name], arrays)


@pytest.mark.parametrize("operator", ["conv2d oc=64", "depthwise_conv2d"])
@pytest.mark.parametrize("instruction", [name for name in TARGETS if name.strip()])
def test_the_instruction_is_used(instruction: str, operator: str) -> None:
    name, register = instruction.split()
    target = TARGETS[instruction]
    workload = Workload.parse(
        f"{operator} c=64 h=14 w=14 kh=3 kw=3 pad=1 weights=int8 dtype=uint8 const=weight "
        "epilogue=correction,rescale,relu,quantise_uint8"
    )
    config = default_of(workload, target)
    assert config.text("algorithm") == "dot"
    text = emit_module(lowered(workload, target, config), target).text
    assembly = toolchain.emit_assembly(text, target)
    products = len(re.findall(rf"\b{name}\s.*{register}", assembly))
    tile = config.integer("x_tile") * config.integer("y_tile")
    assert products >= tile * int(config.get("n_vectors", 1)), (products, tile)
    assert "vpinsrb" not in assembly and "cvttss2si" not in assembly


@pytest.mark.parametrize(
    "text",
    [
        "c=5 h=9 w=11 oc=20 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
        "n=2 c=3 h=9 w=13 oc=7 kh=5 kw=3 stride=2 pad=2x1 dilation=2x1 epilogue=residual",
        "c=19 h=7 w=7 oc=32 kh=1 kw=1 const=weight",
    ],
)
def test_floats_of_16_bits(text: str) -> None:
    """Channels that no group is filled with count nothing, whatever stands there."""
    workload, rng = Workload.parse(f"conv2d {text} dtype=bfloat16"), np.random.default_rng(0)
    for config in (default_of(workload, HOST), *space_of(workload, HOST).sample(rng, 2)):
        check_config(workload, config, rng)


def test_products_of_16_bit_floats_use_the_instruction() -> None:
    target = target_of("avx512", "+avx512bf16")
    workload = Workload.parse(
        "conv2d c=64 h=9 w=9 oc=64 kh=3 kw=3 pad=1 dtype=bfloat16 const=weight"
    )
    config = default_of(workload, target)
    text = emit_module(lowered(workload, target, config), target).text
    assert len(re.findall(r"vdpbf16ps\s.*zmm", toolchain.emit_assembly(text, target))) >= 14
