"""Which part of a loop program each chain of its dataflow does the work of.

The program is walked once more, as `from_program` does, and for each nest that writes to memory is
written down which chains were there when it had been written. What flows is written by no chain of
its own: it is part of the chains that take it up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.kit.programs.in_arrays import nest_of
from tilesmith.families.lpu.codegen.dataflow import LANES, Ints, Role, Write
from tilesmith.families.lpu.codegen.selection.from_program import ProgramWalk, readers_of
from tilesmith.families.lpu.codegen.selection.graphs.chains import Chains
from tilesmith.families.lpu.codegen.selection.layout.accesses import places_of
from tilesmith.families.lpu.codegen.selection.layout.images import image
from tilesmith.families.lpu.codegen.selection.state import State
from tilesmith.search_space.ir.program import Buffer, Program, Statement


@dataclass(frozen=True, eq=False)
class StoreInstance:
    """A nest that writes to memory, at one point of the loops around it.

    Attributes:
        statement: of the program.
        around: values of the loops around it.
        buffer: that it writes.
        chain, step: the name of the last chain that writes it, and the number of its `Write`.
    """

    statement: Statement
    around: Mapping[str, int]
    buffer: Buffer
    chain: str
    step: int

    @property
    def key(self) -> tuple[int, tuple[tuple[str, int], ...]]:
        """What tells it from all others."""
        return id(self.statement), tuple(sorted(self.around.items()))


@dataclass(frozen=True, eq=False)
class TracedNests:
    """Nests in the order they were selected in, and all that were met, whatever they write."""

    instances: tuple[StoreInstance, ...]
    statements: tuple[Statement, ...] = field(repr=False)

    def is_nest(self, statement: Statement) -> bool:
        """Whether chains are made of a statement as a whole."""
        return id(statement) in self._known

    @cached_property
    def _known(self) -> frozenset[int]:
        return frozenset(map(id, self.statements))


@dataclass
class _Traced(ProgramWalk):
    instances: list[StoreInstance] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)

    def run(self, statement: Statement, around: dict[str, int]) -> None:
        nest = nest_of(statement)
        if self.nest(statement) is None or nest is None:
            super().run(statement, around)
            return
        self.statements.append(statement)
        chains = self.state.chains.chains
        begin = len(chains)
        super().run(statement, around)
        buffer = self.state.buffers[nest[1].buffer]
        tensor = self.state.names.get(buffer.name)
        for chain in reversed(chains[begin:]):
            for number, step in enumerate(chain.steps):
                if isinstance(step, Write) and step.rows.tensor == tensor:
                    instance = StoreInstance(statement, dict(around), buffer, chain.name, number)
                    self.instances.append(instance)
                    return


def trace(
    program: Program, constants: frozenset[str] = frozenset(), later: frozenset[str] = frozenset()
) -> TracedNests:
    """Walk a verified program once more; arguments and errors as `from_program.select`."""
    state = State(Chains(), readers=readers_of(program.body), numbers={}, later=later)
    for buffer in program.parameters:
        role: Role = "output" if buffer.role == "output" else "input"
        known = buffer.role == "prepared" or buffer.name in constants
        state.declare(buffer, "constant" if known and role == "input" else role)
    for buffer in program.literals:
        state.declare(buffer, "constant")
        state.chains.literals[buffer.name] = image(buffer, np.array(buffer.values))
    walk = _Traced(state)
    walk.run(program.body, {})
    return TracedNests(tuple(walk.instances), tuple(walk.statements))


def rows_of_places(
    buffer: Buffer, places: tuple[NDArray[np.int64], ...], shape: tuple[int, ...]
) -> tuple[Ints, Ints]:
    """The row and lane (`images`) that elements of a buffer stand on."""
    *lead, last = places if places else (np.zeros((), np.int64),)
    row = np.zeros(np.shape(last), np.int64)
    for place, extent in zip(lead, shape, strict=False):
        row = row * extent + place
    return row + last // LANES * places_of(buffer), last % LANES
