"""Which part of a loop program each instruction of its stream does the work of.

The program is walked once more, as `from_program` does, and what is written down beside each
instruction is the nest that it was written for: the statement, the loops around it, and where what
the nest writes stands at that time. Iterations are written one by one, so that each has its own.

Invariant: an instruction's number is its `position` in the stream of the same program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilesmith.families.kit.programs.in_arrays import nest_of
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.selection.from_program import Generator, Plans
from tilesmith.families.trainium.codegen.selection.loop_nests.nests import Environment
from tilesmith.search_space.expressions.scalar import loads
from tilesmith.search_space.ir.program import Buffer, Loop, Program, Statement


@dataclass(frozen=True, eq=False)
class NestInstance:
    """A nest, at one point of the loops around it.

    Attributes:
        statement: of the program.
        around: values of the loops around it.
        where: what stands for the buffer it writes, meanwhile, and `read` for those it reads.
    """

    statement: Statement
    around: Mapping[str, int]
    where: Tile | HbmView
    read: Mapping[str, Tile | HbmView] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, tuple[tuple[str, int], ...]]:
        """What tells it from all others."""
        return id(self.statement), tuple(sorted(self.around.items()))


@dataclass(frozen=True, eq=False)
class TracedStream:
    """A stream, and what its instructions are of.

    Attributes:
        stream: as written, without semaphores.
        instances: nests in the order they were written in.
        owners: the number of the instance, by position; -1: of none.
    """

    stream: InstructionStream
    instances: tuple[NestInstance, ...]
    owners: tuple[int, ...]

    def is_nest(self, statement: Statement) -> bool:
        """Whether instructions are of a statement as a whole."""
        return id(statement) in self._statements

    @cached_property
    def _statements(self) -> frozenset[int]:
        return frozenset(id(instance.statement) for instance in self.instances)


class _Kernel(Kernel):
    """A kernel whose instructions are numbered by the nest under way."""

    def __init__(self, name: str, core: Core) -> None:
        super().__init__(name, core)
        self.owner = -1
        self.owners: list[int] = []

    def _append(self, row: tuple[int, ...], *rest: Any) -> None:
        super()._append(row, *rest)
        self.owners.append(self.owner)

    def _arrange(self, start: int, order: Sequence[int]) -> None:
        super()._arrange(start, order)
        self.owners[start : start + len(order)] = [self.owners[i] for i in order]


class _Plans(Plans):
    def alike(self, loop: Loop, extent: int, buffers: Mapping[str, Buffer]) -> int:
        return 0  # every iteration is written


@dataclass
class _Generator(Generator):
    instances: list[NestInstance] = field(default_factory=list)

    def run(self, statement: Statement, env: Environment) -> None:
        kernel, nest = self.kernel, nest_of(statement)
        if self.nest(statement) is None or nest is None:
            super().run(statement, env)
            return
        assert isinstance(kernel, _Kernel)
        kernel.owner = len(self.instances)
        super().run(statement, env)
        kernel.owner = -1
        block = nest[1]
        stands: dict[str, Tile | HbmView] = {**self.operands.views, **self.operands.tiles}
        read = {load.buffer: stands[load.buffer] for load in loads(block.value)}
        self.instances.append(NestInstance(statement, dict(env), stands[block.buffer], read))


def trace(program: Program, core: Core) -> TracedStream:
    """The stream of a bound program once more; errors as `from_program.generate`."""
    kernel = _Kernel(program.name, core)
    generator = _Generator(kernel, _Plans(program, core.target))
    generator.walk(program)
    return TracedStream(kernel.draft(), tuple(generator.instances), tuple(kernel.owners))
