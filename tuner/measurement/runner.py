"""`Runner`: measures configurations and never raises for what a configuration does.

One class in one file of `runners/`, registered under its name with a factory taking
`RunnerOptions`. Contract, checked for every registered runner: `measure` returns one result for
each configuration, in order; a bad configuration gives a result with its kind of failure and a
message; only cancelling shortens the list (to the results of a prefix). `begin` and `finish` are
`measure` in two steps, with other batches begun in between: the results are the same, and only
cancelling or a deadline shortens them. A runner that measures here has them from this class, and
measures in `finish`; one that measures elsewhere begins at once, and what its batches come to may
be asked for in any order.

`TrialCosts` say what a trial costs, and on what: so a tuner that spends its time beside the kernels
is seen. A worker tells with each result how many seconds went into making inputs, computing the
reference, compiling (scheduling, generating code, packing weights), flushing caches and running the
kernel. What is left of the time that the trial took as its caller saw it is `other`: comparing the
output, messages, a renewed worker.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tilesmith.records.trials.record import WorkerReport
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.registry import Registry
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.tasks.cancel import CancelToken

if TYPE_CHECKING:
    from tilesmith.tuner.tasks.choosing import Choosers
    from tilesmith.tuner.tasks.feature_source import Judge

PARTS = ("compile", "reference", "inputs", "flush", "run")
"""What a worker tells apart."""


class Stopwatch:
    """Seconds by part, of one trial."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What runs inside counts as `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def move(self, seconds: float, source: str, to: str) -> None:
        """Count some of what was counted as one part as another."""
        self.seconds[source] -= seconds
        self.seconds[to] += seconds


@dataclass
class TrialCosts:
    """What the trials of a job cost so far, in seconds.

    Attributes:
        totals: of each trial, as its caller saw it.
        parts: of all trials together, by part; they add up to the sum of `totals`.
    """

    totals: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PARTS, "other"), 0.0))

    def add(self, total: float, spent: Mapping[str, float]) -> None:
        """One more trial."""
        self.totals.append(total)
        for name in PARTS:
            self.parts[name] += spent.get(name, 0.0)
        self.parts["other"] += max(0.0, total - sum(spent.get(name, 0.0) for name in PARTS))

    def milliseconds(self) -> dict[str, float]:
        """The median trial, the mean one, and the mean of each part; empty before any trial."""
        if not self.totals:
            return {}
        count = len(self.totals)
        means = {name: seconds / count * 1e3 for name, seconds in self.parts.items()}
        median, mean = statistics.median(self.totals), statistics.fmean(self.totals)
        return {"median": median * 1e3, "mean": mean * 1e3, **means}


Candidate = tuple[Workload, Config]
Candidates = Sequence[Candidate]
Results = list[MeasureResult]


@dataclass(frozen=True, eq=False)
class Begun:
    """A batch that a runner has begun; equal by identity alone. Runners may derive from it."""

    batch: tuple[Candidate, ...]


class Runner(Protocol):
    """See the module's docstring.

    Attributes:
        measured_by: the label of its results.
        deterministic: whether a configuration always measures the same, so that repeating is idle
            and trials, not seconds, are the budget that schedulers count.
        batch: how many configurations it likes to get at once.
        drift: largest relative change seen of a baseline measured again and again; 0 if it
            cannot vary.
        looks: how often that baseline was looked at.
        pace: its time at the last look, relative to the first; 1 before any.
        moved: how far it was at the last look from where it was at the one before, relative.
        costs: what its trials cost so far; nothing where that is not told.
        in_flight: rounds that it likes to have under way beside the one that is waited for. Where
            there are any it measures beside its caller, here, one candidate after the other.
        busy_s: seconds that it measured beside its caller so far.
    """

    measured_by: MeasuredBy
    deterministic: bool
    batch: int
    costs: TrialCosts
    in_flight: int = 0

    @property
    def busy_s(self) -> float:
        return 0.0

    @property
    def drift(self) -> float: ...
    @property
    def looks(self) -> int: ...
    @property
    def pace(self) -> float: ...
    @property
    def moved(self) -> float: ...

    def measure(self, batch: Candidates, cancel: CancelToken | None = None) -> Results:
        """One result for each candidate, in order; a prefix if cancelled."""
        ...

    def begin(self, batch: Sequence[Candidate], cancel: CancelToken | None = None) -> Begun:
        """Start measuring, if that is done elsewhere; does not wait for any result."""
        return Begun(tuple(batch))

    def finish(
        self, begun: Begun, cancel: CancelToken | None = None, deadline: float | None = None
    ) -> list[MeasureResult]:
        """What `measure` gives for a batch that was begun; it is over with then.

        Args:
            deadline: moment of `time.monotonic()` when no more is waited for, and a prefix given:
                of what varies, so that repeating it is no use.
        """
        if deadline is None or self.deterministic:
            return self.measure(begun.batch, cancel)
        results: list[MeasureResult] = []
        for candidate in begun.batch:
            if time.monotonic() >= deadline or not (measured := self.measure([candidate], cancel)):
                break
            results += measured
        return results

    def abandon(self, begun: Begun) -> None:
        """Nobody will ask for the results of this batch."""
        return

    def choosers(self) -> "Choosers | None":
        """Return the choosers that propose outside this process; None if there are none."""
        return None

    def ahead(self, batch: Sequence[Candidate], cancel: CancelToken | None = None) -> None:
        """Announce the candidates that are measured next; a runner may prepare some of them."""
        return

    def beside(self) -> AbstractContextManager[None]:
        """Return a block that computes, and may need a core, while the runner measures."""
        return nullcontext()

    def compare(self, batch: Candidates, cancel: CancelToken | None = None) -> Results:
        """Measure rivals again in turns, so that drift hits all alike; else as `measure`."""
        ...

    def workers(self) -> Sequence[WorkerReport]:
        """Who measures, where that is several."""
        return ()

    def expect(self, workload: Workload, latency: float) -> None:
        """Tell it the best latency known (seconds): far slower candidates may be aborted."""

    def doubtful(self) -> list[Candidate]:
        """Return candidates whose results came from a machine that was set aside since; each is
        returned once."""
        return []

    def close(self) -> None:
        """Free workers and files; the runner is not used again."""


@dataclass(frozen=True)
class RunnerOptions:
    """What a runner is made from.

    Attributes:
        target: the hardware to measure for.
        threads: threads a kernel may use.
        timeout_s: longest a single trial may take, seconds.
        memory_mib: memory a trial may use beyond what an idle worker has.
        recorded: for replay: results by workload key.
        judge: for simulation: what judges; None means the `simulator` package.
        backend: for hardware: the module that compiles and runs candidates (tests bring their
            own).
        cores: for hardware: hardware threads that the measuring process is bound to, which its
            owner has claimed; () where it goes wherever the system puts it. Code is then made on
            them, too, before it is measured.
        control: for hardware: the kernel that is run beside every trial; None: a quick one that
            the trials come across.
    """

    target: Target
    threads: int = 1
    timeout_s: float = 20.0
    memory_mib: int = 8192
    recorded: Mapping[str, Mapping[Config, MeasureResult]] = field(default_factory=dict)
    judge: "Judge | None" = None
    backend: str = "tilesmith.tuner.measurement.native_backend"
    cores: tuple[int, ...] = ()
    control: Candidate | None = None


RunnerFactory = Callable[[RunnerOptions], Runner]

runners: Registry[RunnerFactory] = Registry("runner", "tilesmith.tuner.runners", InputError)


class DeterministicRunner(Runner):
    """What runners share whose results never vary: nothing drifts, nothing is aborted or held."""

    deterministic = True
    batch = 64
    drift = 0.0
    looks = 0
    pace = 1.0
    moved = 0.0
    costs = TrialCosts()

    def compare(self, batch: Candidates, cancel: CancelToken | None = None) -> Results:
        return self.measure(batch, cancel)

    def expect(self, workload: Workload, latency: float) -> None:
        """Nothing to abort."""

    def close(self) -> None:
        """Nothing to free."""
