"""Expressions of VXM made shorter, once constants are known: what is saved is ALUs.

    (x * a[c]) * b                one product with a[c] * b, rounded once at compile time
    (x * a + y * b) * c           x * (a * c) + y * (b * c)
    u = x * a, v = x * b          u = x, v = u * (b / a), where x takes a into its constants (GELU)
    (x * a) * y * b               (x * y) * (a * b)
    x + 0, x * 1                  x
    round(x) + z, then bytes      x + z, then bytes, of even z: ties round alike
    whole numbers, then bytes     bytes at once: both round to even and saturate
    max(x, 0), then bytes         bytes at once, where the bound is theirs

The first four are what requantisation is made of elsewhere too (one multiplier a channel): a result
may round otherwise than by two multiplications, by one unit in the last place of a float.

Invariants: an operation is only changed where nothing else reads what it gave; rows that a chain no
longer needs are no longer read.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.rewriting.rounds import Rounds
from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import reads_of, writes_of
from tilesmith.families.lpu.codegen.scheduling.rewriting.merging import merged
from tilesmith.families.lpu.codegen.scheduling.rewriting.normal_form import renamed

Content = Callable[[str], NDArray[Any] | None]
"""Rows of a constant tensor, shape (rows, 320), by its name; None if they are not known."""

BOUNDS = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0)}

MOST_SHIFT = 255
"""Of numbers that are added before rounding: a float32 keeps its digits behind the point."""


@dataclass(frozen=True, eq=False)
class Simplified:
    """A program with shorter expressions.

    Attributes:
        contents: of its new constants.
        numbers: of its chains in the program before; of a joined one the first.
    """

    flow: dataflow.Dataflow
    contents: Mapping[str, NDArray[Any]]
    numbers: tuple[int, ...]


def simplified(flow: dataflow.Dataflow, content: Content, apart: bool = False) -> Simplified:
    """The same program with shorter expressions, and chains that one can do joined (`merging`).

    Args:
        apart: leave chains as they are cut.
    """
    derived = _DerivedConstants(flow.tensors, content)

    def shorten(chain: dataflow.Chain) -> dataflow.Chain:
        return _chain(chain, derived)

    tensors = ChainMap(derived.tensors, dict(flow.tensors))
    shorter = [shorten(chain) for chain in flow.chains]
    numbered = [*enumerate(shorter)] if apart else merged(tensors, shorter, shorten)
    numbers, chains = zip(*numbered, strict=True) if numbered else ((), ())
    kept = {name for chain in chains for name, _ in (*reads_of(chain), *writes_of(chain))}
    left = {n: t for n, t in tensors.items() if t.role != "temporary" or n in kept}
    return Simplified(dataflow.Dataflow(flow.name, left, chains), derived.contents, numbers)


@dataclass
class _DerivedConstants:
    """Constants that are made of others."""

    known: Mapping[str, dataflow.VectorTensor]
    content: Content
    tensors: dict[str, dataflow.VectorTensor] = field(default_factory=dict)
    contents: dict[str, NDArray[Any]] = field(default_factory=dict)

    def rows(self, tensor: str) -> NDArray[Any] | None:
        """What a constant tensor holds, in float32."""
        of = self.tensors.get(tensor) or self.known[tensor]
        if of.role != "constant" or of.dtype != "float32":
            return None
        return self.contents.get(tensor) if tensor in self.contents else self.content(tensor)

    def scaled(self, tensor: str, factor: float) -> str | None:
        """The constant tensor whose rows are another's times a number."""
        name = f"{tensor}*{factor!r}"
        if name not in self.tensors:
            rows = self.rows(tensor)
            if rows is None:
                return None
            of = self.tensors.get(tensor) or self.known[tensor]
            self.tensors[name] = replace(of, name=name)
            self.contents[name] = (rows * np.float32(factor)).astype(np.float32)
        return name


def _chain(chain: dataflow.Chain, derived: _DerivedConstants) -> dataflow.Chain:
    if not any(isinstance(step, dataflow.Compute) for step in chain.steps):
        return chain
    reads: list[dataflow.Step] = []
    steps = list(chain.steps)
    for number, step in enumerate(steps):
        if isinstance(step, dataflow.Compute) and len(step.outputs) == 1:
            expression = _Expression(step, chain.steps, derived, reads)
            expression.shorten()
            steps[number] = expression.step()
    return replace(chain, steps=_without_unread([*reads, *_behind(steps, len(reads))]))


def _behind(steps: list[dataflow.Step], count: int) -> list[dataflow.Step]:
    """Steps behind so many new ones, whose values are numbered below zero."""
    moved = {
        v: dataflow.ChainValue(count + v.step if v.step >= 0 else -1 - v.step, v.output)
        for step in steps
        for v in dataflow.inputs_of(step)
    }
    return [renamed(step, moved) for step in steps]


def _without_unread(steps: list[dataflow.Step]) -> tuple[dataflow.Step, ...]:
    """Steps but for reads whose rows nothing takes."""
    taken = {value.step for step in steps for value in dataflow.inputs_of(step)}
    kept = [n for n, step in enumerate(steps) if n in taken or not isinstance(step, dataflow.Read)]
    places = {old: new for new, old in enumerate(kept)}
    moved = {
        value: dataflow.ChainValue(places[value.step], value.output)
        for step in steps
        for value in dataflow.inputs_of(step)
        if value.step in places
    }
    return tuple(renamed(steps[n], moved) for n in kept)


NEW = 1 << 20
"""From where on operands of an expression are numbered that it did not have before."""


@dataclass
class _Expression:
    """One step of VXM, its operations by number (inputs first) as they are changed.

    Attributes:
        reads: new steps of the chain; value `-1 - n` is that of step n of these.
    """

    given: dataflow.Compute
    steps: tuple[dataflow.Step, ...]
    derived: _DerivedConstants
    reads: list[dataflow.Step]
    inputs: dict[int, dataflow.ChainValue] = field(init=False)
    operations: dict[int, dataflow.Operation] = field(init=False)
    last: int = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = dict(enumerate(self.given.inputs))
        first = len(self.inputs)
        self.operations = {first + n: o for n, o in enumerate(self.given.operations)}
        (self.last,) = self.given.outputs

    def shorten(self) -> None:
        """Until nothing changes."""
        rounds = Rounds("a chain of an LPU's kernel", 64 * (len(self.operations) + 1))
        while any(self.changed(number) for number in sorted(self.operations)):
            rounds.another()

    def readers(self, number: int) -> int:
        uses = sum(o.operands.count(number) for o in self.operations.values())
        return uses + (number == self.last)

    def own(self, number: int) -> dataflow.Operation | None:
        """The operation behind an operand that nothing else reads."""
        return self.operations.get(number) if self.readers(number) == 1 else None

    def changed(self, number: int) -> bool:
        """Make one operation simpler, if it can be."""
        operation = self.operations.get(number)
        if operation is None:
            return False
        return (
            self.neutral(number, operation)
            or self.bytes(number, operation)
            or self.shifted(number, operation)
            or self.scale(number, operation)
            or self.siblings(number, operation)
            or self.late(number, operation)
        )

    def put(self, number: int, other: int) -> bool:
        """Have readers of an operation read another number instead."""
        del self.operations[number]
        for at, operation in self.operations.items():
            operands = tuple(other if o == number else o for o in operation.operands)
            self.operations[at] = replace(operation, operands=operands)
        self.last = other if self.last == number else self.last
        return True

    def neutral(self, number: int, operation: dataflow.Operation) -> bool:
        """x + 0, x - 0, x * 1."""
        neutral = {"add": 0.0, "subtract": 0.0, "multiply": 1.0}.get(operation.function)
        if neutral is None or operation.immediate != neutral or number == self.last:
            return False
        if operation.function == "subtract" and operation.operands[0] < 0:
            return False
        (other,) = (o for o in operation.operands if o >= 0)
        same = other in self.operations and self.operations[other].dtype == operation.dtype
        return same and self.put(number, other)

    def bytes(self, number: int, operation: dataflow.Operation) -> bool:
        """A conversion to bytes of what was rounded or bounded for it."""
        if operation.function != "convert" or operation.dtype not in BOUNDS:
            return False
        (source,) = operation.operands
        before = self.own(source)
        if before is None:
            return False
        low, high = BOUNDS[operation.dtype]
        rounds = before.function == "convert" and before.dtype == "int32"
        below = before.function == "maximum" and (before.immediate or 0.0) <= low
        above = before.function == "minimum" and (before.immediate or 0.0) >= high
        if not rounds and (before.immediate is None or not (below or above)):
            return False
        (inner,) = (o for o in before.operands if o >= 0)
        return self.put(source, inner)

    def shifted(self, number: int, operation: dataflow.Operation) -> bool:
        """A conversion to bytes of a rounded number and a whole one: of an even one the sum rounds
        as its first part does, ties too."""
        if operation.function != "convert" or operation.dtype not in BOUNDS:
            return False
        (source,) = operation.operands
        total = self.own(source)
        if total is None or (total.function, total.dtype) != ("add", "int32"):
            return False
        if total.immediate is None or total.immediate % 2 or abs(total.immediate) > MOST_SHIFT:
            return False
        rounded = max(total.operands)
        before = self.own(rounded)
        if before is None or (before.function, before.dtype) != ("convert", "int32"):
            return False
        (inner,) = before.operands
        if inner not in self.operations or self.operations[inner].dtype != "float32":
            return False
        del self.operations[rounded]
        operands = tuple(inner if o == rounded else o for o in total.operands)
        self.operations[source] = replace(total, operands=operands, dtype="float32")
        return True

    def scale(self, number: int, operation: dataflow.Operation) -> bool:
        """A number times what is a product, or a sum of products, with constants."""
        if operation.function != "multiply" or operation.dtype != "float32":
            return False
        if operation.immediate is None or number == self.last:
            return False
        (source,) = (o for o in operation.operands if o >= 0)
        factor = float(np.float32(operation.immediate))
        if not self.absorbs(source):
            return False
        self.absorb(source, factor)
        return self.put(number, source)

    def siblings(self, number: int, operation: dataflow.Operation) -> bool:
        """Several products of one number with others: the first is it, with the factor in what it
        is made of."""
        readers = [(n, o) for n, o in sorted(self.operations.items()) if number in o.operands]
        if len(readers) < 2 or number == self.last or not self.absorbs(number, operation):
            return False
        if any(_factor(o) is None or n == self.last for n, o in readers):
            return False
        (first, before), *others = readers
        factor = _factor(before)
        assert factor is not None, "all have one"
        self.absorb(number, factor)
        for other, product in others:
            ratio = float(np.float32((_factor(product) or 0.0) / factor))
            self.operations[other] = replace(product, immediate=ratio)
        return self.put(first, number)

    def late(self, number: int, operation: dataflow.Operation) -> bool:
        """A factor of a product whose reader has one too."""
        readers = [(n, o) for n, o in self.operations.items() if number in o.operands]
        if operation.function != "multiply" or operation.immediate is not None:
            return False
        if self.readers(number) != 1 or not readers or operation.dtype != "float32":
            return False
        ((reader, behind),) = readers
        for operand in operation.operands:
            before = self.own(operand)
            factor, more = _factor(before) if before else None, _factor(behind)
            if before is None or factor is None or more is None:
                continue
            (inner,) = (o for o in before.operands if o >= 0)
            product = float(np.float32(factor) * np.float32(more))
            self.operations[reader] = replace(behind, immediate=product)
            return self.put(operand, inner)
        return False

    def absorbs(self, number: int, operation: dataflow.Operation | None = None) -> bool:
        """Whether a factor can go into the constants behind a number.

        Args:
            operation: that makes it, if others may read it too.
        """
        operation = operation or self.own(number)
        if operation is None or operation.dtype != "float32":
            return False
        if operation.function == "add" and operation.immediate is None:
            return all(self.absorbs(o) for o in operation.operands)
        if operation.function != "multiply":
            return False
        return operation.immediate is not None or self.constant(operation) is not None

    def constant(self, operation: dataflow.Operation) -> int | None:
        """Which operand of a product is rows of constants."""
        for place, operand in enumerate(operation.operands):
            if operand in self.inputs:
                step = self.read(operand)
                if step is not None and self.derived.rows(step.rows.tensor) is not None:
                    return place
        return None

    def read(self, operand: int) -> dataflow.Read | None:
        """The read that an operand comes from."""
        number = self.inputs[operand].step
        step = self.steps[number] if number >= 0 else self.reads[-1 - number]
        return step if isinstance(step, dataflow.Read) and not step.frame else None

    def absorb(self, number: int, factor: float) -> None:
        operation = self.operations[number]
        if operation.function == "add":
            for operand in operation.operands:
                self.absorb(operand, factor)
            return
        if operation.immediate is not None:
            product = float(np.float32(operation.immediate) * np.float32(factor))
            self.operations[number] = replace(operation, immediate=product)
            return
        place = self.constant(operation)
        assert place is not None, "the caller looked"
        operands = list(operation.operands)
        step = self.read(operands[place])
        assert step is not None, "constants are read"
        name = self.derived.scaled(step.rows.tensor, factor)
        assert name is not None, "its content is known"
        self.reads.append(replace(step, rows=dataflow.Rows(name, step.rows.numbers)))
        operands[place] = NEW + len(self.inputs)
        self.inputs[operands[place]] = dataflow.ChainValue(-len(self.reads))
        self.operations[number] = replace(operation, operands=tuple(operands))

    def step(self) -> dataflow.Compute:
        """The step as it is now."""
        used = {o for operation in self.operations.values() for o in operation.operands}
        inputs = [number for number in self.inputs if number in used or number == self.last]
        order = {number: at for at, number in enumerate([*inputs, *sorted(self.operations)])}
        operations = tuple(
            replace(o, operands=tuple(order.get(p, -1) for p in o.operands))
            for _, o in sorted(self.operations.items())
        )
        values = tuple(self.inputs[number] for number in inputs)
        return dataflow.Compute(values, operations, (order[self.last],))


def _factor(operation: dataflow.Operation) -> float | None:
    """What an operation multiplies a float by, if it is that alone."""
    if (operation.function, operation.dtype) != ("multiply", "float32"):
        return None
    return operation.immediate or None
