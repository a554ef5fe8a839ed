"""The chains of several kernels as one program: names of their own, tensors they have in common.

What two kernels have at one place of the arena is one tensor, if both cut it into the same rows.
Constants are shared where place and rows are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from numpy.typing import NDArray

from tilesmith.codegen.lpu.dataflow import (
    Chain,
    Dataflow,
    Gather,
    Product,
    Read,
    Rows,
    Step,
    Tensor,
    Write,
)
from tilesmith.compiler.backends.lpu.kernel_code import KernelCode, Parameter
from tilesmith.compiler.program import KernelStep, Place
from tilesmith.search_space.dtypes import size_of
from tilesmith.search_space.errors import ModelError


@dataclass(frozen=True)
class Held:
    """A tensor of the program that stands in the executable's memory before or after a run."""

    tensor: str
    place: Place
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Joined:
    """One program of several kernels.

    Attributes:
        literals: contents of constant tensors that stand nowhere in memory, (rows, 320).
        inputs: what is filled before a run, weights too.
        outputs: what is read after it.
        owners: the number of the kernel that each chain is of.
    """

    flow: Dataflow
    literals: Mapping[str, NDArray[Any]]
    inputs: tuple[Held, ...]
    outputs: tuple[Held, ...]
    owners: tuple[int, ...]


def join(
    name: str, parts: Sequence[tuple[KernelStep, KernelCode]], outside: frozenset[int]
) -> Joined:
    """Kernels in their order as one program.

    Args:
        outside: offsets in the arena of what is read after the program.

    Raises:
        ModelError: code that does not fit its arguments.
    """
    joining = _Joining(outside)
    for number, (step, code) in enumerate(parts):
        joining.add(number, step, code)
    return joining.joined(name)


@dataclass
class _Joining:
    outside: frozenset[int]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    literals: dict[str, NDArray[Any]] = field(default_factory=dict)
    chains: list[Chain] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    inputs: dict[str, Held] = field(default_factory=dict)
    written: dict[int, Held] = field(default_factory=dict)

    def add(self, number: int, step: KernelStep, code: KernelCode) -> None:
        if len(step.arguments) != len(code.parameters):
            raise ModelError(
                f"the code of kernel '{step.name}' takes other arguments; compile again"
            )
        touched = code.touched()
        names = {name: f"{number}.{name}" for name in code.flow.tensors}
        *operands, result = zip(code.parameters, step.arguments, strict=True)
        for parameter, place in operands:
            if parameter.name in touched:
                tensor = code.flow.tensors[parameter.name]
                names[parameter.name] = self.operand(step, parameter, place, tensor)
        parameter, place = result
        names[parameter.name] = self.result(parameter, place, code.flow.tensors[parameter.name])
        given = {p.name for p in code.parameters}
        for tensor in code.flow.tensors.values():
            if tensor.name not in given:
                self.tensors[names[tensor.name]] = replace(tensor, name=names[tensor.name])
        for literal, rows in code.literals.items():
            self.literals[names[literal]] = rows
        for chain in code.flow.chains:
            steps = tuple(_renamed(part, names) for part in chain.steps)
            self.chains.append(replace(chain, name=f"{number}.{chain.name}", steps=steps))
            self.owners.append(number)

    def operand(self, step: KernelStep, of: Parameter, place: Place, tensor: Tensor) -> str:
        """The program's tensor that a kernel reads."""
        wanted = Held(f"{place.region}.{place.offset}", place, of.shape, of.dtype)
        if place.region == "arena" and place.offset in self.written:
            found = self.written[place.offset]
            if rows_like(found) != rows_like(wanted):
                raise ModelError(f"kernel '{step.name}' reads other rows than were written")
        else:
            if place.region == "arena" and any(_meet(wanted, w) for w in self.written.values()):
                raise ModelError(f"kernel '{step.name}' reads a part of what was written")
            cut = f"{rows_like(wanted)}.{tensor.block}"
            found = replace(wanted, tensor=f"{wanted.tensor}.{cut}")
            self.inputs[found.tensor] = found
        known = self.tensors.get(found.tensor)
        if known is None:
            self.tensors[found.tensor] = replace(tensor, name=found.tensor)
        elif known.block != tensor.block:
            raise ModelError(f"kernel '{step.name}' wants other blocks than were written")
        else:
            copies = max(known.copies, tensor.copies)
            self.tensors[found.tensor] = replace(known, copies=copies)
        return found.tensor

    def result(self, of: Parameter, place: Place, tensor: Tensor) -> str:
        """The program's tensor that a kernel writes."""
        name = f"made.{place.offset}"
        self.written[place.offset] = Held(name, place, of.shape, of.dtype)
        role = "output" if place.offset in self.outside else "temporary"
        self.tensors[name] = replace(tensor, name=name, role=role)  # type: ignore[arg-type]
        return name

    def joined(self, name: str) -> Joined:
        outputs = [h for offset, h in self.written.items() if offset in self.outside]
        return Joined(
            Dataflow(name, self.tensors, tuple(self.chains)), self.literals,
            tuple(self.inputs.values()), tuple(outputs), tuple(self.owners),
        )  # fmt: skip


def _meet(one: Held, other: Held) -> bool:
    """Whether two tensors of the arena share bytes."""
    first, second = sorted((one, other), key=lambda held: held.place.offset)
    nbytes = prod(first.shape) * size_of(first.dtype)
    return first.place.offset + nbytes > second.place.offset


def rows_like(held: Held) -> tuple[int, int, str]:
    """What two tensors have alike that lie in the same rows."""
    *lead, last = held.shape
    places = 1
    for extent in lead:
        places *= extent
    return (places, last, held.dtype)


def _renamed(step: Step, names: Mapping[str, str]) -> Step:
    match step:
        case Read(rows, frame):
            return replace(step, rows=_rows(rows, names), frame=names.get(frame, ""))
        case Write(rows=rows):
            return replace(step, rows=_rows(rows, names))
        case Product(weights=weights):
            return replace(step, weights=_rows(weights, names))
        case Gather(table=table):
            return replace(step, table=names[table])
        case _:
            return step


def _rows(rows: Rows, names: Mapping[str, str]) -> Rows:
    return Rows(names[rows.tensor], rows.numbers)
