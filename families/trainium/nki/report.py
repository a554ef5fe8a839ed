"""What the commands `nki time`, `run` and `check` find out, as text and JSON."""

import runpy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.core import queue_name
from tilesmith.families.trainium.codegen.isa.instructions import Opcode, Space
from tilesmith.families.trainium.nki.kernels import NkiKernel
from tilesmith.families.trainium.simulator.timelines.drawing import draw
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import check_output, written

Array = NDArray[Any]


@dataclass(frozen=True)
class LineTime:
    """What the instructions of one source line come to: how many, and ns that they occupy their
    engine."""

    line: str
    instructions: int
    engine: str
    occupied: float


@dataclass(frozen=True)
class TimeReport:
    """How long a kernel takes.

    Attributes:
        as_written, scheduled: ms, in the order of its source, and in the better of that and a
            scheduler's; what AWS's compiler does lies between.
        bound: what is occupied longest; engines: share of the time that each has work.
        read, written: bytes from and to HBM; instructions: how many.
    """

    kernel: str
    target: str
    as_written: float
    scheduled: float
    bound: str
    engines: Mapping[str, float]
    read: float
    written: float
    instructions: int
    lines: tuple[LineTime, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self, lines: int) -> str:
        """As a table, with the lines that occupy engines longest."""
        busy = ", ".join(f"{name} {share:.0%}" for name, share in self.engines.items() if share)
        shown = [
            f"{self.kernel} on {self.target}: {self.scheduled:.4g} ms ({self.as_written:.4g} ms in "
            f"the order of its source), bound by {self.bound}",
            f"engines at work: {busy}",
            f"{self.instructions} instructions; {self.read / 1e6:.4g} MB read from HBM, "
            f"{self.written / 1e6:.4g} MB written",
        ]
        if lines and self.lines:
            shown.append("occupied (us)  instructions  engine   line")
        for one in self.lines[:lines]:
            shown.append(
                f"{one.occupied / 1e3:13.1f}  {one.instructions:12d}  {one.engine:7s}  {one.line}"
            )
        return "\n".join(shown)


def timed(kernel: NkiKernel, page: Path | None = None) -> TimeReport:
    """Time a kernel; its timeline goes to `page`, if that is given."""
    if page is not None:
        check_output(page)
    played = kernel.time()
    if page is not None:
        draw(played, page)
    op, moved = played.stream.rows["op"], played.costs.bytes
    return TimeReport(
        kernel.stream.name, played.core.target.name, kernel.time(schedule=False).makespan / 1e6,
        played.makespan / 1e6, played.bound, played.engines,
        float(moved[op == Opcode.LOAD].sum()), float(moved[op == Opcode.STORE].sum()),
        len(played.stream), _lines(played),
    )  # fmt: skip


def _lines(played: Timeline) -> tuple[LineTime, ...]:
    """Instructions by the lines that they stand in, those first that occupy engines longest."""
    rows, costs = played.stream.rows, played.costs
    occupied = np.where(
        costs.dma_engines > 0, costs.dma_work * costs.dma_engines / played.core.dma_engines,
        costs.issue,
    )  # fmt: skip
    sums: dict[tuple[str, str], list[float]] = {}
    for position, queue, time in zip(rows["position"], rows["queue"], occupied, strict=True):
        name = queue_name(int(queue))
        engine = "dma" if name.startswith("dma") else name
        entry = sums.setdefault((played.stream.lines[position], engine), [0, 0.0])
        entry[0], entry[1] = entry[0] + 1, entry[1] + float(time)
    return tuple(
        LineTime(line, int(count), engine, time)
        for (line, engine), (count, time) in sorted(sums.items(), key=lambda item: -item[1][1])
    )


@dataclass(frozen=True)
class RunReport:
    """What a kernel computed: shapes of its results, and how far each is from its reference, as
    the largest difference by the largest element (None: there is none)."""

    results: Mapping[str, tuple[int, ...]]
    differences: Mapping[str, float | None]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """A line each."""
        shown = []
        for name, shape in self.results.items():
            off = self.differences[name]
            beside = "" if off is None else f"; {off:.3g} of its largest element off the reference"
            shown.append(f"{name}: {'x'.join(map(str, shape))}{beside}")
        return "\n".join(shown)


def ran(
    kernel: NkiKernel,
    arguments: Mapping[str, Any],
    reference: str | None,
    output: Path | None,
    seed: int,
) -> RunReport:
    """Run a kernel on what arrays it is given and seeded random ones, and compare its results."""
    if output is not None:
        check_output(output)
    inputs = kernel.inputs(seed)
    inputs |= {n: v for n, v in arguments.items() if isinstance(v, np.ndarray)}
    results = kernel.run(inputs)
    if output is not None:
        with written(output) as file:
            np.savez(file, **results)  # type: ignore[arg-type]
    wanted: list[Array | None] = [None] * len(results)
    if reference is not None:
        wanted = _referred(reference, {**arguments, **inputs}, list(results.values()))
    off = {
        name: None if right is None else _off(value, right)
        for (name, value), right in zip(results.items(), wanted, strict=True)
    }
    return RunReport({name: value.shape for name, value in results.items()}, off)


def _referred(
    reference: str, arguments: Mapping[str, Any], results: list[Array]
) -> list[Array | None]:
    """What a reference computes, in the shapes of results."""
    file, _, name = reference.rpartition("::")
    if not Path(file).is_file():
        raise InputError(f"there is no file '{file}' for the reference '{reference}'")
    function = runpy.run_path(file).get(name)
    if not callable(function):
        raise InputError(f"'{file}' has no function '{name}'")
    returned = function(**arguments)
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    if [np.size(v) for v in values] != [r.size for r in results]:
        raise InputError(
            f"'{reference}' returns {[np.shape(v) for v in values]}; "
            f"{[r.shape for r in results]} are expected"
        )
    return [np.asarray(v).reshape(r.shape) for v, r in zip(values, results, strict=True)]


def _off(value: Array, wanted: Array) -> float:
    """The largest difference by the largest element; NaN where one of both is."""
    one, two = value.astype(np.float64), wanted.astype(np.float64)
    return float(np.abs(one - two).max() / max(np.abs(two).max(), 1e-30))


@dataclass(frozen=True)
class CheckReport:
    """What a kernel that keeps every law takes: instructions, and bytes a partition of memories."""

    kernel: str
    target: str
    instructions: int
    sbuf: int
    psum: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """A sentence."""
        return (
            f"{self.kernel} keeps the laws of {self.target}: {self.instructions} instructions, "
            f"{self.sbuf} bytes a partition of SBUF, {self.psum} of PSUM"
        )


def checked(kernel: NkiKernel) -> CheckReport:
    """What is known of a kernel that `trace` did not refuse."""
    places = kernel.stream.allocations
    ends = {
        space: max((a.offset + a.bytes for a in places if a.space == space), default=0)
        for space in (Space.SBUF, Space.PSUM)
    }
    stream = kernel.stream
    return CheckReport(
        stream.name, stream.core.target.name, len(stream), ends[Space.SBUF], ends[Space.PSUM]
    )
