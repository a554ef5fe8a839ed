"""Every kind of step, placed, proved and played against numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.families.lpu.codegen.chains import chip
from tilesmith.families.lpu.codegen.dataflow import (
    Chain,
    ChainBuilder,
    Dataflow,
    Operation,
    Receive,
    Rows,
    VectorTensor,
)
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.families.lpu.simulator.execution.functional import ChipRun, execute
from tilesmith.search_space.support.errors import InputError, NoRoomError, VerificationError

RNG = np.random.default_rng(3)


def played(
    tensors: Sequence[VectorTensor],
    chains: Sequence[Chain],
    received: dict[int, list[Any]] | None = None,
    **contents: NDArray[Any],
) -> ChipRun:
    flow = Dataflow("steps", {tensor.name: tensor for tensor in tensors}, tuple(chains))
    placed = schedule(flow, chip())
    return execute(placed, contents, received, check(placed))


def numbers(rows: int, dtype: str = "int8") -> NDArray[Any]:
    return RNG.integers(-100, 100, (rows, 320)).astype(dtype)


def test_lanes_are_moved() -> None:
    x, lanes = numbers(20, "float16"), RNG.permutation(320)
    spread = np.array([16 * (lane // 16) + 3 for lane in range(320)])
    b, c = ChainBuilder("permute", 20), ChainBuilder("distribute", 20)
    for builder, kind, how, out in ((b, "permute", lanes, "y"), (c, "distribute", spread, "z")):
        moved = builder.shuffle(kind, builder.read(Rows.of("x", 0, (20, 1))), how.tolist())  # type: ignore[arg-type]
        builder.write(moved, Rows.of(out, 0, (20, 1)))
    tensors = [
        VectorTensor("x", 20, "float16", "input"),
        VectorTensor("y", 20, "float16", "output"),
        VectorTensor("z", 20, "float16", "output"),
    ]
    found = played(tensors, [b.chain(), c.chain()], x=x).tensors
    np.testing.assert_array_equal(found["y"], x[:, lanes])
    np.testing.assert_array_equal(found["z"], x[:, spread])


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_sixteen_rows_are_transposed(dtype: str) -> None:
    x = numbers(48, dtype)
    b = ChainBuilder("transpose", 3)
    rows = [b.read(Rows.of("x", i, (3, 16))) for i in range(16)]
    for j, value in enumerate(b.transpose(rows)):
        b.write(value, Rows.of("y", j, (3, 16)))
    tensors = [
        VectorTensor("x", 48, dtype, "input", stripes=16),
        VectorTensor("y", 48, dtype, "output", stripes=16),
    ]
    found = played(tensors, [b.chain()], x=x).tensors["y"]
    blocks = x.reshape(3, 16, 20, 16)
    np.testing.assert_array_equal(found, blocks.transpose(0, 3, 2, 1).reshape(48, 320))


def test_rows_are_gathered() -> None:
    table, index = numbers(50, "float16"), RNG.integers(0, 40, (9, 320)).astype(np.int32)
    b = ChainBuilder("gather", 9)
    picked = b.gather("t", b.read(Rows.of("i", 0, (9, 1))), 40, 10)
    b.write(b.compute((picked,), Operation("negate", (0,), "float16")), Rows.of("y", 0, (9, 1)))
    tensors = [
        VectorTensor("t", 50, "float16", "constant"),
        VectorTensor("i", 9, "int32", "input"),
        VectorTensor("y", 9, "float16", "output"),
    ]
    found = played(tensors, [b.chain()], t=table, i=index).tensors["y"]
    np.testing.assert_array_equal(found, -table[10 + index[:, 0]])
    with pytest.raises(VerificationError, match="of a table of 40 rows"):
        played(tensors, [b.chain()], t=table, i=index + 40)


def test_products_in_series_and_weights_made_on_the_chip() -> None:
    x, w = numbers(12), numbers(64)
    first = ChainBuilder("weights", 64)
    doubled = first.compute(
        (first.read(Rows.of("w", 0, (64, 1))),),
        Operation("negate", (0,), "int32"),
        Operation("convert", (1,), "int8"),
    )
    first.write(doubled, Rows.of("v", 0, (64, 1)))
    second = ChainBuilder("series", 12)
    whole = Rows.of("x", 0, (12, 1))
    once = second.product(second.read(whole), Rows.of("v", 0, (64, 1)), 320)
    twice = second.product(second.read(whole), Rows.of("w", 10, (50, 1)), 100, once)
    second.write(twice, Rows.of("y", 0, (12, 1)))
    tensors = [
        VectorTensor("x", 12, "int8", "input"),
        VectorTensor("w", 64, "int8", "constant"),
        VectorTensor("v", 64, "int8"),
        VectorTensor("y", 12, "int32", "output"),
    ]
    found = played(tensors, [first.chain(), second.chain()], x=x, w=w).tensors["y"]
    wide = x.astype(np.int64)
    expected = np.zeros((12, 320), np.int64)
    expected[:, :64] = wide @ -w.astype(np.int64).T
    expected[:, :50] += wide[:, :100] @ w[10:60, :100].astype(np.int64).T
    np.testing.assert_array_equal(found, expected)


def test_two_products_tap_one_stream() -> None:
    x, w = numbers(30), numbers(640)
    b = ChainBuilder("both", 30)
    moving = b.read(Rows.of("x", 0, (30, 1)))
    for half in range(2):
        value = b.product(moving, Rows.of("w", 320 * half, (320, 1)), 320)
        b.write(value, Rows.of("y", 30 * half, (30, 1)))
    tensors = [
        VectorTensor("x", 30, "int8", "input"),
        VectorTensor("w", 640, "int8", "constant"),
        VectorTensor("y", 60, "int32", "output", 30),
    ]
    found = played(tensors, [b.chain()], x=x, w=w).tensors["y"]
    expected = x.astype(np.int64) @ w.astype(np.int64).T
    np.testing.assert_array_equal(found, np.concatenate([expected[:, :320], expected[:, 320:]]))


def test_states_change_in_program_order() -> None:
    x, cache = numbers(4, "float32"), numbers(40, "float32")
    chains = []
    for turn in range(3):
        b = ChainBuilder(f"append {turn}", 4)
        rows = b.read(Rows.of("x", 0, (4, 1)))
        scaled = b.compute((rows,), Operation("multiply", (0, -1), "float32", turn + 1.0))
        b.write(scaled, Rows.of("cache", 5 * turn, (4, 1)))
        c = ChainBuilder(f"use {turn}", 20)
        c.write(c.read(Rows.of("cache", 0, (20, 1))), Rows.of("y", 20 * turn, (20, 1)))
        chains += [b.chain(), c.chain()]
    tensors = [
        VectorTensor("x", 4, "float32", "input"),
        VectorTensor("cache", 40, "float32", "state"),
        VectorTensor("y", 60, "float32", "output", 20),
    ]
    found = played(tensors, chains, x=x, cache=cache).tensors
    expected, parts = cache.copy(), []
    for turn in range(3):
        expected[5 * turn : 5 * turn + 4] = x * (turn + 1.0)
        parts.append(expected[:20].copy())
    np.testing.assert_array_equal(found["y"], np.concatenate(parts))
    np.testing.assert_array_equal(found["cache"], expected)


def test_results_go_both_ways() -> None:
    x = numbers(25, "int32")
    b, c = ChainBuilder("halves", 25), ChainBuilder("again", 25)
    half = b.compute((b.read(Rows.of("x", 0, (25, 1))),), Operation("abs", (0,), "int32"))
    b.write(half, Rows.of("t", 0, (25, 1)))
    both = c.read(Rows.of("t", 0, (25, 1))), c.read(Rows.of("t", 24, (25, -1)))
    c.write(c.compute(both, Operation("add", (0, 1), "int32")), Rows.of("y", 0, (25, 1)))
    tensors = [
        VectorTensor("x", 25, "int32", "input"),
        VectorTensor("t", 25, "int32", copies=2),
        VectorTensor("y", 25, "int32", "output"),
    ]
    found = played(tensors, [b.chain(), c.chain()], x=x).tensors["y"]
    np.testing.assert_array_equal(found, np.abs(x) + np.abs(x)[::-1])


def test_vectors_cross_links() -> None:
    x = numbers(6, "float16")
    sends, takes = ChainBuilder("send", 6), ChainBuilder("receive", 6, not_before=300)
    sends.send(sends.read(Rows.of("x", 0, (6, 1))), 3)
    takes.write(takes.add(Receive("float16", 12)), Rows.of("y", 0, (6, 1)))
    tensors = [VectorTensor("x", 6, "float16", "input"), VectorTensor("y", 6, "float16", "output")]
    chains = [sends.chain(), takes.chain()]
    found = played(tensors, chains, {12: [x[::-1].copy()]}, x=x)
    np.testing.assert_array_equal(found.sent[3][0], x)
    np.testing.assert_array_equal(found.tensors["y"], x[::-1])
    with pytest.raises(InputError, match="receives 6 vectors on link 12"):
        played(tensors, chains, {}, x=x)


def test_what_does_not_fit_is_said() -> None:
    b = ChainBuilder("copy", 1)
    b.write(b.read(Rows.of("x", 0, (1, 1))), Rows.of("y", 0, (1, 1)))
    small = chip(mem__words=64)
    tensors = {
        "x": VectorTensor("x", 6000, "int32", "input", 30),
        "y": VectorTensor("y", 1, "int32", "output"),
    }
    schedule(Dataflow("fits", tensors, (b.chain(),)), small)
    tensors["x"] = VectorTensor("x", 60, "int32", "input", 60)
    with pytest.raises(NoRoomError, match="a block of 60 rows does not fit a bank of 32 words"):
        schedule(Dataflow("block", tensors, (b.chain(),)), small)
    chains = []
    for block in range(60):
        c = ChainBuilder(f"copy {block}", 30)
        c.write(c.read(Rows.of("x", 30 * block, (30, 1))), Rows.of("y", 30 * block, (30, 1)))
        chains.append(c.chain())
    tensors = {
        "x": VectorTensor("x", 1800, "int32", "input", 30),
        "y": VectorTensor("y", 1800, "int32", "output", 30),
    }
    with pytest.raises(NoRoomError, match="on several chips") as full:
        schedule(Dataflow("full", tensors, tuple(chains)), small)
    assert full.value.exit_code == 2


def test_rows_on_one_slice_are_copied_where_a_chain_needs_both() -> None:
    x = numbers(40, "int32")
    b, c = ChainBuilder("absolute", 40), ChainBuilder("pairs", 20)
    b.write(
        b.compute((b.read(Rows.of("x", 0, (40, 1))),), Operation("abs", (0,), "int32")),
        Rows.of("t", 0, (40, 1)),
    )
    pair = c.read(Rows.of("t", 0, (20, 2))), c.read(Rows.of("t", 1, (20, 2)))
    c.write(c.compute(pair, Operation("add", (0, 1), "int32")), Rows.of("y", 0, (20, 1)))
    tensors = [
        VectorTensor("x", 40, "int32", "input"),
        VectorTensor("t", 40, "int32"),
        VectorTensor("y", 20, "int32", "output"),
    ]
    found = played(tensors, [b.chain(), c.chain()], x=x).tensors["y"]
    np.testing.assert_array_equal(found, np.abs(x)[::2] + np.abs(x)[1::2])
