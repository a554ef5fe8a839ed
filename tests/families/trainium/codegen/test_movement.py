"""Data movement on the core: drawn shapes against numpy, pieces of constant stride, DMA rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.accelerator_checks import TARGET, check
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.families.kit.programs.strides import boxes, cut
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.timing.costs import contiguous_runs, costs
from tilesmith.families.trainium.simulator.skeletons import instruction_stream, staged_stream
from tilesmith.search_space.expressions.expression import Expr, const, maximum, minimum, var
from tilesmith.search_space.expressions.scalar import Load, Select
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError
from tilesmith.search_space.workloads.workload import Workload, shape_text
from tilesmith.simulator import simulate

CORE = Core.of(load_target("trn1"))
EXTENTS = st.sampled_from([1, 2, 3, 7, 19, 64, 131])
DTYPES = st.sampled_from(["float32", "bfloat16", "int64"])


def check_sampled(text: str, seed: int) -> None:
    workload = Workload.parse(text)
    rng = np.random.default_rng(seed)
    (config,) = space_of(workload, TARGET).sample(rng)
    check(workload, config, rng)


@given(st.lists(EXTENTS, min_size=1, max_size=4), DTYPES, st.data(), st.integers(0, 999))
@settings(max_examples=12, deadline=None)
def test_transposes(shape, dtype, data, seed):
    perm = data.draw(st.permutations(range(len(shape))))
    check_sampled(
        f"transpose shape={shape_text(shape)} perm={shape_text(perm)} dtype={dtype}", seed
    )


@given(st.lists(EXTENTS, min_size=1, max_size=3), DTYPES, st.data(), st.integers(0, 999))
@settings(max_examples=12, deadline=None)
def test_slices(shape, dtype, data, seed):
    starts, sizes, steps = [], [], []
    for extent in shape:
        step = data.draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        start = data.draw(st.integers(0, extent - 1))
        most = (extent - 1 - start) // step + 1 if step > 0 else start // -step + 1
        starts.append(start)
        steps.append(step)
        sizes.append(data.draw(st.integers(1, most)))
    words = (shape_text(shape), shape_text(starts), shape_text(sizes), shape_text(steps))
    check_sampled(
        "slice shape={} starts={} sizes={} steps={}".format(*words) + f" dtype={dtype}", seed
    )


@given(
    st.lists(st.tuples(st.sampled_from([2, 5, 19, 64]), st.integers(0, 3), st.integers(0, 3)),
             min_size=1, max_size=3),
    st.sampled_from(["constant", "edge", "reflect"]), st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_padding(axes, mode, seed):
    axes = [(n, min(b, n - 1), min(a, n - 1)) for n, b, a in axes]
    shape, before, after = (shape_text(part) for part in zip(*axes, strict=True))
    check_sampled(f"pad shape={shape} before={before} after={after} mode={mode} value=2", seed)


def test_the_default_transpose_turns_on_the_tensor_engine():
    workload = Workload.parse("transpose shape=512x768 perm=1x0")
    config = default_of(workload, TARGET)
    stream = instruction_stream(workload, TARGET, config)
    assert int((stream.rows["op"] == Opcode.TRANSPOSE).sum()) == 4 * 6
    result = simulate(workload, TARGET, config, "timeline")
    assert result.latency_us <= 2 * result.details["roofline_us"]


@pytest.mark.parametrize(
    "text",
    [
        "concat shape=1x256x28x28 axis=1 parts=128x128",
        "slice shape=1x128x56x56 starts=0x64x0x0 sizes=1x64x56x56",
        "pad shape=1x64x56x56 before=0x0x1x1 after=0x0x1x1",
        "resize shape=1x64x28x28 sizes=1x64x56x56",
    ],
)
def test_default_movements_are_within_twice_the_roofline(text):
    result = simulate(Workload.parse(text), TARGET, None, "timeline")
    assert result.latency_us <= 2 * result.details["roofline_us"]


# -- pieces of constant stride ------------------------------------------------------------------
def functions() -> st.SearchStrategy[Expr]:
    i = var("i")
    return st.one_of(
        st.builds(lambda a, b, c: (i * a + b) // c, *(st.integers(1, 5),) * 3),
        st.builds(lambda a, b: minimum(maximum(i - a, 0), b), st.integers(0, 4), st.integers(0, 9)),
        st.builds(lambda a, b: (i + a) % b, st.integers(0, 4), st.integers(1, 5)),
        st.builds(lambda a: maximum(i - a, const(a) - i), st.integers(0, 6)),
    )


@given(functions(), functions(), st.integers(1, 40))
def test_pieces_cover_a_loop_once_at_constant_strides(index, flag, size):
    places = {"i": np.arange(size)}
    rows = [np.broadcast_to(e.evaluate(places), (size,)) for e in (flag, index)]
    table = np.stack([(rows[0] >= 2).astype(np.int64), rows[1].astype(np.int64)])
    seen = []
    for piece in cut(table, 1):
        steps = piece.first + piece.step * np.arange(piece.count)
        seen += steps.tolist()
        part = table[:, steps]
        assert (part[0] == part[0, 0]).all()
        assert len(set(np.diff(part[1]).tolist())) <= 1
    assert sorted(seen) == list(range(size))


def test_interleaved_pieces_are_found():
    doubled = Load("x", (var("i") // 2,))
    assert boxes(doubled, {"i": 40}) == 2
    framed = Select((var("i") - 1, const(4) - var("i")), Load("x", (var("i") - 1,)), doubled)
    assert boxes(framed, {"i": 6}) >= 3
    assert boxes(Load("x", (var("i") * 3 + 1,)), {"i": 40}) == 1


# -- DMA ----------------------------------------------------------------------------------------
def transfer(strided: bool) -> float:
    """DMA time of [128, 64] elements into a tile, along its rows or across them."""
    kernel = Kernel("load", CORE)
    x, tile = kernel.input("x", (128, 8, 8)), kernel.sbuf((128, 8, 8))
    kernel.load(tile.permute(2, 1) if strided else tile, x)
    return float(costs(kernel.finish()).dma_work.sum())


def test_scattered_elements_cost_a_row_each():
    assert transfer(strided=True) > 20 * transfer(strided=False)


def test_runs_end_with_their_partition():
    """[128, 64] from one contiguous block is 128 buffers (A1), as from rows that lie apart."""
    kernel = Kernel("load", CORE)
    x, wide = kernel.input("x", (128, 64)), kernel.input("wide", (128, 640))
    for source in (x, wide[:, :64], wide[:2].split(1, 10, 64).permute(1, 0, 2)[0]):
        kernel.load(kernel.sbuf(source.shape), source)
    stream = kernel.finish()
    runs, length = contiguous_runs(stream, stream.rows["in0"])
    assert runs.tolist() == [128, 128, 2] and length.tolist() == [256] * 3
    one, two, _ = costs(stream).dma_work
    assert one == two == pytest.approx(8 * (256 + CORE.dma_row_overhead) / CORE.dma_bytes_per_ns)


def test_indices_outside_fp32_are_refused():
    workload = Workload.parse("gather shape=17000000x1 indices=3")
    config = default_of(workload, TARGET)
    with pytest.raises(CodegenError, match="picks from 17000000 rows"):
        instruction_stream(workload, TARGET, config)


@pytest.mark.parametrize("text", [
    "slice shape=1x64x56x56 starts=0x0x0x0 sizes=1x64x28x28 steps=1x1x2x2",
    "slice shape=1x64x56x56 starts=0x0x1x1 sizes=1x64x28x28 steps=1x1x2x2",
])  # fmt: skip
def test_strided_slices_load_whole_rows(text):
    """In full rows, not in one for each row of the image, whose ends strides leave out."""
    workload = Workload.parse(text)
    default = default_of(workload, TARGET)
    assert default["algorithm"] != "direct"
    stream = instruction_stream(workload, TARGET, default)
    loads = stream.rows["op"] == Opcode.LOAD
    assert costs(stream).bytes[loads].sum() >= 0.95 * 4 * np.prod(workload.shape("shape"))
    found = simulate(workload, TARGET, None, "timeline")
    assert found.latency_us <= 3 * found.details["roofline_us"]


@pytest.mark.parametrize("block", [1, 2, 4, 8])
def test_blocks_wholly_in_the_padding(block):
    """A block's frame ends with the block, however far off the inside is."""
    workload = Workload.parse("pad shape=2x21x3 before=0x2x0 after=0x2x0 value=7 dtype=int64")
    config = Config.of(algorithm="direct", at=0, block=block, copies=2, rows="0")
    check(workload, config, np.random.default_rng(0))


def test_a_large_transfer_is_cut_into_pieces_not_into_rows():
    """64 x 111 x 111 numbers of two bytes are a little more than the 1 MiB of one transfer."""
    target = load_target("trn1")
    workload = Workload.parse("pool2d kind=max c=64 h=111 w=111 kh=3 kw=3 stride=2 dtype=bfloat16")
    config = Config.of({"algorithm": "windows", "copies": 2, "rows": 55})
    stream = staged_stream(workload, target, config)
    loads = stream.rows["op"] == Opcode.LOAD
    assert loads.sum() == 2
