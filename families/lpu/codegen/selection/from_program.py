"""From the loop IR to chains: statement by statement, fused where one takes up what another made.

The generator walks a bound program. Loops around several statements are run, loops around a single
block become chains: one of them is along the lanes, all others go over rows. What a block is, its
family's specifications say (`families.lpu.schedules.building_blocks.machine`), first fit first.

What is written into a flowing scope (`sums`, `stream`) is not written at all but kept as the graph
of what makes it; a reader that takes its vectors in the order they were made takes the graph up,
any other has it written to a temporary.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import LANES, Dataflow, Role
from tilesmith.families.lpu.codegen.selection import gathers, pointwise, products, reductions
from tilesmith.families.lpu.codegen.selection.graphs.chains import Chains
from tilesmith.families.lpu.codegen.selection.graphs.expressions import Algebra
from tilesmith.families.lpu.codegen.selection.layout.accesses import Environment, rows_of
from tilesmith.families.lpu.codegen.selection.layout.images import image
from tilesmith.families.lpu.codegen.selection.layout.nests import VectorNest, nest_of
from tilesmith.families.lpu.codegen.selection.state import State
from tilesmith.families.lpu.schedules.building_blocks.machine import PRODUCTS
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import loads
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.program import (
    Allocate,
    Buffer,
    If,
    Loop,
    Program,
    Sequence,
    Statement,
    blocks,
)
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.support.errors import WorkloadError


@dataclass(frozen=True, eq=False)
class Selection:
    """What a program became.

    Attributes:
        literals: contents of constant tensors that no operand holds, (rows, `LANES`).
        operands: the program's parameters; the tensor of each has its name.
    """

    dataflow: Dataflow
    literals: Mapping[str, NDArray[Any]]
    operands: tuple[Buffer, ...]


def select(
    program: Program,
    target: Target,
    constants: frozenset[str] = frozenset(),
    numbers: Mapping[str, NDArray[Any]] | None = None,
    later: frozenset[str] = frozenset(),
) -> Selection:
    """The chains of a bound program; its prologue is left to compile time.

    Args:
        constants: inputs that are known at compile time.
        numbers: contents of `single_numbers`, which become immediates.
        later: names of those whose contents are put in when programs are linked
            (`dataflow.Operation.known`).

    Raises:
        VerificationError: the program breaks a rule of the loop IR or a limit of the target.
        CodegenError: a statement that no instruction computes.
    """
    verify(program, target)
    _check_room(program, target)
    state = State(
        Chains(), Algebra(_is_narrow(program)), readers=readers_of(program.body),
        numbers=numbers or {}, later=later,
    )  # fmt: skip
    for buffer in program.parameters:
        role: Role = "input"
        if buffer.role == "output":
            role = "output"
        elif buffer.role == "prepared" or buffer.name in constants:
            role = "constant"
        state.declare(buffer, role)
    for buffer in program.literals:
        state.declare(buffer, "constant")
        state.chains.literals[buffer.name] = image(buffer, np.array(buffer.values))
    ProgramWalk(state).run(program.body, {})
    return Selection(state.chains.dataflow(program.name), state.chains.literals, program.parameters)


def _is_narrow(program: Program) -> bool:
    """Whether all that a program gives has fewer digits than float32."""
    return all(size_of(b.dtype) < 4 for b in program.parameters if b.role == "output")


def _check_room(program: Program, target: Target) -> None:
    """Raise `WorkloadError` where MEM cannot hold a program's operands and result at once: before
    any of its chains, which are as many as they are large."""
    room, used = Chip.of(target).sram_bytes, readers_of(program.body)
    held = [b for b in program.parameters if b.name in used or b.role == "output"]
    needed = sum(rows_of(b) * LANES * size_of(b.dtype) for b in held)
    if needed > room:
        raise WorkloadError(
            f"'{program.name}' needs {needed / 2**20:,.0f} MiB for its operands and result in rows "
            f"of {LANES} lanes, and target '{target.name}' has {room / 2**20:,.0f} MiB of MEM: "
            f"{-(-needed // room):,} chips would hold them; compute it in parts"
        )


def single_numbers(program: Program) -> tuple[Buffer, ...]:
    """Prepared buffers whose rows hold one number each
    (`families.lpu.schedules.building_blocks.common.with_numbers`).
    """
    return tuple(
        buffer
        for buffer in program.parameters
        if buffer.role == "prepared" and buffer.name.endswith((".all", ".zero"))
    )


def readers_of(body: Statement) -> Counter[str]:
    """How many blocks read each buffer."""
    return Counter(
        name for block in blocks(body) for name in {f.buffer for f in loads(block.value)}
    )


EMITTERS: Mapping[str, Callable[[State, VectorNest, Environment], None]] = {
    **{spec.name: products.add_passes for spec in PRODUCTS},
    "mxm.clear": pointwise.compute,
    "gather": gathers.gather,
    "vxm": pointwise.compute,
    "sxm.reduce": reductions.reduce,
}
"""What makes chains of a nest, by specification."""


@dataclass
class ProgramWalk:
    """The state of one walk."""

    state: State
    nests: dict[int, VectorNest | None] = field(default_factory=dict)

    def run(self, statement: Statement, around: dict[str, int]) -> None:
        """Everything a statement does, where loops around it stand at `around`."""
        nest = self.nest(statement)
        if nest is not None:
            EMITTERS[nest.spec.name](self.state, nest, dict(around))
            return
        match statement:
            case Loop(variable=variable, extent=extent, body=body):
                before, self.state.series = (
                    self.state.series,
                    max(self.state.series, statement.stages),
                )
                for number in range(int(extent.evaluate(around))):
                    self.run(body, {**around, variable: number})
                self.state.series = before
            case Sequence(statements):
                for inner in statements:
                    self.run(inner, around)
            case Allocate(buffer, body):
                self.state.allocate(buffer)
                self.run(body, around)
            case If(condition, then, otherwise):
                chosen = then if all(e.evaluate(around) >= 0 for e in condition) else otherwise
                if chosen is not None:
                    self.run(chosen, around)
            case _:
                raise AssertionError(type(statement))

    def nest(self, statement: Statement) -> VectorNest | None:
        """The instruction that a statement is, or None; found once."""
        key = id(statement)
        if key not in self.nests:
            self.nests[key] = nest_of(statement, self.state.buffers)
        return self.nests[key]
