"""Schedules keep the laws and compute what numpy does."""

import numpy as np
import pytest

from tests.families.lpu.codegen.chains import chip, matmul
from tilesmith.families.lpu.codegen.dataflow import (
    ChainBuilder,
    Dataflow,
    Operation,
    Read,
    Rows,
    VectorTensor,
)
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule
from tilesmith.families.lpu.codegen.isa.storage import from_bytes, to_bytes
from tilesmith.families.lpu.codegen.isa.text import to_text
from tilesmith.families.lpu.codegen.scheduling import scheduler
from tilesmith.families.lpu.codegen.scheduling.copies import ClashError, with_copy
from tilesmith.families.lpu.codegen.scheduling.resources.board import Board
from tilesmith.families.lpu.codegen.scheduling.resources.memory import ChipMemory
from tilesmith.families.lpu.codegen.scheduling.scheduler import SchedulerOptions, ordered, schedule
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.families.lpu.simulator.execution.functional import execute
from tilesmith.search_space.support.errors import ModelError, NoRoomError


@pytest.mark.parametrize("dtype", ["int8", "float16"])
@pytest.mark.parametrize("shape", [(1, 16, 16), (33, 330, 700), (70, 640, 1290)])
def test_a_matmul_is_numpy_s(dtype: str, shape: tuple[int, int, int]) -> None:
    flow, contents, expected = matmul(*shape, dtype)
    placed = schedule(flow, chip())
    found = execute(placed, contents, matching=check(placed)).tensors["y"]
    tolerance = 0 if dtype == "int8" else 2e-5
    np.testing.assert_allclose(found, expected["y"], rtol=0, atol=tolerance * np.sqrt(shape[2]))


def test_chains_in_program_order() -> None:
    flow, contents, expected = matmul(40, 320, 960, "int8")
    placed = schedule(flow, chip(), SchedulerOptions("program"))
    check(placed)
    np.testing.assert_array_equal(execute(placed, contents).tensors["y"], expected["y"])


def test_a_schedule_goes_to_bytes_and_back() -> None:
    placed = schedule(matmul(20, 320, 330, "float16")[0], chip())
    code = to_bytes(placed)
    again = from_bytes(code, placed.chip)
    assert to_bytes(again) == code
    assert to_text(again) == to_text(placed)
    assert again.units == placed.units
    with pytest.raises(ModelError, match="damaged"):
        from_bytes(code[:-1], placed.chip)
    with pytest.raises(ModelError, match="damaged"):
        from_bytes(code[10:], placed.chip)


def test_rows_below_zero_are_a_frame_or_zeros() -> None:
    x = np.random.default_rng(1).integers(-9, 9, (20, 320)).astype(np.int32)
    frame = np.full((1, 320), 7, np.int32)
    numbers = np.array([-1, 0, 1, 2, -1, -1, 10, 11, 19, -1])
    tensors = {
        "x": VectorTensor("x", 20, "int32", "input"),
        "f": VectorTensor("f", 1, "int32", "constant"),
        "y": VectorTensor("y", 10, "int32", "output"),
    }
    b = ChainBuilder("framed", 10)
    parts = b.read(Rows("x", numbers), "f"), b.read(Rows("x", numbers[::-1].copy()))
    b.write(b.compute(parts, Operation("add", (0, 1), "int32")), Rows.of("y", 0, (10, 1)))
    flow = Dataflow(
        "frames", tensors | {"x": VectorTensor("x", 20, "int32", "input", copies=2)}, ()
    )
    placed = schedule(Dataflow("frames", flow.tensors, (b.chain(),)), chip())
    found = execute(placed, {"x": x, "f": frame}, matching=check(placed)).tensors["y"]
    inside = (numbers >= 0)[:, None]
    expected = np.where(inside, x[numbers], 7) + np.where(inside, x[numbers], 0)[::-1]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("readers, homes", [(1, 1), (2, 4)])
def test_bytes_that_several_chains_read_have_several_homes(readers: int, homes: int) -> None:
    x = np.random.default_rng(3).integers(-9, 9, (20, 320)).astype(np.int8)
    rows = (20, 1)
    tensors = {"x": VectorTensor("x", 20, "int8", "input"), "t": VectorTensor("t", 20, "int8")}
    chains = []
    for number in range(1 + readers):
        source, name = ("t", f"y{number}") if number else ("x", "t")
        b = ChainBuilder(f"copy {number}", 20)
        b.write(b.read(Rows.of(source, 0, rows)), Rows.of(name, 0, rows))
        chains.append(b.chain())
        tensors.setdefault(name, VectorTensor(name, 20, "int8", "output"))
    placed = schedule(Dataflow("often", tensors, tuple(chains)), chip())
    found = execute(placed, {"x": x}, matching=check(placed)).tensors
    assert all((found[f"y{number}"] == x).all() for number in range(1, 1 + readers))
    writes = placed.table[(placed.table["op"] == BurstOp.WRITE) & (placed.table["chain"] == 0)]
    assert len({(row["queue"], row["bank"]) for row in writes}) == homes


def test_a_tensor_of_more_blocks_than_slices_is_read_in_any_order() -> None:
    """Blocks that one chain reads in turns lie on slices of their own; a copy is one block."""
    count, each = 208, 8
    x = np.random.default_rng(2).standard_normal((count, 320)).astype(np.float16)
    order = np.arange(count).reshape(-1, each).T.reshape(-1)
    tensors = {
        "x": VectorTensor("x", count, "float16", "input"),
        "t": VectorTensor("t", count, "float16", block=each),
        "y": VectorTensor("y", count, "float16", "output"),
    }
    first, second = ChainBuilder("blocks", count), ChainBuilder("turns", count)
    first.write(first.read(Rows.of("x", 0, (count, 1))), Rows.of("t", 0, (count, 1)))
    second.write(second.read(Rows("t", order)), Rows.of("y", 0, (count, 1)))
    flow = Dataflow("turns", tensors, (first.chain(), second.chain()))
    placed = schedule(flow, chip())
    found = execute(placed, {"x": x}, matching=check(placed)).tensors["y"]
    np.testing.assert_array_equal(found, x[order])


def test_words_used_before_are_written_when_their_last_reader_is_done() -> None:
    """By each of the chains that write a block, not only by the one that it was placed for."""
    memory = ChipMemory(chip())
    (first,), _ = memory.choose([0], 1, 8, True, lambda *_: [(10, 8)], lambda _: 0)
    memory.take([first])
    memory.give([first], 100)
    (again,), _ = memory.choose([0], 1, 4, True, lambda *_: [(120, 4)], lambda _: 0)
    assert (again.address, again.since) == (first.address, 100)


def test_large_tensors_are_copied_in_blocks_that_find_room() -> None:
    """A block of a bank's words finds none where a word of every bank is taken."""
    rows = chip().bank_words + 5
    b = ChainBuilder("pass", rows)
    b.write(b.read(Rows.of("x", 0, (rows, 1))), Rows.of("y", 0, (rows, 1)))
    tensors = {
        n: VectorTensor(n, rows, "int8", r, 4096) for n, r in (("x", "input"), ("y", "output"))
    }
    chain = b.chain()
    board = Board.of(Dataflow("large", tensors, (chain,)), chip())
    copying, reading, name = with_copy(board, chain, ClashError("pass", "x", 0, False), 0)
    layout = board.layouts[name]
    assert layout.tensor.rows == rows and layout.block < chip().bank_words / 2
    assert [len(step.rows) for step in copying.steps if isinstance(step, Read)] == [rows]
    assert [s.rows.tensor for s in reading.steps if isinstance(s, Read)] == [name]


def test_constants_come_first_where_temporaries_leave_them_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Words that a temporary had are no use to a constant, which is there from the start."""
    flow, contents, expected = matmul(40, 320, 960, "int8")
    run, tried = scheduler._Scheduler.run, list[SchedulerOptions]()

    def limited(self: scheduler._Scheduler) -> BurstSchedule:
        tried.append(self.options)
        placed = {name for name, _, _ in self.board.homes}
        if "w" not in placed:
            raise NoRoomError("no words that nobody wrote are left")
        return run(self)

    monkeypatch.setattr(scheduler._Scheduler, "run", limited)
    placed, again = ordered(flow, chip(), SchedulerOptions())
    assert [way.constants_first for way in tried] == [False, True]
    np.testing.assert_array_equal(execute(placed, contents).tensors["y"], expected["y"])
    assert to_bytes(ordered(flow, chip(), again)[0]) == to_bytes(placed) and len(tried) == 3


def test_what_no_order_has_room_for_is_refused_before_any_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flow, _, _ = matmul(40, 320, 960, "int8")
    small = chip(mem__words=12)
    monkeypatch.setattr(scheduler, "_Scheduler", None)
    with pytest.raises(NoRoomError, match=r"take 1240 words, .* 160 more, and there are 1056"):
        ordered(flow, small, SchedulerOptions())


def test_a_sum_is_read_where_it_lies() -> None:
    """By a chain that copies it, too, which has no plane of a hemisphere."""
    board = Board.of(matmul(40, 320, 960, "int8")[0], chip())
    assert board.layouts["sum 0.0"].outer
    assert board.side("sum 0.0", 0, None) == (True,)
    board.sides[board.side_key("sum 0.0", 0)] = False
    assert board.side("sum 0.0", 0, None) == (False,)
