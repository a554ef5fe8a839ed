"""What a profile says: operators with their times, what was foretold of them, and what to try."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tilesmith.search_space.support.json_object import JsonObject

Kind = Literal["kernel", "conversion", "host", "move", "loop"]
"""kernel: computes | conversion: brings a tensor into another layout | host: runs in Python | move:
copies bytes into and out of loops | loop: counts, and decides which branch."""


@dataclass(frozen=True)
class OperatorTime(JsonObject):
    """An operator of the compiled model.

    Attributes:
        name: of the model's node, the first one where it is several.
        operator: what computes it ("conv2d", "layout_transform"; on the host ONNX's name).
        us: of a run, all calls.
        predicted_us: what the simulator foretold of the same; None where it cannot tell.
        bound: what limits it, by the simulator: "compute", a cache level, "memory", ...
        share_of_peak: of the arithmetic that the threads that run it could do at best.
        share_of_bandwidth: of the memory's bandwidth, if all operands came from memory.
        origin: how its schedule was found (`Origin`), "" for what has none.
        calls: how often it ran in a run.
        share: of the whole run.
        wait_us: of `us`, what threads wait for each other at its end (mean of all threads).
        sources: names of all of the model's nodes whose work it does.
        roofline_us: the least that the machine allows, whatever the schedule: the arithmetic of the
            algorithm that has least at peak, or all operands through memory.
        inside: the loop or branch it is in.
        part: of a node that several operators do the work of, which of it this is.
        algorithm: of its schedule, "" where there is one only.
        arithmetic: what that multiplies and adds, as a share of the operator's own `flops`;
            `share_of_peak` is of it.
    """

    name: str
    operator: str
    us: float
    predicted_us: float | None = None
    bound: str = ""
    share_of_peak: float | None = None
    origin: str = ""
    kind: Kind = "kernel"
    calls: float = 1.0
    share: float = 0.0
    wait_us: float = 0.0
    sources: tuple[str, ...] = ()
    workload: str = ""
    config: str = ""
    flops: int = 0
    bytes: int = 0
    share_of_bandwidth: float | None = None
    roofline_us: float | None = None
    threads: int = 1
    inside: str = ""
    part: str = ""
    algorithm: str = ""
    arithmetic: float = 1.0

    @property
    def label(self) -> str:
        """What tells it from all others."""
        return f"{self.name} ({self.part})" if self.part else self.name

    @property
    def gap_us(self) -> float:
        """What stands between it and the machine's bound: of what is no kernel, all."""
        return self.gain_us if self.kind == "kernel" else self.us

    @property
    def gain_us(self) -> float:
        """What an operator as fast as its roofline would save; at most all but a tenth.

        One that is faster than memory allows has its operands in caches: then arithmetic alone.
        """
        least = 0.1 * self.us if self.roofline_us is None else self.roofline_us
        if least >= self.us and self.share_of_peak is not None and self.share_of_peak < 1:
            least = max(0.1, self.share_of_peak) * self.us
        return max(0.0, self.us - least)


def parted(ops: Iterable[OperatorTime]) -> list[OperatorTime]:
    """Operators with parts of those that have one name: "main" computes most, others are called
    by what they do, and numbered where that is the same."""
    given = list(ops)
    by_name: dict[str, list[int]] = {}
    for number, op in enumerate(given):
        by_name.setdefault(op.name, []).append(number)
    for places in by_name.values():
        if len(places) == 1:
            continue
        most = max(places, key=lambda place: (given[place].flops, -place))
        kinds = Counter(given[place].operator for place in places if place != most)
        seen: Counter[str] = Counter()
        for place in places:
            kind = given[place].operator
            seen[kind] += place != most
            again = f" {seen[kind]}" if kinds[kind] > 1 else ""
            part = "main" if place == most else f"{kind}{again}"
            given[place] = replace(given[place], part=part)
    return given


def rounded(us: float) -> str:
    """Microseconds in a sentence: "20526", "0.31"."""
    return f"{us:.0f}" if us >= 10 or us == 0 else f"{us:.2g}"


@dataclass(frozen=True)
class Advice:
    """Something to try.

    Attributes:
        kind: "tune", "transferred", "elsewhere", "conversions", "host", "waits", "python" or
            "roofline".
        text: a sentence.
        us: what a run spends on it.
        command: what to type, "" where there is no command.
    """

    kind: str
    text: str
    us: float
    command: str = ""


@dataclass(frozen=True)
class ProfileReport(
    JsonObject,
    keys="model target threads precision measured_by total_us ops_us remainder_us "
    "remainder:between predicted_us conversions_us host_us wait_us plain_us bound_us "
    "share_of_bound profiled_us:timed_us profiling_cost:cost call_us python_us runs "
    "runs_kept:kept counters ops by_operator advice notes",
):
    """A model's profile.

    Attributes:
        measured_by: "hardware", or "simulator" for machines that are described.
        total_us: of a run: operators, and what lies between them.
        plain_us: the same when nobody looks (median), with `timed_us` beside it when somebody does;
            0 where nothing was measured.
        call_us: of a whole call, which checks and copies inputs and outputs; 0 likewise.
        runs, kept: how many runs were looked at; those of them that count.
        between: what lies between the operators, in words.
        counters: hardware counters of a run by name; empty where the kernel gives none.
        notes: sentences for the reader.
    """

    model: str
    target: str
    threads: int
    precision: str
    measured_by: str
    total_us: float
    ops: tuple[OperatorTime, ...]
    plain_us: float = 0.0
    timed_us: float = 0.0
    call_us: float = 0.0
    runs: int = 0
    kept: int = 0
    between: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<ProfileReport of '{self.model}' on {self.target} ({self.precision}): "
            f"{self.total_us:.4g} us a run, {len(self.ops)} operators>"
        )

    @property
    def ops_us(self) -> float:
        """Of all operators."""
        return sum(op.us for op in self.ops)

    @property
    def bound_us(self) -> float | None:
        """The least that the machine allows: its kernels' rooflines, one after the other; None
        where that of a kernel is not known."""
        if any(op.roofline_us is None for op in self.ops if op.kind == "kernel"):
            return None
        return self.ops_us - sum(op.gap_us for op in self.ops)

    @property
    def share_of_bound(self) -> float | None:
        """The bound's share of a run: 1 is as fast as the machine allows."""
        return None if self.bound_us is None else self.bound_us / max(self.total_us, 1e-9)

    @property
    def cost(self) -> float:
        """What looking costs, as a share of a run."""
        return self.timed_us / self.plain_us - 1 if self.plain_us else 0.0

    @property
    def predicted_us(self) -> float | None:
        """Of all operators that the simulator can tell of."""
        known = [op.predicted_us for op in self.ops if op.predicted_us is not None]
        return sum(known) if known else None

    @property
    def wait_us(self) -> float:
        """What threads wait for each other."""
        return sum(op.wait_us for op in self.ops)

    @property
    def remainder_us(self) -> float:
        """Between the operators."""
        return self.total_us - self.ops_us

    @property
    def conversions_us(self) -> float:
        return self.of("conversion")

    @property
    def host_us(self) -> float:
        return self.of("host")

    @property
    def python_us(self) -> float:
        """Of a call, beside its run."""
        return max(0.0, self.call_us - self.plain_us)

    def of(self, *kinds: Kind) -> float:
        """Microseconds of some kinds of operators."""
        return sum(op.us for op in self.ops if op.kind in kinds)

    @property
    def by_operator(self) -> "Sequence[OperatorGroup]":
        """Operators of the same name together, the slowest first."""
        groups: dict[tuple[str, Kind], list[OperatorTime]] = {}
        for op in self.ops:
            groups.setdefault((op.operator, op.kind), []).append(op)
        by_name = (OperatorGroup.of(name, kind, ops) for (name, kind), ops in groups.items())
        return sorted(by_name, key=lambda group: -group.us)


@dataclass(frozen=True)
class OperatorGroup:
    """Operators of one kind together; attributes as `OperatorTime`, summed."""

    operator: str
    kind: Kind
    count: int
    us: float
    share: float
    predicted_us: float | None
    share_of_peak: float | None

    @classmethod
    def of(cls, operator: str, kind: Kind, ops: Sequence[OperatorTime]) -> "OperatorGroup":
        us = sum(op.us for op in ops)
        known = [op.predicted_us for op in ops if op.predicted_us is not None]
        peaks = [op.share_of_peak * op.us for op in ops if op.share_of_peak is not None]
        return cls(
            operator,
            kind,
            len(ops),
            us,
            sum(op.share for op in ops),
            sum(known) if len(known) == len(ops) else None,
            sum(peaks) / us if len(peaks) == len(ops) and us else None,
        )
