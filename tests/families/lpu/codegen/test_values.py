"""Every read sees the row that its chain names: held to MEM played cycle by cycle."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

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
from tilesmith.families.lpu.codegen.isa.bursts import MEMORY_OPS, BurstOp, BurstSchedule
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import reads_of, writes_of
from tilesmith.families.lpu.codegen.scheduling.resources.memory import ChipMemory, Words
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.search_space.support.errors import VerificationError


def ways(*lengths: int, rows: int = 30) -> Dataflow:
    """Chains one after another, several such ways beside each other; and a state changed twice."""
    tensors, chains = [VectorTensor("s", rows, "int8", "state")], []

    def step(name: str, source: str, target: str) -> None:
        builder = ChainBuilder(name, rows)
        value = builder.read(Rows.of(source, 0, (rows, 1)))
        negated = builder.compute([value], Operation("negate", (0,), "int8"))
        builder.write(negated, Rows.of(target, 0, (rows, 1)))
        chains.append(builder.chain())

    for way, length in enumerate(lengths):
        roles = ("input", *["temporary"] * (length - 1), "output")
        names = [f"{way}.{number}" for number in range(length + 1)]
        tensors += [VectorTensor(n, rows, "int8", r) for n, r in zip(names, roles, strict=True)]  # type: ignore[arg-type]
        for source, target in pairwise(names):
            step(f"to {target}", source, target)
    tensors += [VectorTensor(name, rows, "int8", "output") for name in ("before", "after")]
    step("first look", "s", "before")
    step("first change", "0.0", "s")
    step("second look", "s", "after")
    step("second change", "0.1", "s")
    return Dataflow("ways", {tensor.name: tensor for tensor in tensors}, tuple(chains))


@pytest.mark.parametrize(
    "flow", [ways(3, 2), matmul(9, 40, 400, "float16")[0], matmul(40, 330, 960, "int8")[0]]
)
def test_bursts_name_the_rows_of_their_chains(flow: Dataflow) -> None:
    placed = schedule(flow, chip())
    named: dict[tuple[int, str, bool], set[int]] = defaultdict(set)
    for burst in placed:
        if burst["op"] in MEMORY_OPS:
            rows = burst["row"] + np.arange(burst["count"]) * burst["pitch"]
            key = burst["chain"], placed.places[burst["tensor"]].name, burst["op"] == BurstOp.WRITE
            named[key].update(rows.tolist())
    meant: dict[tuple[int, str, bool], set[int]] = defaultdict(set)
    for number, chain in enumerate(flow.chains):
        for touched, write in ((reads_of(chain), False), (writes_of(chain), True)):
            for tensor, rows in touched:
                meant[number, tensor, write].update(rows.tolist())
    loaded = {tensor for _, tensor, _ in meant} - {tensor for _, tensor, _ in named}
    assert not loaded
    # weights that stay installed are read by the first chain that multiplies with them alone
    assert named == {key: rows for key, rows in meant.items() if key in named}


def refusal(found: BurstSchedule) -> str:
    """What the checker says, or ""."""
    try:
        check(found)
    except VerificationError as error:
        return str(error)
    return ""


def test_mutants_of_words_used_again_are_judged_as_in_a_memory_played_by_cycles() -> None:
    found, rng = schedule(ways(5, 3, rows=6), chip()), np.random.default_rng(0)
    assert refusal(found) == broken(found) == ""
    memory = np.flatnonzero(np.isin(found.table["op"], MEMORY_OPS))
    verdicts = []
    for _ in range(200):
        table = found.table.copy()
        one, other = rng.choice(memory, 2, replace=False)
        match rng.integers(4):
            case 0:
                table["row"][one] += rng.integers(-2, 3)
            case 1:
                table["tensor"][one] = table["tensor"][other]
            case 2:
                table["chain"][one] = table["chain"][other]
            case _:
                for column in ("queue", "bank", "address"):
                    table[column][[one, other]] = table[column][[other, one]]
        mutant = replace(found, table=table)
        said = refusal(mutant)
        if "and stays" not in said:
            verdicts.append(bool(said))
            assert bool(said) == bool(broken(mutant)), (said, broken(mutant))
    assert 50 < sum(verdicts) < len(verdicts)


def test_program_order_says_which_of_two_writes_a_row_is_waited_for() -> None:
    found = schedule(ways(3, 2), chip())
    first, second = (found.chains.index(f"{n} change") for n in ("first", "second"))
    order = list(found.order)
    order[first], order[second] = order[second], order[first]
    exchanged = replace(found, order=tuple(order))
    assert "as chain 'second change' writes it" in refusal(exchanged)
    assert broken(exchanged)


def test_words_given_to_another_chain_while_they_are_read_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a scheduler that forgets until when words are read, and breaks no other law."""
    flow, real = ways(24, *[3] * 24), ChipMemory.give
    assert refusal(schedule(flow, chip())) == ""

    def early(self: ChipMemory, places: list[Words], cycle: int, sums: bool = False) -> None:
        real(self, places, 1, sums)

    monkeypatch.setattr(ChipMemory, "give", early)
    found = schedule(flow, chip())
    assert "another value" in broken(found)
    sentence = (
        r"schedule 'ways', instruction \d+ \(mem.*\), cycle \d+, slice mem\.\w+: chain '[^']+' "
        r"reads row \d+ of '[^']+' \(byte 0\) as chain '[^']+' writes it; word \d+ of bank [01] of "
        r"slice mem\.\w+ holds row \d+ of '[^']+' \(byte 0\), which chain '[^']+' wrote in cycle "
        r"\d+ \(instruction \d+\)"
    )
    with pytest.raises(VerificationError, match=sentence):
        check(found)
