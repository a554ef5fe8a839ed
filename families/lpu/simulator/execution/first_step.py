"""The first step of a kernel's chains whose output differs from what its loop program means.

Chains are evaluated one after the other (`chains`). As soon as the last chain of a nest that writes
to memory is done, its rows are compared with what `families.kit.programs.in_arrays` says stands
there. What flows is in no memory: of the chains since the last nest that was right, every step is
changed in one place until the nest is right, and a change that makes it so names the step.

Invariant: nothing that selection decided is taken to be right but which nest a chain is for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.kit.programs.in_arrays import Written, differs, run
from tilesmith.families.kit.simulation.fitting import fitted
from tilesmith.families.lpu.codegen.dataflow import (
    FUNCTIONS,
    LANES,
    Chain,
    Compute,
    Dataflow,
    Operation,
    Product,
    Read,
    Rows,
    Shuffle,
    Step,
    Write,
)
from tilesmith.families.lpu.codegen.selection.tracing import (
    StoreInstance,
    TracedNests,
    rows_of_places,
)
from tilesmith.families.lpu.simulator.execution.chains import Tensors, run_chain
from tilesmith.search_space.expressions.scalar import constants
from tilesmith.search_space.ir.program import Program, Statement, blocks

Arrays = NDArray[Any]

TRIES = 2500
"""Changes that are tried in all."""

_NO_PROGRAM = (IndexError, KeyError, TypeError, ValueError)
"""What changed steps raise that compute nothing."""


@dataclass(frozen=True, eq=False)
class WrongChainStep:
    """A step whose output differs.

    Attributes:
        chain, step: by position in the dataflow; `operation` of a VXM expression, else -1.
        among: (chain, step, operation) one of which it is, itself first.
        instance: the nest that is wrong.
        index, computed, wanted: its first wrong element.
        repair: what would be right; "" if that is not known.
    """

    among: tuple[tuple[int, int, int], ...]
    instance: StoreInstance
    index: tuple[int, ...]
    computed: float
    wanted: float
    repair: str


def first_step(
    flow: Dataflow,
    contents: Mapping[str, Arrays],
    traced: TracedNests,
    program: Program,
    arrays: Mapping[str, Arrays],
) -> WrongChainStep | None:
    """The first step that differs; None if none does.

    Args:
        flow: its chains named as the traced program's.
        contents: of its tensors, as `functional.execute`.
        arrays: the program's parameters but its output.

    Raises:
        JobError: the program has too many points.
    """
    wanted: dict[object, Written] = {}

    def note(statement: Statement, around: Mapping[str, int], written: Written) -> None:
        wanted[id(statement), tuple(sorted(around.items()))] = written

    run(program, arrays, traced.is_nest, note)
    number = {chain.name: n for n, chain in enumerate(flow.chains)}
    ending: dict[int, list[StoreInstance]] = {}
    for instance in traced.instances:
        if instance.chain in number and instance.key in wanted:
            ending.setdefault(number[instance.chain], []).append(instance)
    tensors = Tensors(flow.tensors, contents)
    right, before = -1, tensors.copy()
    for at, chain in enumerate(flow.chains):
        run_chain(chain, tensors)
        for instance in ending.get(at, ()):
            place = _Place(flow, at, instance, wanted[instance.key])
            if place.wrong(tensors).any():
                return _named(flow, (right + 1, at), before, place, program)
        if at in ending:
            right, before = at, tensors.copy()
    return None


class _Place:
    """Where a nest's results stand, and what they should be."""

    def __init__(self, flow: Dataflow, at: int, instance: StoreInstance, written: Written) -> None:
        step = flow.chains[at].steps[instance.step]
        if not isinstance(step, Write):
            step = next(s for s in flow.chains[at].steps if isinstance(s, Write))
        self.tensor, self.instance, self.written = step.rows.tensor, instance, written
        shape = tuple(extent.constant or 0 for extent in instance.buffer.shape)
        self.rows, self.lanes = rows_of_places(instance.buffer, written.places, shape)

    def values_in(self, tensors: Tensors) -> Arrays:
        return np.asarray(tensors[self.tensor][self.rows, self.lanes])

    def wrong(self, tensors: Tensors) -> NDArray[np.bool_]:
        return differs(self.values_in(tensors), self.written.values)


def _named(
    flow: Dataflow, part: tuple[int, int], before: Tensors, place: _Place, program: Program
) -> WrongChainStep:
    first, last = part
    chains = flow.chains[first : last + 1]

    def after(changed: Sequence[Chain]) -> Tensors:
        tensors = before.copy()
        for chain in changed:
            run_chain(chain, tensors)
        return tensors

    plain = after(chains)
    wrong = np.flatnonzero(place.wrong(plain).reshape(-1))
    at = int(wrong[0])
    constants = _constants_of(program) | _immediates(flow)
    repairs = _repaired(flow, chains, after, place, constants)
    among = [(first + chain, step, operation) for chain, step, operation, _ in repairs]
    if not among:
        among = [
            (first + n, m, -1)
            for n, chain in enumerate(chains)
            for m, step in enumerate(chain.steps)
            if not isinstance(step, Read | Write)
        ] or [(last, place.instance.step, -1)]
    values = place.written.values.reshape(-1)
    return WrongChainStep(
        tuple(among), place.instance,
        tuple(int(np.asarray(axis).reshape(-1)[at]) for axis in place.written.places),
        float(place.values_in(plain).reshape(-1)[at]), float(values[at]),
        repairs[0][3] if repairs else "",
    )  # fmt: skip


def _repaired(
    flow: Dataflow,
    chains: Sequence[Chain],
    after: Callable[[Sequence[Chain]], Tensors],
    place: _Place,
    constants: set[float],
) -> list[tuple[int, int, int, str]]:
    """Steps of chains that a change makes right: (chain, step, operation, the change in words)."""
    repairs: list[tuple[int, int, int, str]] = []
    left = TRIES
    for kinds in (Compute, Read | Product, Shuffle):  # those with the fewest changes first
        for number, chain in enumerate(chains):
            for at, step in enumerate(chain.steps):
                if not isinstance(step, kinds):
                    continue
                trial = _Trial(chains, number, at, after, place)
                done: set[int] = set()
                for changed, operation, words in _changes(flow, step, constants, trial.gap):
                    left -= 1
                    if left <= 0:
                        return repairs
                    if operation not in done and trial.is_right(changed):
                        repairs.append((number, at, operation, words))
                        done.add(operation)
        if repairs:
            return repairs
    return repairs


@dataclass(frozen=True, eq=False)
class _Trial:
    """Chains with one step changed.

    Attributes:
        number, at: of the chain and the step.
        after: what tensors hold after chains.
    """

    chains: Sequence[Chain]
    number: int
    at: int
    after: Callable[[Sequence[Chain]], Tensors]
    place: _Place

    def _with(self, step: Step) -> Tensors:
        chain = self.chains[self.number]
        steps = (*chain.steps[: self.at], step, *chain.steps[self.at + 1 :])
        whole = [*self.chains[: self.number], replace(chain, steps=steps)]
        with np.errstate(all="ignore"):
            return self.after([*whole, *self.chains[self.number + 1 :]])

    def gap(self, step: Step) -> Arrays:
        """How far the nest's results are away; no numbers where nothing is computed."""
        wanted = self.place.written.values.astype(np.float64).reshape(-1)
        try:
            return np.asarray(
                self.place.values_in(self._with(step)).astype(np.float64).reshape(-1) - wanted
            )
        except _NO_PROGRAM:
            return np.full(wanted.size, np.nan)

    def is_right(self, step: Step) -> bool:
        """Whether the nest is right."""
        try:
            return not self.place.wrong(self._with(step)).any()
        except _NO_PROGRAM:
            return False


def _changes(
    flow: Dataflow, step: Step, constants: set[float], gap: Callable[[Step], Arrays]
) -> Iterator[tuple[Step, int, str]]:
    """A step changed in one place: it, the operation that is changed, and how in words."""
    match step:
        case Compute(operations=operations):
            for at in range(len(operations)):
                for changed, words in _changed_operation(step, at, constants, gap):
                    yield changed, at, words
        case Shuffle(lanes=lanes):
            others = {
                other.lanes
                for chain in flow.chains
                for other in chain.steps
                if isinstance(other, Shuffle)
            }
            for by in range(1, 17):
                others |= {lanes[by:] + lanes[:by], lanes[-by:] + lanes[:-by]}
            for by in range(-LANES + 1, LANES):
                moved = tuple(n + by if 0 <= n + by < LANES else -1 for n in range(LANES))
                others.add(moved)
            for other in others - {lanes}:
                yield replace(step, lanes=other), -1, "right with another movement of lanes"
        case Read(rows=rows):
            for known in _rows(flow, rows):
                text = f"right with rows {_told(known)} of '{known.tensor}'"
                yield replace(step, rows=known), -1, text
        case Product(weights=weights):
            for known in _rows(flow, weights):
                text = f"right with rows {_told(known)} of '{known.tensor}' as weights"
                yield replace(step, weights=known), -1, text
        case _:
            return


def _changed_operation(
    step: Compute, at: int, constants: set[float], gap: Callable[[Step], Arrays]
) -> Iterator[tuple[Step, str]]:
    """A step with its operation `at` changed, and how in words."""
    operations = step.operations
    operation = operations[at]

    def put(changed: Operation) -> Compute:
        return replace(step, operations=(*operations[:at], changed, *operations[at + 1 :]))

    def with_number(value: float) -> Compute:
        return put(replace(operation, immediate=value))

    for changed, words in _operations(operation, constants):
        yield put(changed), words
    if operation.immediate is not None:
        for value in fitted(lambda x: gap(with_number(x)), float(operation.immediate)):
            yield with_number(value), _with(value)


def _told(rows: Rows) -> str:
    numbers = rows.numbers
    return f"{int(numbers[0])} to {int(numbers[-1])}"


def _with(value: float) -> str:
    return f"right with {value:.9g} in place of a number"


def _operations(operation: Operation, constants: set[float]) -> Iterator[tuple[Operation, str]]:
    for name, arity in FUNCTIONS.items():
        if arity == len(operation.operands) and name != operation.function:
            yield replace(operation, function=name), f"right with '{name}'"
    if len(operation.operands) == 2:
        turned = replace(operation, operands=operation.operands[::-1])
        yield turned, "right with its operands swapped"
    if operation.immediate is not None:
        for value in sorted(constants - {operation.immediate}):
            yield replace(operation, immediate=value), _with(value)


def _rows(flow: Dataflow, rows: Rows) -> list[Rows]:
    """Rows that other steps name, as many, of tensors of the same type."""
    kind = flow.tensors[rows.tensor].dtype
    known: dict[tuple[str, bytes], Rows] = {}
    for chain in flow.chains:
        for step in chain.steps:
            other = getattr(step, "weights", getattr(step, "rows", None))
            if not isinstance(other, Rows) or len(other) != len(rows):
                continue
            if flow.tensors[other.tensor].dtype == kind and not isinstance(step, Write):
                known[other.tensor, other.numbers.tobytes()] = other
    shifts = [rows.numbers + by for by in (-1, 1, -len(rows), len(rows))]
    turned = [np.roll(rows.numbers, by) for by in (-1, 1)]
    for numbers in (*shifts, *turned, rows.numbers[::-1]):
        moved = Rows(rows.tensor, numbers)
        inside = moved.numbers.max() < flow.tensors[rows.tensor].rows
        if inside and (moved.numbers.min() >= 0 or rows.numbers.min() < 0):
            known[moved.tensor, moved.numbers.tobytes()] = moved
    known.pop((rows.tensor, rows.numbers.tobytes()), None)
    return list(known.values())


def _immediates(flow: Dataflow) -> set[float]:
    """Numbers in the expressions of chains, which functions are made of."""
    return {
        float(operation.immediate)
        for chain in flow.chains
        for step in chain.steps
        if isinstance(step, Compute)
        for operation in step.operations
        if operation.immediate is not None
    }


def _constants_of(program: Program) -> set[float]:
    """Numbers in a program's expressions, their opposites and inverses."""
    numbers = {0.0, 1.0, -1.0}
    for block in blocks(program.body):
        numbers |= set(constants(block.value))
    numbers |= {-value for value in numbers} | {1 / value for value in numbers if value}
    return {value for value in numbers if np.isfinite(value)}
