"""What a kernel's author is told: their own line, and what takes a memory that is full."""

from __future__ import annotations

import inspect
import itertools
import re

import numpy as np
import pytest

from tilesmith.families.trainium.codegen.isa.instructions import Space
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.search_space.support.errors import CodegenError, VerificationError


@pytest.fixture
def kernel(trn1):
    return Kernel("mine", trn1)


def marked(function, mark):
    """file:line of the line of `function` that ends in a comment `mark`."""
    lines, first = inspect.getsourcelines(function)
    (offset,) = [i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}")]
    return f"test_by_hand.py:{first + offset} (in {function.__name__})"


def wrong_engine(kernel):
    tile = kernel.sbuf((128, 4))
    kernel.reciprocal(tile, tile, engine="scalar")  # here


def wrong_slice(kernel):
    kernel.sbuf((128, 4))[:, 7]  # here


def wrong_tensor(kernel):
    kernel.input("x", (64, 4))
    kernel.input("x", (64, 4))  # here


def wrong_name(kernel):
    tile = kernel.sbuf((128, 4))
    kernel.activation(
        tile,
        "gleu",
        tile,
    )


def in_hbm(kernel):
    tile = kernel.sbuf((128, 4))
    kernel.copy(tile, kernel.input("x", (128, 4)))  # here


def the_wrong_way_round(kernel):
    tile = kernel.sbuf((128, 4))
    kernel.load(kernel.input("x", (128, 4)), tile)  # here


def buffers_for_a_tile(kernel):
    kernel.memset(kernel.buffers(2, (128, 4)), 0.0)  # here


def text_for_a_number(kernel):
    tile = kernel.sbuf((128, 4))
    kernel.tensor_scalar(tile, tile, "add", "1,5")  # here


def too_many_axes_of_a_permutation(kernel):
    kernel.input("x", (4, 8)).permute(0, 0)  # here


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (wrong_engine, "reciprocal does not run on engine 'scalar'"),
        (wrong_slice, "index 7 is outside axis 0 of 4"),
        (wrong_tensor, "two tensors named 'x'"),
        (in_hbm, "tensor 'x' is in HBM; load it"),
        (the_wrong_way_round, "a tensor of HBM is expected, not a Tile"),
        (buffers_for_a_tile, r"its next\(\) is a tile"),
        (text_for_a_number, "a scalar is a number or a tile .* not '1,5'"),
        (too_many_axes_of_a_permutation, "takes each of them once"),
    ],
)
def test_what_is_refused_at_once_names_the_line(kernel, write, message):
    with pytest.raises(CodegenError, match=message) as caught:
        write(kernel)
    assert str(caught.value).partition(": ")[0].endswith(marked(write, "here"))


def test_a_call_over_several_lines_is_named_by_one_of_them(kernel):
    with pytest.raises(CodegenError, match="unknown activation 'gleu'") as caught:
        wrong_name(kernel)
    lines, first = inspect.getsourcelines(wrong_name)
    found = re.match(r".*test_by_hand.py:(\d+) ", str(caught.value))
    assert found is not None and first + 2 <= int(found[1]) < first + len(lines)


def overlapping(kernel):
    one, two = kernel.sbuf((128, 4), address=0), kernel.sbuf((128, 4), address=8)
    kernel.memset(one, 0.0)
    kernel.memset(two, 0.0)  # here
    kernel.copy(one, one)


def unwritten(kernel):
    one, two = kernel.sbuf((128, 4)), kernel.sbuf((128, 4))
    kernel.tensor_tensor(one, two, "add", two)  # here
    kernel.memset(two, 0.0)


def unstored(kernel):
    kernel.output("y", (128, 4))  # here


def interleaved(kernel):
    tiles = [kernel.sbuf((128, 4)) for _ in range(6)]
    for tile in tiles:
        kernel.memset(tile, 1.0)
    for tile in tiles:
        kernel.copy(tile[:, 1:], tile[:, 0:2])  # here
    kernel.interleave(0)


@pytest.mark.parametrize("write", [overlapping, unwritten, unstored, interleaved])
def test_what_verification_finds_names_the_line(kernel, write):
    write(kernel)
    with pytest.raises(VerificationError) as caught:
        kernel.finish()
    assert str(caught.value).partition(": ")[0].endswith(marked(write, "here"))


def test_a_full_memory_is_told_tile_by_tile(kernel):
    bias = kernel.sbuf((128, 1024), name="bias")
    kernel.buffers(4, (128, 10_000), name="rows")
    with pytest.raises(CodegenError) as caught:
        kernel.sbuf((128, 20_000), "bfloat16", name="more")
    text = str(caught.value)
    capacity = kernel.core.sbuf_bytes
    assert f"needs 40000 bytes a partition of SBUF, which has {capacity} with 164096 in" in text
    assert "(128, 20000) bfloat16" in text
    lines = text.splitlines()
    assert "4 tiles of 40000 bytes, partitions 0 to 127: 'rows0' to 'rows3'" in lines[1]
    assert "4096 bytes from byte 0, partitions 0 to 127: 'bias' (128, 1024) float32" in lines[2]
    assert all("test_by_hand.py:" in line for line in (text, *lines[1:3]))
    kernel.free(bias)
    kernel.sbuf((128, 1000), name="again")


def test_tiles_of_one_partition_take_a_quarter(kernel):
    """Four times as many as tiles of all partitions; each byte of a partition belongs to one."""
    amount = kernel.core.sbuf_bytes // 2
    tiles = [kernel.sbuf((1, amount // 4)) for _ in range(8)]
    assert sorted({tile.partition for tile in tiles}) == [0, 32, 64, 96]
    places = [(t.partition, t.offset) for t in tiles]
    assert len(set(places)) == 8
    with pytest.raises(CodegenError, match="partitions 0 and 32 and 64") as caught:
        kernel.sbuf((1, 64))
    assert "engines begin at partitions 0, 32, 64 and 96 alone" in str(caught.value)
    kernel.free(tiles[3])
    assert (kernel.sbuf((1, 64)).partition, kernel.free(*tiles[4:])) == (tiles[3].partition, None)


def test_a_tile_that_no_memory_holds_is_told_at_once(kernel):
    with pytest.raises(CodegenError, match=r"in test_a_.*129 partitions from partition 0 on"):
        kernel.sbuf((129, 4))
    with pytest.raises(CodegenError, match="64 partitions from partition 96 on"):
        kernel.psum((64, 4), partition=96)
    with pytest.raises(CodegenError, match="nothing is beside it\ngive tiles back"):
        kernel.sbuf((128, 10**6))


@pytest.mark.parametrize("wrong", ["a", None])
def test_what_instructions_hold_are_numbers(kernel, wrong):
    tile = kernel.sbuf((128, 4))
    for write in (kernel.memset, lambda t, value: kernel.select(t, t, 0, 1, 1, value)):
        with pytest.raises(CodegenError, match="number"):
            write(tile, wrong)
    with pytest.raises(CodegenError, match="not a tile"):
        kernel.memset(tile, tile)


def test_a_tile_stands_where_it_is_wanted_beside_others(kernel):
    everywhere = kernel.sbuf((128, 1024))
    low, high = kernel.sbuf((64, 1024)), kernel.sbuf((64, 1024), partition=64)
    assert (low.partition, high.partition, low.offset) == (0, 64, high.offset)
    assert low.offset >= everywhere.offset + 4096
    assert kernel.psum((32, 512), partition=96).partition == 96


def test_what_stands_in_quarters_computes(kernel):
    """Eight rows in as many tiles that fill SBUF but for these: each is doubled in its place."""
    x, y = kernel.input("x", (8, 64)), kernel.output("y", (8, 64))
    kernel.sbuf((128, kernel.core.sbuf_bytes // 4 - 128), name="everything else")
    tiles = [kernel.sbuf((1, 64)) for _ in range(8)]
    for i, tile in enumerate(tiles):
        kernel.load(tile, x[i : i + 1])
    for i, tile in enumerate(tiles):
        kernel.tensor_tensor(tile, tile, "add", tile)
        kernel.store(y[i : i + 1], tile)
    given = np.arange(512, dtype=np.float32).reshape(8, 64)
    assert {tile.partition for tile in tiles} == {0, 32, 64, 96}
    np.testing.assert_array_equal(execute(kernel.finish(), {"x": given})["y"], 2 * given)
    schedule = kernel.finish(schedule=True)
    np.testing.assert_array_equal(execute(schedule, {"x": given})["y"], 2 * given)


INDICES = [
    -1, 0, -4, slice(-3, None), slice(None, -1), slice(-3, -1), slice(None, None, -1),
    slice(None, None, -2), np.int64(-2), ..., (..., -1), (-1, ...), (slice(-2, None), -3),
    (slice(1, 3), ..., slice(None, -2)),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES)
def test_views_of_hbm_are_numpys(kernel, index):
    array = np.arange(4 * 6 * 5).reshape(4, 6, 5)
    view = kernel.input("x", array.shape)[index]
    wanted = array[index]
    assert view.shape == wanted.shape
    steps = itertools.product(*(range(n) for n in view.shape))
    found = [
        view.offset + sum(i * s for i, (_, s) in zip(at, view.dims, strict=True)) for at in steps
    ]
    assert found == wanted.reshape(-1).tolist()


@pytest.mark.parametrize("index", [-1, (-32, -1), (slice(-64, -32), slice(-3, None)), (..., -2)])
def test_views_of_tiles_are_numpys(kernel, index):
    array = np.arange(128 * 6).reshape(128, 6)
    tile = kernel.sbuf(array.shape)
    view = tile[index]
    parts = index if isinstance(index, tuple) else (index,)
    parts = tuple(slice(i, i + 1 or None) if isinstance(i, int) else i for i in parts)
    wanted = array[parts]
    assert view.partitions == wanted.shape[0]
    start = view.partition * 6 + (view.offset - tile.offset) // 4
    assert start == wanted.reshape(-1)[0]
    count = int(np.prod([n for n, _ in view.dims]))
    assert count == wanted[0].size and view.space == Space.SBUF


def test_axes_may_count_from_the_end(kernel):
    view = kernel.input("x", (4, 6, 10))
    assert view.permute(-1, 0, 1).shape == (10, 4, 6)
    assert view.split(-1, 2, 5).shape == (4, 6, 2, 5)
    tile = kernel.sbuf((128, 6, 10))
    assert tile.permute(-1, 1).shape == (128, 10, 6)
    assert tile.split(-1, 2, 5).shape == (128, 6, 2, 5)
