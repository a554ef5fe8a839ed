"""What a target's machine demands of a program: memories, engines, instructions and their limits.

The part of the verifier that asks the target and its family (`search_space.ir.family`). A number
that depends on a symbol or on a setting left open is checked once it is known; until then a tile
counts as one place.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import ONE, Expr
from tilesmith.search_space.hardware.memory import Allocator, Memory
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.family import families, family_of
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec, match
from tilesmith.search_space.ir.program import Block, Buffer, Intrinsic, Loop
from tilesmith.search_space.ir.settings import Settings, open_engine, open_number
from tilesmith.search_space.ir.verification.bounds import Surroundings
from tilesmith.search_space.support.errors import VerificationError


class MachineRules:
    """The rules of one program's target; without a target, those that hold for any.

    Args:
        settings: those that the program leaves open; without them none is known.
    """

    def __init__(self, target: Target | None, settings: Settings = ()) -> None:
        self.target, self.settings = target, settings
        self.family = family_of(target) if target is not None else None
        self.limits: Mapping[str, int] = {}
        self.memory: dict[str, Allocator] = {}
        if target is not None and self.family is not None:
            self.limits = self.family.limits(target)
            memories = self.family.memories(target)
            self.memory = {scope: Allocator(scope, memory) for scope, memory in memories.items()}

    def number(self, number: int) -> int:
        """A number of places, or of stages; 1 where it is left open."""
        place = open_number(number)
        if place is None:
            return number
        return int(self.settings[place]) if self.settings else 1

    def engines(self, block: Block) -> list[str]:
        """The engines a block is assigned to; none where that is left open."""
        place = open_engine(block.engine)
        engine = block.engine
        if place is not None:
            engine = str(self.settings[place]) if self.settings else ""
        return list(filter(None, engine.split("|")))

    # -- rules --------------------------------------------------------------------------------
    def loop(self, loop: Loop) -> None:
        """A loop is pipelined at least one deep."""
        if self.number(loop.stages) < 1:
            raise VerificationError(f"loop '{loop.variable}' is pipelined {loop.stages} deep")

    def buffer(self, buffer: Buffer) -> None:
        """A buffer is in a memory of the target, and has places."""
        if self.family is not None and buffer.scope not in self.family.scopes:
            assert self.target is not None
            raise VerificationError(
                f"buffer '{buffer.name}' is in '{buffer.scope}', which target "
                f"'{self.target.name}' lacks; it has {', '.join(self.family.scopes)}"
            )
        if self.number(buffer.versions) < 1:
            raise VerificationError(f"buffer '{buffer.name}' has {buffer.versions} versions")

    def place(self, buffer: Buffer) -> None:
        """Give a buffer its places in an on-chip memory: partitions, banks and bytes."""
        allocator = self.memory.get(buffer.scope)
        shape = [extent.constant for extent in buffer.shape]
        if allocator is None or any(extent is None for extent in shape):
            return
        memory, free = allocator.memory, [extent or 0 for extent in shape]
        partitions = free.pop(0) if memory.partitions and free else 0
        size = prod(free) * size_of(buffer.dtype)
        where = f"buffer '{buffer.name}' in {buffer.scope}"
        if partitions > memory.partitions:
            raise VerificationError(
                f"{where} takes {partitions} partitions; there are {memory.partitions}"
            )
        if memory.bank and size > memory.bank and not memory.several_banks:
            raise VerificationError(
                f"{where} takes {size} bytes of each partition; a bank holds {memory.bank}"
            )
        used, versions = allocator.used, self.number(buffer.versions)
        for _ in range(versions):
            if allocator.place(size, buffer.name) is None:
                raise VerificationError(_full(where, used + memory.held(size) * versions, memory))

    def leave(self, buffer: Buffer) -> None:
        """A buffer's allocation ends."""
        allocator = self.memory.get(buffer.scope)
        if allocator is None or not allocator.memory.stacked:
            return
        for (offset, first), (_, name, _) in tuple(allocator.live.items()):
            if name == buffer.name:
                allocator.release(offset, first)

    def engine(self, block: Block) -> None:
        """A block is assigned to engines that there are."""
        known = self.family.engines if self.family is not None else ()
        if known and not set(self.engines(block)) <= set(known):
            raise VerificationError(
                f"block '{block.stage}' is assigned to engine '{block.engine}'; "
                f"one of {', '.join(known)}"
            )

    # -- instructions -------------------------------------------------------------------------
    def instruction(self, statement: Intrinsic) -> IntrinsicSpec:
        """The specification of an instruction that the target, or any without one, has."""
        known = list(self._known())
        spec = next((spec for spec in known if spec.name == statement.name), None)
        if spec is None:
            name = f"target '{self.target.name}'" if self.target else "any target"
            raise VerificationError(
                f"intrinsic '{statement.name}' is no instruction of {name}; "
                f"known: {', '.join(dict.fromkeys(s.name for s in known))}"
            )
        return spec

    def _known(self) -> Iterator[IntrinsicSpec]:
        if self.family is not None:
            yield from self.family.intrinsics
            return
        for name in families:
            yield from families[name].intrinsics

    def tensorized(
        self,
        spec: IntrinsicSpec,
        statement: Intrinsic,
        buffers: Mapping[str, Buffer],
        around: Surroundings,
    ) -> None:
        """A tensorized statement is what its instruction does, within the instruction's limits."""
        operands = match(spec, statement, buffers)
        where = f"intrinsic '{spec.name}' in stage '{operands.block.stage}'"
        engines = self.engines(operands.block)
        if engines and not set(engines) <= set(spec.engines):
            raise VerificationError(
                f"{where} does not run on '{operands.block.engine}'; allowed: "
                f"{', '.join(spec.engines)}"
            )
        for dimension, name in spec.limits.items() if self.limits else ():
            for loop in operands.loops[dimension]:
                around = around.inside(loop.variable, loop.extent)
            size = _product(loop.extent for loop in operands.loops[dimension])
            known = around.closure([size]) is not None
            if known and not around.holds(self.limits[name] - size):
                raise VerificationError(
                    f"{where}: {dimension.upper()} = {size} exceeds the limit of "
                    f"{self.limits[name]} ({name})"
                )


def _full(where: str, used: int, memory: Memory) -> str:
    """Why a buffer finds no place, `used` bytes being in use with it."""
    if used > memory.bytes:
        return f"{where} brings the bytes in use to {used} of each partition; it has {memory.bytes}"
    return (
        f"{where} finds no place: no tile straddles two banks of {memory.bank} bytes, and {used} "
        f"of {memory.bytes} bytes of each partition would be in use"
    )


def _product(extents: Iterable[Expr]) -> Expr:
    total = ONE
    for extent in extents:
        total = total * extent
    return total
