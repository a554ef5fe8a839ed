"""The first instruction of a kernel whose output differs from what its loop program means.

The stream is executed row by row. As soon as the last instruction of a nest is done, what the nest
writes is compared with what `families.kit.programs.in_arrays` says stands there after it; so the
first nest that is wrong is found, with everything before it right. Within it, every byte is known
by the instruction that wrote it last: an instruction that computes wrong elements from what other
nests made is at fault; where several instructions make an element (an expression in temporaries),
each of them is changed in one place until the nest is right (`repairs`).

Invariant: nothing that selection, scheduling or placement decided is taken to be right but which
nest an instruction is for.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.kit.programs.in_arrays import Written, differs, run
from tilesmith.families.trainium.codegen.isa.instructions import Instruction, InstructionStream
from tilesmith.families.trainium.codegen.selection.tracing import NestInstance, TracedStream
from tilesmith.families.trainium.simulator.execution.repairs import repairs
from tilesmith.families.trainium.simulator.execution.replaying import RESULTS, Replay
from tilesmith.search_space.ir.program import Program, Statement

Array = NDArray[Any]
Key = tuple[int, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, eq=False)
class InstructionDifference:
    """An instruction whose output differs.

    Attributes:
        row: of the stream.
        among: rows one of which it is, in order, `row` first; alone if it is certain.
        instance: the nest it is for.
        buffer, index: the first element that is wrong.
        computed, wanted: what stands there, and what should.
        repair: a change of the instruction that makes the nest right; "" if none is known.
    """

    row: int
    among: tuple[int, ...]
    instance: NestInstance
    buffer: str
    index: tuple[int, ...]
    computed: float
    wanted: float
    repair: str = ""


def first_difference(
    stream: InstructionStream,
    hbm: Sequence[Array],
    traced: TracedStream,
    program: Program,
    arrays: Mapping[str, Array],
) -> InstructionDifference | None:
    """The first row that differs; None if none does, or the stream is not the traced program's.

    Args:
        hbm: the bytes of the stream's tensors before it runs; not changed.
        arrays: the program's parameters but its output.

    Raises:
        JobError: the program has too many points.
    """
    if len(traced.owners) != len(stream):
        return None
    return _Search(stream, hbm, traced, program, arrays).first()


class _Search:
    def __init__(
        self,
        stream: InstructionStream,
        hbm: Sequence[Array],
        traced: TracedStream,
        program: Program,
        arrays: Mapping[str, Array],
    ) -> None:
        self.stream, self.hbm, self.traced = stream, hbm, traced
        self.program, self.arrays = program, arrays
        owners = np.array(traced.owners, np.int64)
        self.owners = owners[stream.rows["position"]].tolist()
        self.rows = list(stream)

    def first(self) -> InstructionDifference | None:
        """See `first_difference`."""
        wanted = self.meanings()
        replay, left = Replay(self.stream, self.hbm), Counter(self.owners)
        for row, owner in zip(self.rows, self.owners, strict=True):
            replay.step(row)
            left[owner] -= 1
            if left[owner] or owner < 0:
                continue
            instance = self.traced.instances[owner]
            known = wanted.get(instance.key)
            if known is None:
                continue
            wrong = differs(replay.at(instance.where, known.places), known.values)
            if wrong.any():
                return self.within(owner, known)
        return None

    def meanings(self) -> dict[Key, Written]:
        """What each nest leaves behind."""
        meanings: dict[Key, Written] = {}

        def note(statement: Statement, around: Mapping[str, int], written: Written) -> None:
            meanings[id(statement), tuple(sorted(around.items()))] = written

        run(self.program, self.arrays, self.traced.is_nest, note)
        return meanings

    def within(self, owner: int, known: Written) -> InstructionDifference:
        """The row of a wrong nest at which the error arises."""
        instance = self.traced.instances[owner]
        mine = [n for n, of in enumerate(self.owners) if of == owner]
        replay = Replay(self.stream, self.hbm)
        replay.sign()
        for row in self.rows[: mine[0]]:
            replay.step(row)
        spoilt = self.spoilt(instance, replay)
        if spoilt is not None:
            return spoilt
        replay.keep()
        stretch = self.rows[mine[0] : mine[-1] + 1]
        sources = self.sources(replay, stretch, set(mine))
        values = replay.at(instance.where, known.places)
        wrong = np.flatnonzero(differs(values, known.values))
        authors = replay.authors_at(instance.where, known.places)[wrong]
        inside = [int(a) for a in np.unique(authors) if int(a) in sources]
        among = closure(sources, inside[0]) if inside else mine
        if inside:  # of the elements of that row
            wrong = wrong[authors == inside[0]]
        at = int(wrong[0])

        def gap() -> Array:
            now = replay.at(instance.where, known.places)[wrong]
            return np.asarray(now, np.float64) - np.asarray(known.values[wrong], np.float64)

        def right() -> bool:
            now = replay.at(instance.where, known.places)[wrong]
            return not differs(now, known.values[wrong]).any()

        repaired = repairs(self.stream, stretch, among, known.block, (replay, right, gap))
        repair = repaired[0][1] if repaired else ""
        among = [number for number, _ in repaired] or among
        return InstructionDifference(
            among[0], tuple(among), instance, known.block.buffer,
            tuple(int(place[at]) for place in known.places), float(values[at]),
            float(known.values[at]), repair,
        )  # fmt: skip

    def sources(
        self, replay: Replay, stretch: Sequence[Instruction], mine: set[int]
    ) -> dict[int, set[int]]:
        """Of each row of a nest, those of the nest that it reads from; executes the stretch."""
        sources: dict[int, set[int]] = {}
        for row in stretch:
            if row.index in mine:
                read = [a for name, a in row.operands.items() if name not in RESULTS]
                if row.accumulate and "out" in row.operands:
                    read.append(row.operands["out"])
                authors = [np.unique(replay.bytes_of(access)) for access in read]
                known = {int(a) for part in authors for a in part}
                sources[row.index] = known & sources.keys()
            replay.step(row)
        return sources

    def spoilt(self, instance: NestInstance, replay: Replay) -> InstructionDifference | None:
        """Who wrote over what a nest reads, after it was right."""
        held: dict[str, Array] = {}

        def note(statement: Statement, around: Mapping[str, int], written: Written) -> None:
            return None

        def before(key: Key, arrays: Mapping[str, Array]) -> None:
            if key == instance.key:
                held.update({name: np.array(arrays[name]) for name in instance.read})

        run(self.program, self.arrays, self.traced.is_nest, note, before)
        for name, stands in instance.read.items():
            array = held.get(name)
            if array is None or not array.size:
                continue
            places = tuple(part.reshape(-1) for part in np.indices(array.shape))
            wanted, values = array.reshape(-1), replay.at(stands, places)
            authors = replay.authors_at(stands, places)
            wrong = np.flatnonzero(differs(values, wanted) & (authors >= 0))
            for at in wrong[:1].tolist():
                author = int(authors[at])
                owner = self.owners[author]
                block = self.traced.instances[owner]
                return InstructionDifference(
                    author, (author,), block, name, tuple(int(place[at]) for place in places),
                    float(values[at]), float(wanted[at]),
                    "it writes over what is still to be read",
                )  # fmt: skip
        return None


def closure(sources: Mapping[int, set[int]], row: int) -> list[int]:
    """A row and those of its nest that it depends on, in order."""
    closure, waiting = {row}, [row]
    while waiting:
        for source in sources[waiting.pop()]:
            if source not in closure:
                closure.add(source)
                waiting.append(source)
    return sorted(closure)
