"""Convolutions in matrix registers (AMX): drawn shapes are exact by the interpreter and, their tile
instructions replaced by Python, as compiled code; what is compiled has the instructions.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.codegen.test_dot_products import target_of
from tests.codegen.test_tiles import AMX, run
from tests.conformance.template_checks import expected, physical
from tests.property.test_dot_convolutions import agree, inputs_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.programs.structures import default_of, lowered, space_of
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.schedules.cpu.algorithms import conv_tiles
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu import CpuSimulator

BYTES = "dtype=uint8 weights=int8"
runs_avx512 = pytest.mark.skipif(
    host_target().text("isa.name") != "avx512", reason="the code around the tiles is for AVX-512"
)

workloads = st.builds(
    lambda n, c, oc, image, taps, steps, apart, pad, const: Workload.parse(
        f"conv2d n={n} c={c} oc={oc} h={image[0]} w={image[1]} kh={taps[0]} kw={taps[1]} "
        f"stride={steps[0]}x{steps[1]} dilation={apart[0]}x{apart[1]} pad={pad} {BYTES} {const}"
    ),
    st.integers(1, 2), st.sampled_from([32, 33, 64, 70]), st.sampled_from([16, 19, 50]),
    st.tuples(st.integers(5, 8), st.integers(5, 17)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([(1, 1), (2, 1), (1, 2)]), st.sampled_from(["0", "1", "1x0x0x2"]),
    st.sampled_from(["", "const=weight"]),
)  # fmt: skip


def drawn(workload: Workload, seed: int) -> Config:
    """A configuration of the form."""
    found = conv_tiles.subspace(Geometry.of(workload).view(), AMX)
    (config,) = SearchSpace((found,)).sample(np.random.default_rng(seed))
    assert config in space_of(workload, AMX)
    return config


def viewed(arrays: dict[str, NDArray[Any]], program: Any) -> dict[str, NDArray[Any]]:
    """Pixels of a pointwise convolution are one row."""
    return {
        buffer.name: arrays[buffer.name].reshape([e.constant or 0 for e in buffer.shape])
        for buffer in program.parameters
        if buffer.role == "input"
    }


@runs_avx512
@settings(deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate), max_examples=3)
@example(Workload.parse(f"conv2d c=33 oc=20 h=8 w=6 kh=1 kw=3 pad=0x1 {BYTES}"), 0)  # 8 positions
@given(workloads, st.integers(0, 999))
def test_sums_are_exact(workload: Workload, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = inputs_of(workload, rng)
    for config in (default_of(workload, AMX), drawn(workload, seed)):
        program = lowered(workload, AMX, config)
        verify(program, AMX)
        verify(finish(program), AMX)
        given = physical(template_of("conv2d"), workload, config, arrays)
        agree(workload, config, run(program, viewed(given, program)), arrays)


@pytest.mark.parametrize(
    "text", ["c=33 oc=18 h=3 w=3 kh=2 kw=1 stride=2 pad=1", "c=40 oc=4 h=3 w=3 kh=1 kw=1"]
)
def test_the_program_means_the_same(text: str) -> None:
    workload = Workload.parse(f"conv2d {text} {BYTES}")
    arrays = inputs_of(workload, np.random.default_rng(0))
    config = drawn(workload, 1)
    program = finish(lowered(workload, AMX, config))
    given = physical(template_of("conv2d"), workload, config, arrays)
    result = interpret(program, viewed(given, program))[program.parameters[-1].name]
    agree(workload, config, result, arrays)


@runs_avx512
def test_the_epilogue_follows_the_sums() -> None:
    steps = "correction,rescale,residual_uint8,relu,quantise_uint8"
    workload = Workload.parse(
        f"conv2d c=64 oc=24 h=7 w=7 kh=3 kw=3 pad=1 {BYTES} const=weight epilogue={steps}"
    )
    template, rng = template_of("conv2d"), np.random.default_rng(0)
    arrays: dict[str, NDArray[Any]] = {**inputs_of(workload, rng)}
    arrays["correction0"] = rng.integers(-999, 999, 24).astype(np.int32)
    arrays["rescale1"] = np.full(24, 2.0**-10, np.float32)  # all of these are exact
    arrays["residual_uint82"] = rng.integers(0, 256, (1, 24, 7, 7)).astype(np.uint8)
    arrays["quantise_uint84"] = np.asarray([0.5, 3], np.float32)
    config = default_of(workload, AMX)
    result = run(lowered(workload, AMX, config), physical(template, workload, config, arrays))
    layout = Layout.parse(config.text("output_layout"))
    found = layout.unpack(result.reshape(layout.concrete_shape((1, 24, 7, 7))), (1, 24, 7, 7))
    np.testing.assert_array_equal(found, expected(workload, arrays))
    assert len(np.unique(found)) > 9


@runs_avx512
def test_products_of_bfloat16_are_summed_in_float32() -> None:
    """What fills up the last block of channels counts nothing."""
    workload = Workload.parse(
        "conv2d c=40 oc=20 h=9 w=9 kh=3 kw=3 pad=1 stride=2 dtype=bfloat16 epilogue=bias"
    )
    template, rng, kind = template_of("conv2d"), np.random.default_rng(0), ml_dtypes.bfloat16
    arrays = {
        operand.name: rng.integers(-4, 5, operand.shape).astype(kind)  # their sums are exact
        for operand in template.operands(workload)
    }
    for config in (default_of(workload, AMX), drawn(workload, 5)):
        program = lowered(workload, AMX, config)
        assert "tdpbf16ps" in toolchain.emit_assembly(emit_module(program, AMX).text, AMX)
        result = run(program, physical(template, workload, config, arrays))
        layout = Layout.parse(config.text("output_layout"))
        shape = template.output(workload).shape
        found = layout.unpack(result.reshape(layout.concrete_shape(shape)), shape)
        rounded = expected(workload, arrays).astype(kind)
        np.testing.assert_array_equal(found.astype(np.float32), rounded.astype(np.float32))


@pytest.mark.parametrize("size", ["h=14 w=14 kh=3 kw=3 pad=1", "h=28 w=28 kh=1 kw=1"])
def test_each_operand_is_loaded_once_a_step(size: str) -> None:
    epilogue = "epilogue=correction,rescale,relu,quantise_uint8"
    workload = Workload.parse(f"conv2d c=64 oc=64 {size} {BYTES} const=weight {epilogue}")
    program = lowered(workload, AMX, default_of(workload, AMX))
    assembly = toolchain.emit_assembly(emit_module(program, AMX).text, AMX)
    (step,) = (
        block for block in re.split(r"^\.?\w+:", assembly, flags=re.M) if block.count("tdpb") == 4
    )
    assert len(re.findall(r"\btdpbusd\b", step)) == len(re.findall(r"\btileloadd\b", step)) == 4


@pytest.mark.parametrize("width, most", [(7, 0.3), (14, 0.15), (28, 0.1), (56, 0.05), (112, 0.03)])
def test_few_products_are_made_for_nothing(width: int, most: float) -> None:
    """Of 3x3 convolutions; tiles of 16 pixels of one row would lose 0.56 at a width of 7."""
    g = Geometry.of(Workload.parse(f"conv2d c=64 oc=64 h={width} w={width} kh=3 kw=3 pad=1"))
    assert 1 - width * width / conv_tiles.Positions.of(g, 16).sums <= most


def test_where_registers_would_be_empty_vectors_stay() -> None:
    for text in ("c=3 kh=3 kw=3", "c=64 kh=3 kw=3 groups=2", "c=32 kh=1 kw=1"):
        workload = Workload.parse(f"conv2d {text} oc=64 h=9 w=9 {BYTES}")
        assert default_of(workload, AMX).text("algorithm") == "dot"
    fits = Workload.parse(f"conv2d c=64 oc=64 h=9 w=9 kh=3 kw=3 {BYTES}")
    vectors = target_of("avx512", "+avx512vnni")
    assert default_of(fits, vectors).text("algorithm") == "dot"
    floats = Workload.parse("conv2d c=64 oc=64 h=9 w=9 kh=3 kw=3")
    assert default_of(floats, AMX).text("algorithm") != conv_tiles.ALGORITHM


def test_sizes_that_vary_take_vectors() -> None:
    symbolic = Workload.parse(f"conv2d n=[s] c=64 oc=64 h=9 w=9 kh=3 kw=3 {BYTES}")
    usual, largest = (
        Workload.parse(f"conv2d n={n} c=64 oc=64 h=9 w=9 kh=3 kw=3 {BYTES}") for n in (2, 8)
    )
    scheduler = scheduler_of(usual, AMX)
    given = Config.of({**dict(default_of(usual, AMX).items()), "input_layout": "NCHW"})
    chosen = scheduler.varying(symbolic, usual, largest, AMX, given)
    assert (chosen.text("algorithm"), chosen.text("input_layout")) == ("dot", "NCHW")
    assert chosen in space_of(usual, AMX)


def test_the_simulator_finds_them_faster() -> None:
    workload = Workload.parse(f"conv2d c=256 oc=256 h=14 w=14 kh=3 kw=3 pad=1 {BYTES} const=weight")
    seconds = [
        float(
            CpuSimulator(weights="warm")
            .judge(workload, target, [default_of(workload, target)])
            .latency[0]
        )
        for target in (AMX, target_of("avx512", "+avx512vnni"))
    ]
    assert seconds[0] < 0.7 * seconds[1]
