"""The chains of several kernels as one program: names of their own, tensors they have in common.

What two kernels have at one place of the arena is one tensor, if both cut it into the same rows;
else chains between them cut it anew (`recutting`).
Constants are shared where place and rows are the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import KernelStep, Place
from tilesmith.families.lpu.backend.programs.kernel_code import ChainKernelCode, KernelParameter
from tilesmith.families.lpu.backend.programs.recutting import (
    BLOCKS,
    BoundaryTensor,
    cut_anew,
    rows_like,
)
from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import writes_of
from tilesmith.families.lpu.codegen.selection.graphs.chains import Chains
from tilesmith.families.lpu.codegen.selection.graphs.expressions import BYTES
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import ModelError

TABLE = ".table"
"""What marks tensors that rows are picked from."""

WEIGHTS = ".weights"
"""What marks copies of tensors in parts that are multiplied by, which lie in stripes."""


@dataclass(frozen=True, eq=False)
class Joined:
    """One program of several kernels.

    Attributes:
        literals: contents of constant tensors that stand nowhere in memory, (rows, 320).
        inputs: what is filled before a run, weights too.
        outputs: what is read after it.
        owners: the number of the kernel that each chain is of, or that reads what it cuts anew.
    """

    flow: dataflow.Dataflow
    literals: Mapping[str, NDArray[Any]]
    inputs: tuple[BoundaryTensor, ...]
    outputs: tuple[BoundaryTensor, ...]
    owners: tuple[int, ...]


def join(
    name: str,
    parts: Sequence[tuple[KernelStep, ChainKernelCode]],
    outside: tuple[BoundaryTensor, ...],
    constants: RunMemory,
) -> Joined:
    """Kernels in their order as one program.

    Args:
        outside: what others read in the arena: the caller, the host, other programs.
        constants: where numbers that become part of operations are looked up.

    Raises:
        ModelError: code that does not fit its arguments.
    """
    joining = Joining(outside, constants)
    for number, (step, code) in enumerate(parts):
        joining.add(number, step, code)
    return joining.joined(name)


@dataclass
class Joining:
    """A program in the making; see `join`.

    Attributes:
        written: what stands where in the arena so far, by offset.
        cut: what was cut anew for a reader, and may be read by others.
    """

    outside: tuple[BoundaryTensor, ...]
    constants: RunMemory
    tensors: dict[str, dataflow.VectorTensor] = field(default_factory=dict)
    literals: dict[str, NDArray[Any]] = field(default_factory=dict)
    chains: list[dataflow.Chain] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    inputs: dict[str, BoundaryTensor] = field(default_factory=dict)
    written: dict[int, BoundaryTensor] = field(default_factory=dict)
    cut: dict[tuple[object, ...], BoundaryTensor] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    moves: Chains = field(init=False)

    def __post_init__(self) -> None:
        self.moves = Chains(self.tensors, self.literals, self.chains)

    def add(self, number: int, step: KernelStep, code: ChainKernelCode) -> None:
        if len(step.arguments) != len(code.parameters):
            raise ModelError(
                f"the code of kernel '{step.name}' takes other arguments; compile again"
            )
        touched = code.touched()
        names = {name: f"{number}.{name}" for name in code.flow.tensors}
        *operands, result = zip(code.parameters, step.arguments, strict=True)
        tables, weights = _tables(code), _weights(code)
        for parameter, place in operands:
            if parameter.name in touched:
                tensor = code.flow.tensors[parameter.name]
                kind = TABLE if parameter.name in tables else ""
                if parameter.name in weights and self.in_parts(place):
                    kind = WEIGHTS
                wanted = BoundaryTensor(
                    f"{place.region}.{place.offset}", place, parameter.shape, parameter.dtype
                )
                names[parameter.name] = self.operand(step.name, wanted, tensor, kind)
        parameter, place = result
        names[parameter.name] = self.result(parameter, place, code.flow.tensors[parameter.name])
        given = {p.name for p in code.parameters}
        for tensor in code.flow.tensors.values():
            if tensor.name not in given:
                self.tensors[names[tensor.name]] = replace(tensor, name=names[tensor.name])
        for literal, rows in code.literals.items():
            self.literals[names[literal]] = rows
        known = self.numbers(step, code)
        for chain in code.flow.chains:
            steps = tuple(_renamed(part, names, known) for part in chain.steps)
            self.chains.append(replace(chain, name=f"{number}.{chain.name}", steps=steps))
        self.owners += [number] * (len(self.chains) - len(self.owners))

    def numbers(self, step: KernelStep, code: ChainKernelCode) -> Mapping[str, NDArray[Any]]:
        """The number of every row of constants that operations name."""
        wanted, numbers = code.numbers(), {}
        for parameter, place in zip(code.parameters, step.arguments, strict=True):
            if parameter.name in wanted:
                held = self.constants.view(
                    place, np.dtype(to_numpy(parameter.dtype)), parameter.shape
                )
                numbers[parameter.name] = held.reshape(-1, parameter.shape[-1])[:, 0]
        return numbers

    def operand(
        self, kernel: str, wanted: BoundaryTensor, tensor: dataflow.VectorTensor, kind: str = ""
    ) -> str:
        """The program's tensor that a kernel reads; a table that rows are picked from lies in one
        piece, and is no other reader's.

        Args:
            wanted: named as what the caller gives is to be.
        """
        place = wanted.place
        if place.region == "arena":
            met = [held for held in self.written.values() if held.meets(wanted)]
            if met and not wanted.covered(met):  # the rest is the caller's, or the host's
                given = replace(wanted, tensor=f"given.{len(self.inputs)}.{place.offset}")
                self.inputs[given.tensor] = given
                self.tensors[given.tensor] = replace(tensor, name=given.tensor, role="input")
                met = [given, *met]
            if met:
                return self.handed_over(kernel, met, wanted, tensor, kind)
        cut = f"{rows_like(wanted)}.{tensor.block}{kind}"
        cut_rows = replace(wanted, tensor=f"{wanted.tensor}.{cut}")
        self.inputs[cut_rows.tensor] = cut_rows
        return self.known(cut_rows.tensor, tensor)

    def handed_over(
        self,
        kernel: str,
        met: Sequence[BoundaryTensor],
        wanted: BoundaryTensor,
        tensor: dataflow.VectorTensor,
        kind: str,
    ) -> str:
        """The tensor of what kernels before made: as one wrote it, or in the rows of the reader."""
        last, place = met[-1], wanted.place
        alike = not kind and last.place == place and rows_like(last) == rows_like(wanted)
        alike &= last.offsets is None and wanted.offsets is None
        previous = self.tensors[last.tensor]
        free = alike and previous.parts == 1 and last.tensor not in self.read
        if free and self.blocks_at_once(last.tensor, tensor.block) <= BLOCKS:
            # the first reader says how rows are blocked
            self.tensors[last.tensor] = replace(previous, block=tensor.block)
        if alike and self.tensors[last.tensor].block == tensor.block:
            return self.known(last.tensor, tensor)
        key = (place.offset, rows_like(wanted), tensor.block, kind)
        if key in self.cut and wanted.offsets is None:
            return self.known(self.cut[key].tensor, tensor)
        cut = replace(wanted, tensor=f"cut.{len(self.chains)}.{place.offset}")
        if wanted.offsets is None:
            self.cut[key] = cut
        self.tensors[cut.tensor] = replace(tensor, name=cut.tensor, role="temporary")
        cut_anew(kernel, self.moves, met, wanted, self.tensors[cut.tensor])
        return cut.tensor

    def blocks_at_once(self, name: str, block: int) -> int:
        """Blocks of a tensor that one chain would write at most."""
        rows = [
            rows for chain in self.chains for tensor, rows in writes_of(chain) if tensor == name
        ]
        return max((len(np.unique(numbers // block)) for numbers in rows if block), default=0)

    def in_parts(self, place: Place) -> bool:
        """Whether what stands at a place lies in parts of several chips."""
        return any(
            held.place == place and self.tensors[held.tensor].parts > 1
            for held in self.written.values()
        )

    def known(self, name: str, tensor: dataflow.VectorTensor) -> str:
        """A tensor of the program, as often in memory as every reader wants it."""
        before = self.tensors.get(name)
        self.read.add(name)
        if before is None:
            self.tensors[name] = replace(tensor, name=name)
        else:
            self.tensors[name] = replace(before, copies=max(before.copies, tensor.copies))
        return name

    def result(self, of: KernelParameter, place: Place, tensor: dataflow.VectorTensor) -> str:
        """The program's tensor that a kernel writes."""
        name = f"made.{place.offset}"
        self.tensors[name] = replace(tensor, name=name, role="temporary")
        self.stands(BoundaryTensor(name, place, of.shape, of.dtype))
        self.read.discard(name)
        return name

    def stands(self, tensor: BoundaryTensor) -> None:
        """From now on a tensor stands at its place."""
        self.written.pop(tensor.place.offset, None)
        self.written[tensor.place.offset] = tensor
        self.cut = {key: held for key, held in self.cut.items() if not held.meets(tensor)}
        if self.is_read_outside(tensor):
            self.tensors[tensor.tensor] = replace(self.tensors[tensor.tensor], role="output")

    def is_read_outside(self, held: BoundaryTensor) -> bool:
        """Whether others read from there, if only a part, or a whole that it is a part of."""
        return any(held.meets(other) for other in self.outside)

    def joined(self, name: str) -> Joined:
        outputs = [held for held in self.written.values() if self.is_read_outside(held)]
        return Joined(
            dataflow.Dataflow(name, self.tensors, tuple(self.chains)), self.literals,
            tuple(self.inputs.values()), tuple(outputs), tuple(self.owners),
        )  # fmt: skip


def _tables(code: ChainKernelCode) -> frozenset[str]:
    """Names of the tensors that some chain picks rows from."""
    steps = (step for chain in code.flow.chains for step in chain.steps)
    return frozenset(step.table for step in steps if isinstance(step, dataflow.Gather))


def _weights(code: ChainKernelCode) -> frozenset[str]:
    """Names of the tensors that some chain multiplies by."""
    steps = (step for chain in code.flow.chains for step in chain.steps)
    return frozenset(step.weights.tensor for step in steps if isinstance(step, dataflow.Product))


def _renamed(
    step: dataflow.Step, names: Mapping[str, str], known: Mapping[str, NDArray[Any]]
) -> dataflow.Step:
    match step:
        case dataflow.Compute(operations=operations):
            return replace(step, operations=tuple(_with_number(o, known) for o in operations))
        case dataflow.Read(rows, frame):
            return replace(step, rows=_rows(rows, names), frame=names.get(frame, ""))
        case dataflow.Write(rows=rows):
            return replace(step, rows=_rows(rows, names))
        case dataflow.Product(weights=weights):
            return replace(step, weights=_rows(weights, names))
        case dataflow.Gather(table=table):
            return replace(step, table=names[table])
        case _:
            return step


def _with_number(
    operation: dataflow.Operation, known: Mapping[str, NDArray[Any]]
) -> dataflow.Operation:
    """An operation with the number that stood in a row of constants."""
    if operation.known is None:
        return operation
    tensor, row = operation.known
    number = float(known[tensor][row])
    if operation.function == "select" and operation.dtype in BYTES:
        low, high = BYTES[operation.dtype]
        number = min(max(number, low), high)
    return replace(operation, immediate=number, known=None)


def _rows(rows: dataflow.Rows, names: Mapping[str, str]) -> dataflow.Rows:
    return dataflow.Rows(names[rows.tensor], rows.numbers)
