"""One step of a chain, or one burst of a schedule, is changed: it is the one that is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import (
    Chain,
    Compute,
    Dataflow,
    Product,
    Rows,
    Shuffle,
    Step,
)
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule, Unit
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.selection.from_program import Selection, select
from tilesmith.families.lpu.codegen.selection.layout.accesses import shape_of
from tilesmith.families.lpu.codegen.selection.layout.images import content, image
from tilesmith.families.lpu.codegen.selection.tracing import trace
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.families.lpu.simulator.execution.chains import run_chains
from tilesmith.families.lpu.simulator.execution.first_difference import first_difference
from tilesmith.families.lpu.simulator.execution.first_step import first_step
from tilesmith.families.lpu.simulator.execution.functional import execute
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.support.errors import VerificationError
from tilesmith.search_space.workloads.workload import Workload

TARGET = load_target("lpu1")
KERNELS = (
    "softmax shape=2x12 axis=1",
    "matmul m=3 n=7 k=40 dtype=float16 epilogue=relu",
    "elementwise shape=8x20 expression=multiply(x0,sigmoid(add(x1,0.5)))",
)


@dataclass(frozen=True, eq=False)
class Kernel:
    workload: Workload
    program: Program
    arrays: dict[str, NDArray[Any]]
    selection: Selection
    contents: dict[str, NDArray[Any]]

    def result(self, flow: Dataflow) -> NDArray[Any]:
        with np.errstate(all="ignore"):
            held = run_chains(flow, self.contents, lambda *_: None)
        last = self.selection.operands[-1]
        return content(shape_of(last), held[last.name]).astype(np.float64)


def kernel_of(text: str) -> Kernel:
    workload, rng = Workload.parse(text), np.random.default_rng(1)
    program = lowered(workload, TARGET, default_of(workload, TARGET))
    arrays = {
        b.name: rng.standard_normal([e.constant or 0 for e in b.shape]).astype(to_numpy(b.dtype))
        for b in program.parameters
        if b.role == "input"
    }
    before = program.compile_time()
    if before is not None:
        arrays |= {b.name: interpret(before, arrays)[b.name] for b in before.parameters[:-1]}
    made = select(program, TARGET, frozenset(workload.constants))
    contents = dict(made.literals)
    for buffer in made.operands:
        if buffer.name in arrays:
            contents[buffer.name] = image(buffer, arrays[buffer.name])
    return Kernel(workload, program, arrays, made, contents)


def changed_steps(step: Step) -> Iterator[tuple[int, Step]]:
    """A step with one thing changed, and the number of the operation, or -1."""
    match step:
        case Compute(operations=operations):
            for number, operation in enumerate(operations):
                changes = []
                if len(operation.operands) == 1 and operation.function != "negate":
                    changes.append(replace(operation, function="negate"))
                if operation.immediate is not None:
                    changes.append(replace(operation, immediate=operation.immediate + 0.37))
                if operation.function == "subtract":
                    changes.append(replace(operation, operands=operation.operands[::-1]))
                for changed in changes:
                    whole = (*operations[:number], changed, *operations[number + 1 :])
                    yield number, replace(step, operations=whole)
        case Product(weights=weights):
            turned = Rows(weights.tensor, np.roll(weights.numbers, 1))
            yield -1, replace(step, weights=turned)
        case Shuffle(lanes=lanes):
            yield -1, replace(step, lanes=lanes[3:] + lanes[:3])
        case _:
            return


def changed_flows(kernel: Kernel, rng: np.random.Generator) -> Iterator[tuple[Any, Dataflow]]:
    """Chains with one step changed, that give something else: (chain, step, operation), they."""
    flow = kernel.selection.dataflow
    right = kernel.result(flow)
    for number in rng.permutation(len(flow.chains)).tolist():
        chain: Chain = flow.chains[number]
        for at in rng.permutation(len(chain.steps)).tolist():
            for operation, step in changed_steps(chain.steps[at]):
                steps = (*chain.steps[:at], step, *chain.steps[at + 1 :])
                chains = list(flow.chains)
                chains[number] = replace(chain, steps=steps)
                found = replace(flow, chains=tuple(chains))
                result = kernel.result(found)
                differs = not np.allclose(result, right, rtol=1e-2, atol=1e-2)
                if differs and np.isfinite(result).all():
                    yield (number, at, operation), found


@pytest.mark.parametrize("text", KERNELS)
def test_a_changed_step_of_a_chain_is_named(text: str) -> None:
    kernel, rng = kernel_of(text), np.random.default_rng(2)
    traced = trace(kernel.program, frozenset(kernel.workload.constants))
    asked = kernel.contents, traced, kernel.program, kernel.arrays
    assert first_step(kernel.selection.dataflow, *asked) is None
    tried = list(islice(changed_flows(kernel, rng), 3))
    assert tried
    for place, flow in tried:
        found = first_step(flow, *asked)
        assert found is not None, place
        assert place in found.among, (place, found.among)


def changed_bursts(
    made: BurstSchedule, rng: np.random.Generator
) -> Iterator[tuple[int, BurstSchedule]]:
    """Schedules with one burst changed, and its row."""
    table = made.table
    for row in rng.permutation(len(table)).tolist():
        burst, op = table[row], BurstOp(int(table["op"][row]))
        number = int(burst["unit"])
        if op == BurstOp.ALU:
            unit, at = made.units[number], int(burst["step"])
            operation = unit.operations[at]
            if len(operation.operands) != 1 or operation.function == "negate":
                continue
            changed = replace(operation, function="negate")
            operations = (*unit.operations[:at], changed, *unit.operations[at + 1 :])
            yield row, _with_unit(made, number, replace(unit, operations=operations))
        elif op == BurstOp.SHUFFLE:
            lanes = made.units[number].lanes
            yield (
                row,
                _with_unit(made, number, replace(made.units[number], lanes=lanes[3:] + lanes[:3])),
            )
        elif op == BurstOp.READ and burst["count"] > 1:
            changed_table = table.copy()
            for first, step in (("address", "step"), ("row", "pitch")):
                changed_table[first][row] += (int(burst["count"]) - 1) * int(burst[step])
                changed_table[step][row] *= -1
            yield row, replace(made, table=changed_table)


def _with_unit(made: BurstSchedule, number: int, unit: Unit) -> BurstSchedule:
    return replace(made, units=(*made.units[:number], unit, *made.units[number + 1 :]))


@pytest.mark.parametrize("text", KERNELS)
def test_a_changed_burst_is_named(text: str) -> None:
    kernel, rng = kernel_of(text), np.random.default_rng(3)
    flow = kernel.selection.dataflow
    made = schedule(flow, Chip.of(TARGET))
    assert first_difference(flow, made, kernel.contents, check(made)) is None
    last, tried = kernel.selection.operands[-1], 0
    right = execute(made, kernel.contents).tensors[last.name]
    for row, changed in islice(changed_bursts(made, rng), 16):
        try:
            matching = check(changed)
        except VerificationError:
            continue  # a law says so
        result = execute(changed, kernel.contents, matching=matching).tensors[last.name]
        if np.array_equal(result, right, equal_nan=True):
            continue
        found = first_difference(flow, changed, kernel.contents, matching)
        assert found is not None and found.row == row, (row, found)
        tried += 1
    assert tried >= 3
