"""The checker finds every breach of the laws that a look at every cell finds, and none besides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.families.lpu.codegen.chains import chip, matmul
from tests.families.lpu.codegen.oracle import broken
from tilesmith.families.lpu.codegen.dataflow import (
    ChainBuilder,
    Dataflow,
    Operation,
    Rows,
    VectorTensor,
)
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.search_space.support.errors import VerificationError

MOVED = (
    BurstOp.READ,
    BurstOp.WRITE,
    BurstOp.LOAD,
    BurstOp.MOVE,
    BurstOp.ACCUMULATE,
    BurstOp.ALU,
    BurstOp.SHUFFLE,
)


def mixed() -> Dataflow:
    """A product, an expression of its result and its shifted self, a copy."""
    tensors = [
        VectorTensor("x", 12, "int8", "input"),
        VectorTensor("w", 64, "int8", "constant"),
        VectorTensor("s", 12, "int32"),
        VectorTensor("b", 1, "int32", "constant"),
        VectorTensor("t", 12, "int32"),
        VectorTensor("y", 12, "int8", "output"),
    ]
    rows = {name: Rows.of(name, 0, (12, 1)) for name in "xsty"}
    first = ChainBuilder("product", 12)
    bias = first.read(Rows.of("b", 0, (12, 0)))
    sums = first.product(first.read(rows["x"]), Rows.of("w", 0, (64, 1)), 100)
    first.write(first.compute((sums, bias), Operation("add", (0, 1), "int32")), rows["s"])
    second = ChainBuilder("shift", 12)
    lanes = [*range(1, 320), -1]
    second.write(second.shuffle("shift", second.read(rows["s"]), lanes), rows["t"])
    third = ChainBuilder("end", 12)
    both = third.read(rows["s"]), third.read(rows["t"])
    third.write(
        third.compute(
            both, Operation("maximum", (0, 1), "int32"), Operation("convert", (2,), "int8")
        ),
        rows["y"],
    )
    chains = tuple(builder.chain() for builder in (first, second, third))
    return Dataflow("mixed", {tensor.name: tensor for tensor in tensors}, chains)


def placed(name: str) -> BurstSchedule:
    flows = {"mixed": mixed, "matmul": lambda: matmul(9, 40, 400, "float16")[0]}
    return schedule(flows[name](), chip())


def breaks(found: BurstSchedule) -> bool:
    try:
        check(found)
    except VerificationError as error:
        assert "schedule '" in str(error) and "slice" in str(error)
        return True
    return False


@pytest.mark.parametrize("name", ["mixed", "matmul"])
def test_a_schedule_keeps_all_laws(name: str) -> None:
    found = placed(name)
    check(found)
    assert broken(found) == ""


@pytest.mark.parametrize("name", ["mixed", "matmul"])
@pytest.mark.parametrize("shift", [-1, 1])
def test_an_instruction_moved_by_a_cycle_is_caught(name: str, shift: int) -> None:
    found = placed(name)
    for row in np.flatnonzero(np.isin(found.table["op"], MOVED)).tolist():
        table = found.table.copy()
        table["cycle"][row] += shift
        assert breaks(replace(found, table=table)), row


def test_mutants_are_judged_as_cell_by_cell() -> None:
    found, rng = placed("matmul"), np.random.default_rng(0)
    verdicts = []
    for _ in range(150):
        table = found.table.copy()
        for _ in range(rng.integers(1, 3)):
            row = rng.integers(len(table))
            column = rng.choice(["cycle", "stream", "bank", "address", "east", "queue", "last"])
            memory = table["op"][row] <= BurstOp.WRITE
            if column == "cycle" or not memory:
                table["cycle"][row] += rng.integers(-3, 4)
            elif column in ("bank", "east", "last"):
                table[column][row] = 1 - table[column][row]
            elif column == "queue":
                table["queue"][row] = rng.integers(found.chip.slices)
            else:
                table[column][row] = rng.integers(32)
        mutant = replace(found, table=table)
        law = broken(mutant)
        if law or not _resident(mutant):
            verdicts.append(bool(law))
            assert breaks(mutant) == bool(law), law
    assert sum(verdicts) > 20


def _resident(mutant: BurstSchedule) -> bool:
    """Whether something is written over what stays, which the look at cells does not know."""
    try:
        check(mutant)
    except VerificationError as error:
        return "and stays" in str(error)
    return False


def test_breaches_name_instruction_cycle_slice_and_law() -> None:
    found = placed("mixed")
    table = found.table.copy()
    row = int(np.flatnonzero(table["op"] == BurstOp.READ)[0])
    table["cycle"][row] += 1
    with pytest.raises(VerificationError, match=r"instruction \d+ \(.*\), cycle \d+, slice .*: "):
        check(replace(found, table=table))


def test_a_bank_is_not_read_and_written_at_once() -> None:
    found = placed("mixed")
    table = found.table.copy()
    reads, writes = (np.flatnonzero(table["op"] == op) for op in (BurstOp.READ, BurstOp.WRITE))
    for name in ("queue", "bank", "cycle"):
        table[name][writes[0]] = table[name][reads[0]]
    with pytest.raises(VerificationError, match="a bank of a slice is read or written"):
        check(replace(found, table=table))
