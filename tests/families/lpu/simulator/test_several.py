"""Chips that run one program: collectives against numpy and closed forms, products over chips."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from tilesmith.command_line import command_line as main
from tilesmith.families.lpu.codegen.exchange import Kind
from tilesmith.families.lpu.codegen.fabric import ChipFabric, check_links
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp
from tilesmith.families.lpu.codegen.selection.layout.images import in_rows
from tilesmith.families.lpu.codegen.verification.together import Together, check_together
from tilesmith.families.lpu.simulator.execution.several import collective, execute_together, node_of
from tilesmith.families.lpu.simulator.tensor_parallel import Split, tensor_parallel
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.search_space.support.errors import TargetError, VerificationError, WorkloadError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.collectives import collective_cost

MESH = load_mesh("lpu1.node")
CHIP, FLIGHT = node_of(MESH, 8)
VECTOR = 640
"""Bytes of one in float16."""


def parts_of(chips: int, rows: int, kind: Kind, whole: np.ndarray) -> list[dict[str, np.ndarray]]:
    """What each chip is given of (chips, parts, rows, 320): part e is that of the chip e on."""
    if kind == "all_gather":
        return [{"x.0": whole[i, i]} for i in range(chips)]
    return [{f"x.{e}": whole[i, (i + e) % chips] for e in range(chips)} for i in range(chips)]


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("chips", [2, 3, 8])
def test_collectives_are_those_of_numpy(kind: Kind, chips: int) -> None:
    rows = 5
    whole = np.random.default_rng(chips).integers(-9, 9, (chips, chips, rows, 320))
    whole = whole.astype(np.float16)
    made = collective(MESH, kind, rows * chips * VECTOR, chips)
    found = execute_together(made, parts_of(chips, rows, kind, whole))
    total = whole.astype(np.float64).sum(axis=0)
    for i, left in enumerate(found):
        for far in range(1, chips):
            other = (i + far) % chips
            if kind == "all_gather":
                np.testing.assert_array_equal(
                    left.tensors[f"all_gather.{far}"], whole[other, other]
                )
            elif kind == "all_to_all":
                np.testing.assert_array_equal(left.tensors[f"all_to_all.{far}"], whole[other, i])
            elif kind == "all_reduce":
                np.testing.assert_array_equal(left.tensors[f"all_reduce.all.{far}"], total[other])
        if "reduce" in kind:
            np.testing.assert_array_equal(left.tensors[f"{kind}.sum"], total[i])


@pytest.mark.parametrize("chips", [2, 8])
@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "reduce_scatter", "all_reduce"])
def test_large_ones_take_what_links_take_and_small_ones_their_hops(kind: Kind, chips: int) -> None:
    rounds = 2 if kind == "all_reduce" else 1
    each = 2 * CHIP.link_cycles  # cycles of a vector on a link
    for rows in (1, 400):
        made = collective(MESH, kind, rows * chips * VECTOR, chips)
        bound = rounds * rows * each if rows > 1 else rounds * FLIGHT
        assert bound < made.schedule.cycles < bound + 1.5 * FLIGHT
        if rows > 1:
            estimated = collective_cost(MESH, kind, rows * chips * VECTOR, tuple(range(chips)))
            assert made.schedule.seconds == pytest.approx(estimated.seconds, rel=0.06)


def test_what_comes_is_received_in_that_very_cycle() -> None:
    made = collective(MESH, "all_gather", 8 * VECTOR, 4)
    check_together(made)
    with pytest.raises(VerificationError, match=r"is received in cycle 5..; it comes in cycle 5.."):
        check_together(replace(made, flight=FLIGHT - 1))
    table = made.schedule.table
    fewer = replace(made.schedule, table=table[table["op"] != BurstOp.SEND])
    with pytest.raises(VerificationError, match="0 vectors are sent to link 0 and 2 received"):
        check_together(Together(fewer, ChipFabric((4,)), FLIGHT))


@pytest.mark.parametrize(("split", "chips"), [("columns", 2), ("columns", 8), ("rows", 4)])
def test_a_product_over_chips_is_the_product(split: Split, chips: int) -> None:
    workload = Workload.parse("matmul m=8 n=2560 k=1280 dtype=float16 const=b tb=1")
    made, chosen = tensor_parallel(workload, CHIP, chips, FLIGHT, split)
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (8, 1280)).astype(np.float16)
    b = rng.integers(-3, 4, (2560, 1280)).astype(np.float16)
    names = [operand.name for operand in chosen.operands]
    given = []
    for i in range(chips):
        # what a chip sums first is its own: columns are turned round by its number
        turned = np.roll(b, -i * 2560 // chips, axis=0) if split == "rows" else b
        x = np.split(a, chips, axis=1)[i] if split == "rows" else a
        w = np.split(turned, chips, axis=1 if split == "rows" else 0)[i]
        assert len(names) == 3
        contents = dict(chosen.literals)
        for name, value in zip(names, (x, w), strict=False):
            buffer = next(o for o in chosen.operands if o.name == name)
            shape = tuple(int(str(extent)) for extent in buffer.shape)
            contents[name] = in_rows(shape, buffer.dtype, value.reshape(shape))
        given.append(contents)
    done = execute_together(made, given)
    whole = a.astype(np.float64) @ b.T.astype(np.float64)
    for i, left in enumerate(done):
        start = "gathered." if split == "columns" else "summed.all."
        first = names[-1] if split == "columns" else "summed.sum"
        found = [left.tensors[first], *(left.tensors[f"{start}{e}"] for e in range(1, chips))]
        columns = 2560 // chips
        for e, rows in enumerate(found):
            other = (i + e) % chips
            wanted = whole[:, other * columns : (other + 1) * columns]
            tiles = [wanted[:, at : at + 320] for at in range(0, columns, 320)]
            np.testing.assert_array_equal(rows, np.concatenate(tiles).astype(np.float16))


def test_more_chips_take_less_where_links_let_them() -> None:
    workload = Workload.parse("matmul m=64 n=2560 k=5120 dtype=float16 const=b tb=1")
    cycles = [
        tensor_parallel(workload, CHIP, chips, FLIGHT, "columns")[0].schedule.cycles
        for chips in (2, 4, 8)
    ]
    assert cycles == sorted(cycles, reverse=True)
    link = 64 * 2560 // 2 // 320 * 2 * CHIP.link_cycles
    assert link < cycles[0] < 1.5 * link, "two chips have one link"


def test_chips_with_all_weights_and_some_rows_send_nothing() -> None:
    workload = Workload.parse("matmul m=64 n=640 k=1280 dtype=float16 const=b tb=1")
    made, chosen = tensor_parallel(workload, CHIP, 4, FLIGHT, "batch")
    rng = np.random.default_rng(1)
    a = rng.integers(-3, 4, (64, 1280)).astype(np.float16)
    b = rng.integers(-3, 4, (640, 1280)).astype(np.float16)
    names = [operand.name for operand in chosen.operands]
    given = [
        {**chosen.literals, names[0]: in_rows((16, 1280), "float16", part),
         names[1]: in_rows((640, 1280), "float16", b)}
        for part in np.split(a, 4)
    ]  # fmt: skip
    done = execute_together(made, given)
    whole = np.split(a.astype(np.float64) @ b.T.astype(np.float64), 4)
    for left, wanted in zip(done, whole, strict=True):
        np.testing.assert_array_equal(
            left.tensors[names[-1]], in_rows((16, 640), "float16", wanted.astype(np.float16))
        )
    assert not (made.schedule.table["op"] == BurstOp.SEND).any()


def test_what_is_not_linked_or_does_not_divide_is_said() -> None:
    with pytest.raises(TargetError, match=r"12 chips .* 2 to 9 are"):
        check_links(12, CHIP)
    with pytest.raises(TargetError, match="up to 8"):
        node_of(MESH, 9)
    with pytest.raises(TargetError, match="up to 1"):
        node_of(load_mesh("trn1.32xlarge"), 2)
    workload = Workload.parse("matmul m=8 n=2561 k=1280 dtype=float16 const=b tb=1")
    with pytest.raises(WorkloadError, match="n = 2561 does not divide among 2 chips"):
        tensor_parallel(workload, CHIP, 2, FLIGHT, "columns")


def test_the_command_cuts_a_product_as_is_fastest() -> None:
    asked = ["simulate", "--target", "lpu1", "--chips", "4", "--json", "--op"]
    text = "matmul m=8 n=2560 k=1280 dtype=float16 const=b"
    done = CliRunner().invoke(main, [*asked, text])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    told = [int(note.split(": ")[1].split()[0].replace(",", "")) for note in found["notes"][:3]]
    assert found["cycles"] == min(told) == told[2], "chips that send nothing are the fastest"
    for note, what in zip(
        found["notes"], ("columns of", "rows of the", "rows of what"), strict=False
    ):
        assert note.startswith(f"by {what}") and "over 4 chips" in note
    for op, chips, said in (
        ("softmax shape=8x320 dtype=float16", "4", "'softmax' is not cut over chips"),
        (text, "12", "2 to 9 are"),
        (text, "7", "does not divide among 7 chips"),
    ):
        refused = CliRunner().invoke(main, [*asked[:4], chips, "--op", op])
        assert refused.exit_code == 2 and said in refused.output, refused.output
