"""Scheduled operators on the core: values against numpy, limits, what the generator refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesmith.codegen.programs.structures import default_of, space_of, structure_program
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.codegen.selection.from_program import generate
from tilesmith.families.trainium.codegen.selection.loop_nests.nests import split_pipeline
from tilesmith.families.trainium.codegen.selection.prologue import prepare
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.expressions.expression import as_expr, const, var
from tilesmith.search_space.expressions.scalar import Load, Select
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.program import Block, Buffer, Loop, Program
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError, ConfigError, WorkloadError
from tilesmith.search_space.workloads.epilogue import reference as epilogue_reference
from tilesmith.search_space.workloads.scheduler import is_scheduled, scheduler_of
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulate

TARGET = load_target("trn1")
LARGER = [
    "conv2d c=130 h=12 w=10 oc=140 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
    "conv2d n=2 c=8 h=30 w=33 oc=16 kh=3 kw=3 stride=2 pad=1 const=weight dtype=bfloat16",
    "conv2d c=64 h=28 w=28 oc=64 kh=1 kw=1 const=weight epilogue=residual,relu",
    "conv2d c=3 h=40 w=36 oc=20 kh=7 kw=7 stride=2 pad=3 const=weight epilogue=bias,relu",
    "conv2d c=64 h=16 w=16 oc=64 kh=3 kw=3 pad=1 const=weight dtype=bfloat16",
    "conv2d n=2 c=32 h=14 w=13 oc=32 kh=3 kw=3 const=weight epilogue=residual",
    "conv2d c=32 h=8 w=30 oc=40 kh=4 kw=3 stride=2 pad=1x0x2x1 const=weight",
    "softmax shape=300x1000",
    "pool2d kind=max c=140 h=30 w=28 kh=3 kw=3 stride=2 pad=1",
    "depthwise_conv2d c=130 h=20 w=20 kh=3 kw=3 stride=2 pad=1 const=weight dtype=bfloat16",
    "layer_norm shape=150x768",
    "elementwise shape=256x1024 expression=relu(add(x0,x1))",
    "elementwise shape=1x64x28x28 expression=multiply(x0,x1) x1=64x1x1 dtype=bfloat16",
]
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}


@pytest.mark.parametrize(
    "text",
    [
        "attention m=128 n=256 k=64 heads=4 dtype=bfloat16",
        "attention m=40 n=70 k=16 batch=2 heads=2 mask=full",
        "matmul m=256 n=640 k=300 tb=1 epilogue=bias",
        "conv2d c=5 h=24 w=24 oc=22 kh=7 kw=7 stride=2 pad=3 const=weight",
    ],
)
def test_a_skeleton_becomes_the_instructions_of_each_of_its_schedules(text: str) -> None:
    workload = Workload.parse(text)
    space = space_of(workload, TARGET)
    for config in space.sample(np.random.default_rng(7), 6):
        schedule = scheduler_of(workload, TARGET).schedule(
            workload, TARGET, space.structure(config)
        )
        apart = generate(lower(schedule).bind(space.tiles(config)), Core.of(TARGET))
        shared = instruction_stream(workload, TARGET, config)
        assert str(shared) == str(apart)
        assert all(np.array_equal(shared.rows[name], apart.rows[name]) for name in apart.rows)
        for name, column in apart.accesses.items():
            assert np.array_equal(shared.accesses[name], column)
        assert shared.allocations == apart.allocations


def check(workload: Workload, config: Config, seed: int = 0) -> None:
    """Run a configuration functionally and compare, relative to the accumulated magnitude."""
    template, rng = template_of(workload.operator), np.random.default_rng(seed)
    stream = instruction_stream(workload, TARGET, config)
    inputs = {
        o.name: rng.standard_normal(o.shape).astype(to_numpy(o.dtype))
        for o in template.operands(workload)
    }
    wide = {name: x.astype(np.float64) for name, x in inputs.items()}
    (got,) = execute(stream, physical(stream, workload, config, inputs)).values()
    expected = template.reference(workload, wide)
    magnitude = template.reference(workload, {n: np.abs(x) for n, x in wide.items()})
    axis = template.channel_axis(workload)
    expected = np.asarray(epilogue_reference(workload.epilogue, expected, wide, axis))
    limit = TOLERANCE[workload.dtype] * (np.abs(magnitude).max() + np.abs(expected).max())
    found = got.astype(np.float64).reshape(expected.shape)
    assert np.abs(found - expected).max() <= limit


def physical(stream, workload, config, inputs):
    """Inputs in the shapes the stream gives them; packed weights made as at compile time."""
    space = space_of(workload, TARGET)
    program = structure_program(workload, TARGET, space.structure(config))
    found = prepare(program.bind(space.tiles(config)), inputs)
    for tensor in stream.tensors:
        if tensor.role == "input" and tensor.name in inputs:
            found[tensor.name] = inputs[tensor.name].reshape(tensor.shape)
    return found


WORKLOADS = [
    "matmul m=300 n=700 k=260",
    "matmul m=131 n=67 k=257 ta=1",
    "matmul m=129 n=513 k=131 batch=2 tb=1 epilogue=scale,residual,relu",
    "matmul m=260 n=1100 k=140 ta=1 tb=1 epilogue=bias,gelu",
    "matmul m=1 n=1 k=1",
    "matmul m=200 n=37 k=64 dtype=bfloat16 epilogue=bias,hard_swish,leaky_relu,clip",
    "matmul m=64 n=600 k=384 dtype=bfloat16 tb=1 epilogue=silu,multiply",
    "matmul m=260 n=600 k=1536 epilogue=bias,relu",
    "matmul m=140 n=520 k=1050 batch=2 ta=1 dtype=bfloat16",
]


@pytest.mark.parametrize("text", WORKLOADS)
def test_default_configuration(text):
    workload = Workload.parse(text)
    check(workload, default_of(workload, TARGET))


@given(st.sampled_from(WORKLOADS), st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_sampled_configurations(text, seed):
    workload = Workload.parse(text)
    space = space_of(workload, TARGET)
    (config,) = space.sample(np.random.default_rng(seed))
    check(workload, config, seed)


@given(
    st.integers(1, 300), st.integers(1, 700), st.integers(1, 300),
    st.booleans(), st.booleans(), st.integers(0, 10_000),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_any_shape(m, n, k, ta, tb, seed):
    workload = Workload.parse(f"matmul m={m} n={n} k={k} ta={int(ta)} tb={int(tb)}")
    space = space_of(workload, TARGET)
    (config,) = space.sample(np.random.default_rng(seed))
    check(workload, config, seed)


UNEVEN_MEAN = "pool2d kind=average c=5 h=8 w=35 kh=3 kw=2 stride=2 pad=1 ceil=1"
OTHERS = [
    text
    for operator in (
        "elementwise",
        "softmax",
        "layer_norm",
        "rms_norm",
        "reduce",
        "conv2d",
        "depthwise_conv2d",
        "pool2d",
    )
    for text in template_of(operator).examples
    if Workload.parse(text).dtype in TOLERANCE and is_scheduled(Workload.parse(text), TARGET)
]


@pytest.mark.parametrize("text", OTHERS)
def test_every_operators_examples(text):
    workload = Workload.parse(text)
    check(workload, default_of(workload, TARGET))


@given(st.sampled_from([*OTHERS, *LARGER]), st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_other_operators_sampled(text, seed):
    workload = Workload.parse(text)
    space = space_of(workload, TARGET)
    (config,) = space.sample(np.random.default_rng(seed))
    check(workload, config, seed)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("window", ["kh=3 kw=3 stride=2 pad=1", "kh=2 kw=2 dilation=3 pad=1"])
def test_the_frame_of_a_maximum_of_whole_numbers_is_their_least(window, dtype):
    workload = Workload.parse(f"pool2d kind=max c=3 h=9 w=8 {window} dtype={dtype}")
    limits, rng = np.iinfo(dtype), np.random.default_rng(0)
    least = max(
        limits.min, -100
    )  # all below zero where there are such: a frame of zeros would show
    image = rng.integers(least, least + 90, (1, 3, 9, 8)).astype(dtype)
    size = workload.integer("kh")
    stride, dilation = (workload.shape(name)[0] for name in ("stride", "dilation"))
    framed = np.pad(image, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=limits.min)
    reach = (size - 1) * dilation + 1
    windows = np.lib.stride_tricks.sliding_window_view(framed, (reach, reach), axis=(2, 3))
    expected = windows[:, :, ::stride, ::stride, ::dilation, ::dilation].max(axis=(4, 5))
    for config in (default_of(workload, TARGET), *space_of(workload, TARGET).sample(rng, 2)):
        stream = instruction_stream(workload, TARGET, config)
        (got,) = execute(stream, physical(stream, workload, config, {"x": image})).values()
        np.testing.assert_array_equal(got.reshape(expected.shape), expected)


def test_means_of_uneven_windows_are_refused():
    with pytest.raises(WorkloadError, match="give count_include_pad=1, pad=0 or"):
        default_of(Workload.parse(UNEVEN_MEAN), TARGET)


def test_repeated_parts_of_an_epilogue_are_computed_once():
    workload = Workload.parse("matmul m=128 n=512 k=128 ta=1 epilogue=bias,gelu")
    default = default_of(workload, TARGET)
    stream = instruction_stream(workload, TARGET, Config.of({**default, "bias": "vector"}))
    ops = [instruction.op for instruction in stream]
    assert ops.count(Opcode.TENSOR_TENSOR) == 1  # the bias, though gelu reads its sum twice
    assert ops.count(Opcode.ACTIVATION) == 1


def test_configuration_that_overflows_sbuf_is_refused():
    workload = Workload.parse("matmul m=4096 n=12288 k=5120")
    config = Config.of(
        algorithm="tiled", outer="n", copies_outer=1, copies_inner=1, evacuate="scalar",
        turn="vector", load_tiles=2, m_tiles=8, n_tiles=8, stationary="a", group=1,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"bytes of SBUF a partition.* exceeds the limit"):
        instruction_stream(workload, TARGET, config)


FEW_CHANNELS = [
    "conv2d c=3 h=40 w=36 oc=20 kh=7 kw=7 stride=2 pad=3 const=weight epilogue=bias,relu",
    "conv2d n=2 c=4 h=30 w=33 oc=16 kh=3 kw=5 pad=1 const=weight dtype=bfloat16",
    "conv2d c=1 h=28 w=28 oc=6 kh=5 kw=5 pad=2 dilation=1x2 const=weight",
]


@given(st.sampled_from(FEW_CHANNELS), st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_kernel_columns_on_partitions(text, seed):
    workload = Workload.parse(text)
    space = space_of(workload, TARGET)
    drawn = space.sample(np.random.default_rng(seed), 40)
    check(workload, next(c for c in drawn if c["algorithm"] == "packed"), seed)


def test_a_first_layer_packs_columns_of_its_kernel():
    workload = Workload.parse("conv2d c=3 h=112 w=112 oc=64 kh=7 kw=7 stride=2 pad=3 const=weight")
    default = default_of(workload, TARGET)
    rows = [c for c in space_of(workload, TARGET).sample(np.random.default_rng(0), 200)
            if c["algorithm"] == "stacked" and c["copies"] == 2][:20]  # fmt: skip
    assert default["algorithm"] == "packed"
    packed = simulate(workload, TARGET, default, "timeline").latency_us
    assert packed < min(simulate(workload, TARGET, c, "timeline").latency_us for c in rows)


@pytest.mark.parametrize(
    "shape", ["c=32 h=2 w=2 kh=3 kw=3 pad=1", "n=2 c=64 h=3 w=1 kh=5 kw=5 pad=2"]
)
def test_images_too_low_to_copy_a_stack_from(shape):
    workload = Workload.parse(f"conv2d {shape} oc=32 const=weight epilogue=residual,silu")
    default = default_of(workload, TARGET)
    assert (default["algorithm"], default["stacker"]) == ("stacked", "vector")
    check(workload, default, 0)


MANY_CHANNELS = [
    "conv2d c=300 h=12 w=10 oc=140 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
    "conv2d n=2 c=260 h=9 w=11 oc=20 kh=3 kw=3 stride=2 pad=1 const=weight epilogue=residual",
    "conv2d c=400 h=7 w=7 oc=130 kh=1 kw=1 const=weight dtype=bfloat16",
]


@given(st.sampled_from(MANY_CHANNELS), st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_convolutions_of_many_channels_in_parts(text, seed):
    workload = Workload.parse(text)
    space = space_of(workload, TARGET)
    drawn = space.sample(np.random.default_rng(seed), 400)
    check(workload, next(c for c in drawn if c["algorithm"] == "parts"), seed)


@pytest.mark.parametrize("text", [MANY_CHANNELS[0], "conv2d c=64 h=28 w=28 oc=64 kh=3 kw=3 pad=1"])
def test_convolutions_in_the_smallest_memory(text, monkeypatch):
    monkeypatch.setitem(globals(), "TARGET", TARGET.with_settings({"sbuf.mib": "1"}))
    workload = Workload.parse(text)
    config = default_of(workload, TARGET)
    assert config["algorithm"] == "parts"
    check(workload, config)


def test_channels_beyond_sbuf_have_a_default():
    workload = Workload.parse("conv2d c=8192 h=14 w=14 oc=512 kh=3 kw=3 pad=1 const=weight")
    config = default_of(workload, TARGET)
    played = simulate(workload, TARGET, config, "timeline")
    assert config["algorithm"] == "parts"
    assert played.latency_us <= 1.6 * played.details["roofline_us"]


def test_a_convolution_whose_smallest_tile_cannot_fit():
    target = TARGET.with_settings({"sbuf.mib": "1"})
    workload = Workload.parse("conv2d c=3 h=224 w=224 oc=64 kh=7 kw=7 stride=2 const=weight")
    with pytest.raises(ConfigError, match=r"bytes of SBUF a partition.* exceeds the limit of 8192"):
        default_of(workload, target)


def test_a_reduction_too_deep_for_sbuf_is_done_in_parts(monkeypatch):
    small = load_target("trn1").with_settings({"sbuf.mib": "4"})
    monkeypatch.setitem(globals(), "TARGET", small)
    workload = Workload.parse("matmul m=100 n=72 k=5200")
    config = default_of(workload, small)
    assert config["algorithm"] == "split"
    check(workload, config)


def program(value, extent=4, read=4):
    x = Buffer("x", (as_expr(read),), "float32", "global", "input")
    y = Buffer("y", (as_expr(extent),), "float32", "global", "output")
    body = Loop("i", const(extent), "serial", Block("y", "y", (var("i"),), value))
    return Program("odd", (x, y), body)


def test_what_no_instruction_does_is_named(trn1: Core):
    choice = Select((var("i") - 1,), Load("x", (var("i"),)), Load("x", (var("i"),)))
    with pytest.raises(CodegenError, match="chooses by position"):
        generate(program(choice), trn1)
    with pytest.raises(CodegenError, match="not affine in loop 'i'"):
        generate(program(Load("x", (var("i") * var("i"),)), read=10), trn1)


def test_split_pipeline_needs_makers_and_users():
    assert split_pipeline(program(Load("x", (var("i"),))).body) == ([], [], [])


def functions_of(text: str) -> list[str]:
    """The names of a default schedule's elementwise instructions, loads and stores left out."""
    workload = Workload.parse(text)
    config = default_of(workload, TARGET)
    stream = instruction_stream(workload, TARGET, config)
    kinds = (
        Opcode.ACTIVATION,
        Opcode.TENSOR_TENSOR,
        Opcode.TENSOR_SCALAR,
        Opcode.SCALAR_TENSOR_TENSOR,
        Opcode.REDUCE,
    )
    return [i.op.name for i in stream if i.op in kinds]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("conv2d c=16 h=4 w=4 oc=16 kh=1 kw=1 epilogue=bias,relu", ["TENSOR_SCALAR"]),
        ("conv2d c=16 h=4 w=4 oc=16 kh=1 kw=1 epilogue=bias,residual", ["SCALAR_TENSOR_TENSOR"]),
        (
            "layer_norm shape=8x64",
            ["REDUCE", "TENSOR_SCALAR", "ACTIVATION", "ACTIVATION"] + 2 * ["SCALAR_TENSOR_TENSOR"],
        ),
        ("elementwise shape=4x64 expression=maximum(multiply(x0,2.0),0.5)", ["TENSOR_SCALAR"]),
    ],
)
def test_operations_join_in_one_instruction(text: str, wanted: list[str]) -> None:
    assert sorted(functions_of(text)) == sorted(wanted)


def test_means_of_narrow_elements_are_rounded_once() -> None:
    """Sums stay in fp32: a mean in bf16 is the exact mean, rounded."""
    workload = Workload.parse("pool2d kind=average c=5 h=7 w=7 global=1 dtype=bfloat16")
    config = default_of(workload, TARGET)
    x = np.random.default_rng(0).standard_normal((1, 5, 7, 7)).astype(to_numpy("bfloat16"))
    stream = instruction_stream(workload, TARGET, config)
    (found,) = execute(stream, {t.name: x.reshape(t.shape) for t in stream.tensors[:1]}).values()
    wanted = x.astype(np.float64).mean(axis=(2, 3)).astype(to_numpy("bfloat16"))
    np.testing.assert_array_equal(found.reshape(-1), wanted.reshape(-1))


SHORT_ROWS = [
    "reduce shape=2048x49 kind=mean axes=1",
    "reduce shape=300x7 kind=max axes=1 dtype=bfloat16",
    "reduce shape=96x5 axes=1",
    "reduce shape=64x40 axes=1 keepdims=0 epilogue=bias",
]


@pytest.mark.parametrize("text", SHORT_ROWS)
def test_short_rows_stand_beside_each_other(text):
    workload = Workload.parse(text)
    beside = {c.integer("beside"): c for c in space_of(workload, TARGET)}
    assert len(beside) > 3
    for config in beside.values():
        check(workload, config)
    least = [simulate(workload, TARGET, c, "timeline").latency_us for c in beside.values()]
    default = simulate(workload, TARGET, None, "timeline").latency_us
    assert default <= 1.1 * min(least)


def test_rows_that_use_their_number_stay_apart():
    workload = Workload.parse("reduce shape=2x11x40 axes=2 keepdims=0 epilogue=bias")
    space = space_of(workload, TARGET)
    assert {config["beside"] for config in space} == {1}


def test_few_channels_of_results_begin_where_engines_do():
    """20 filters folded: each output row's results begin at a multiple of 32 columns."""
    workload = Workload.parse("conv2d c=5 h=12 w=11 oc=20 kh=3 kw=3 pad=1 const=weight")
    space = space_of(workload, TARGET)
    folded = [s for s in space.subspaces if int(dict(s.fixed).get("fold", 1)) > 1]
    assert folded
    for subspace in folded[:: max(1, len(folded) // 4)]:
        (config,) = type(space)((subspace,)).sample(np.random.default_rng(0))
        check(workload, config)
