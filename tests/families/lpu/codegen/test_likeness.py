"""Programs that are alike have the same schedule, found once."""

from dataclasses import replace

import pytest

from tests.families.lpu.codegen.chains import chip, matmul
from tilesmith.families.lpu.codegen.dataflow import (
    Chain,
    ChainBuilder,
    Dataflow,
    Operation,
    Product,
    Read,
    Rows,
    Step,
    VectorTensor,
    Write,
)
from tilesmith.families.lpu.codegen.scheduling.rewriting.likeness import likeness
from tilesmith.families.lpu.codegen.scheduling.scheduler import SchedulerOptions, ordered, schedule
from tilesmith.families.lpu.codegen.verification.checker import check


def other_names(flow: Dataflow) -> Dataflow:
    """The same program with tensors and chains of other names."""

    def renamed(step: Step) -> Step:
        match step:
            case Read(rows) | Write(rows=rows):
                return replace(step, rows=replace(rows, tensor=f"another.{rows.tensor}"))
            case Product(weights=rows):
                return replace(step, weights=replace(rows, tensor=f"another.{rows.tensor}"))
        return step

    chains = tuple(
        Chain(f"like.{chain.name}", chain.count, tuple(map(renamed, chain.steps)))
        for chain in flow.chains
    )
    tensors = {f"another.{n}": replace(t, name=f"another.{n}") for n, t in flow.tensors.items()}
    return Dataflow("other", tensors, chains)


@pytest.mark.parametrize("options", [SchedulerOptions(), SchedulerOptions("program", 16)])
def test_a_program_that_is_alike_is_placed_alike_without_a_search(
    options: SchedulerOptions,
) -> None:
    flow = matmul(40, 700, 960, "int8")[0]
    found, known = ordered(flow, chip(), options)
    like = other_names(flow)
    assert likeness(like) == likeness(flow)
    again = schedule(like, chip(), known)
    check(again)
    same = [name for name in found.table.dtype.names or () if name != "tensor"]
    assert (again.table[same] == found.table[same]).all()
    assert [r.tensor for r in again.regions] == [f"another.{r.tensor}" for r in found.regions]


def test_programs_are_alike_whatever_they_multiply_by_but_not_what_they_read() -> None:
    def scaled(by: float, first: int = 0, dtype: str = "float32") -> Dataflow:
        builder = ChainBuilder("scale", 4)
        value = builder.read(Rows.of("x", first, (4, 1)))
        made = builder.compute((value,), Operation("multiply", (0, -1), "float32", by))
        builder.write(made, Rows.of("y", 0, (4, 1)))
        tensors = {
            "x": VectorTensor("x", 8, dtype, "input"),
            "y": VectorTensor("y", 4, "float32", "output"),
        }
        return Dataflow("scaled", tensors, (builder.chain(),))

    assert likeness(scaled(2.0)) == likeness(scaled(3.0))
    assert likeness(scaled(2.0)) != likeness(scaled(2.0, first=1))
    assert likeness(scaled(2.0)) != likeness(scaled(2.0, dtype="float16"))
