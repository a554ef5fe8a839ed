"""A fleet that is not there: real session, dispatch, runner and database; pretended workers.

    python -m benchmarks.fleet [--workers 64] [--seconds 16] [--in-flight 32] [--strategy random]
        [--transport none|ray] [--postgres] [--table 1,4,16,64,128] [--json]

A trial takes 60 ms, ten times as long for two in a hundred; one worker in fifty dies while the job
runs. What workers find is made up, from the configuration alone. They live in this process, or with
`--transport ray` in four actors of a local Ray: then every trial is a message to an actor and back.
Everything else is what tuning runs: proposals in one order, results joined in it, committed with
the job's state, trials shared among tasks, workers watched.

Printed: trials a second against as many times that of one worker; the cores that the coordinator
takes at 1,000 trials a second, and for what; and, by plain SQL on the database, whether every trial
that was asked for is there once. Rates are those after the first tenth of the trials, and of the
whole job, whose first rounds are small. `--seconds` decides how many trials there are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

try:
    from sqlalchemy import create_engine, text

    from benchmarks.subjects.postgres_server import Server
    from benchmarks.subjects.pretended import Fate, PretendedPool, RayPretendedPool
    from tilesmith.capabilities.fleet.cluster import Cluster
    from tilesmith.capabilities.fleet.fleet import RayFleet
    from tilesmith.capabilities.fleet.runner import FleetRunner
    from tilesmith.capabilities.fleet.settings import WorkerPlace, set_up_for
    from tilesmith.codegen.host.machine import cpu_target
    from tilesmith.records.database import Database
    from tilesmith.search_space.results.measure import MeasureResult
    from tilesmith.search_space.workloads.workload import Workload
    from tilesmith.simulator import judge
    from tilesmith.tuner.learning.learning import Judging
    from tilesmith.tuner.ledgers.database_ledger import DatabaseLedger
    from tilesmith.tuner.measurement.runner import Candidate
    from tilesmith.tuner.measurement.sharing import SharedMeasuring
    from tilesmith.tuner.search.search import Search
    from tilesmith.tuner.session.progress import Progress
    from tilesmith.tuner.session.session import _Job, tune
    from tilesmith.tuner.tasks.cancel import CancelToken
    from tilesmith.tuner.tasks.options import TuneOptions
    from tilesmith.tuner.tasks.task import TuningTask
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

PROCESSES = 4
TARGET = cpu_target("pretended", "avx512", "x86_64-unknown-linux-gnu")
TASKS = [
    TuningTask(Workload.parse(f"matmul m={m} n={n} k={k} const=b"))
    for m in (64, 256, 1024)
    for n, k in ((256, 768), (768, 256), (1024, 1024), (2048, 512))
]
PARTS: dict[str, list[tuple[type, str]]] = {
    "choosing": [(Search, "propose")],
    "dispatch": [(RayFleet, "_turn"), (RayFleet, "forget")],
    "asking what others measured": [(DatabaseLedger, "meanwhile")],
    "joining": [(Search, "join"), (Search, "begin_rounds"), (SharedMeasuring, "finish")],
    "committing": [(DatabaseLedger, "commit"), (_Job, "save")],
    "telling": [(_Job, "show")],
}
"""What the coordinator's main thread does; a part's time is without that of parts inside it."""


class Parts:
    """Seconds of this thread's processor time by part."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._open: list[str] = []
        self._since = time.thread_time()

    def _switch(self) -> None:
        now = time.thread_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose time counts for a part."""

        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._open.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._open.pop()

        return inside

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Everything named in `PARTS` is timed while the block runs."""
        before = [
            (owner, name, getattr(owner, name)) for one in PARTS.values() for owner, name in one
        ]
        for part, methods in PARTS.items():
            for owner, name in methods:
                setattr(owner, name, self.timed(part, getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)


@dataclass(frozen=True)
class Mark:
    """A moment of a job: trials joined, the wall clock, processor time of this process, by part."""

    trials: int
    wall_s: float
    cpu_s: float
    parts_s: dict[str, float]


@dataclass(frozen=True)
class Figures:
    """One run.

    Attributes:
        rate, whole_rate: trials a second after the first tenth, and from the first to the last.
        cpu_ms: of this process for each trial, after the first tenth; `parts_ms` of them by part.
        repeated, copied, died: trials done again, copied since late; workers that died.
        confirmed: results of the best ones' second measurement, which follows the trials.
        rows, distinct: of trials in the database, by plain SQL.
        bytes_on_disk, state_bytes: of the database for each trial; of the job's state.
    """

    workers: int
    trials: int
    rate: float
    whole_rate: float
    cpu_ms: float
    parts_ms: dict[str, float]
    repeated: int
    copied: int
    died: int
    confirmed: int
    rows: int
    distinct: int
    bytes_on_disk: float
    state_bytes: int

    @property
    def is_exact(self) -> bool:
        """Whether every trial is there, once."""
        return self.distinct == self.trials == self.rows - self.confirmed


class CountingRunner(FleetRunner):
    """Counts what is measured again in turns, at a job's end."""

    confirmed = 0

    def compare(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        found = super().compare(batch, cancel)
        self.confirmed += len(found)
        return found


@dataclass(frozen=True)
class Asked:
    """How to pretend."""

    in_flight: int = 32
    strategy: str = "random"
    transport: str = "none"
    fate: Fate = field(default_factory=Fate)


def pretended(workers: int, trials: int, location: str, asked: Asked) -> Figures:
    """Run a job on a pretended fleet."""
    pool = _pool(workers, asked)
    options = TuneOptions(
        trials=trials, strategy=asked.strategy, in_flight=asked.in_flight, seed=1, rivals=1
    )
    parts, state_bytes = Parts(), 0
    marks: list[Mark] = []

    def noted(progress: Progress) -> None:
        nonlocal state_bytes
        if len(marks) < 3 and progress.trials >= (0, trials / 10, trials)[len(marks)]:
            if len(marks) == 1:
                state_bytes = len(json.dumps(ledger.saved_state()))
            now, cpu = time.monotonic(), time.process_time()
            marks.append(Mark(progress.trials, now, cpu, dict(parts.seconds)))

    judging = Judging(judge, is_label=False) if asked.strategy != "random" else Judging()
    with Database.open(location) as database, RayFleet(None, TARGET, 1, pool=pool) as fleet:
        ledger = DatabaseLedger.start(
            database, TARGET, 1, command=f"pretended {workers}", seed=1, strategy=asked.strategy
        )
        with parts.watched():
            runner = CountingRunner(fleet, "hardware")
            tune(TASKS, TARGET, ledger, [runner], options, judging, on_progress=noted)
        dispatch, died, job = fleet._dispatch, pool.died, ledger.job
    first, tenth, last = marks
    count = last.trials - tenth.trials
    spent = {name: last.parts_s[name] - tenth.parts_s[name] for name in PARTS}
    cpu = last.cpu_s - tenth.cpu_s
    spent["Ray's threads and the rest"] = cpu - sum(spent.values())
    return Figures(
        workers,
        trials,
        count / (last.wall_s - tenth.wall_s),
        (last.trials - first.trials) / (last.wall_s - first.wall_s),
        1e3 * cpu / count,
        {name: 1e3 * seconds / count for name, seconds in spent.items()},
        dispatch.repeated,
        dispatch.copied,
        died,
        runner.confirmed,
        *_counted(location, job),
        state_bytes,
    )


def _pool(workers: int, asked: Asked) -> PretendedPool | RayPretendedPool:
    if asked.transport == "none":
        return PretendedPool(workers, asked.fate)
    return RayPretendedPool(workers, asked.fate, min(workers, PROCESSES))


def _counted(location: str, job: int) -> tuple[int, int, float]:
    """Trials of a job, the distinct ones of them, and bytes for each."""
    is_server = location.startswith("postgresql")
    url = location.replace("postgresql:", "postgresql+psycopg:") if is_server else location
    engine = create_engine(url if is_server else f"sqlite:///{location}")
    size = (
        "SELECT pg_total_relation_size('trials')"
        if is_server
        else "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    )
    with engine.connect() as connection:
        rows, distinct = connection.execute(
            text(
                "SELECT count(*), count(DISTINCT series.workload_id || ' ' || trials.config) "
                "FROM trials JOIN series ON series.id = trials.series_id WHERE trials.job_id = :job"
            ),
            {"job": job},
        ).one()
        used = connection.execute(text(size)).scalar_one()
    engine.dispose()
    return rows, distinct, used / max(1, rows)


@contextlib.contextmanager
def places(asked: Asked, postgres: bool) -> Iterator[Callable[[], str]]:
    """What a run needs around it; gives locations of new databases."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilesmith-fleet-")))
        if asked.transport == "ray":
            os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
            stack.enter_context(Cluster.open(WorkerPlace(PROCESSES)))
        server = None
        if postgres:
            (folder / "server").mkdir()
            folder.chmod(0o755)
            server = stack.enter_context(Server.started(folder / "server"))
        count = 0

        def new() -> str:
            nonlocal count
            count += 1
            if server is None:
                return str(folder / f"{count}.db")
            engine = create_engine(
                server.url.replace("postgresql:", "postgresql+psycopg:"),
                isolation_level="AUTOCOMMIT",
            )
            with engine.connect() as connection:
                connection.execute(text(f"CREATE DATABASE fleet{count}"))
            engine.dispose()
            return server.url.replace("/postgres?", f"/fleet{count}?")

        yield new


def show(figures: Figures, one: Figures) -> None:
    """Some lines for people."""
    linear = figures.workers * one.rate
    print(
        f"{figures.workers:4d} workers: {figures.rate:7.1f} trials a second, "
        f"{figures.rate / linear:6.1%} of linear (whole job {figures.whole_rate:.1f}, "
        f"{figures.whole_rate / linear:.1%}); {figures.cpu_ms:.3f} cores at 1,000 a second; "
        f"{figures.died} died, {figures.repeated} done again, {figures.copied} copied"
    )
    told = ", ".join(f"{name} {share:.3f}" for name, share in figures.parts_ms.items())
    print(f"     ms of a core for each trial: {told}")
    print(
        f"     {figures.rows} trials in the database, {figures.distinct} distinct, of "
        f"{figures.trials} asked for and {figures.confirmed} confirmed: "
        f"{'exact' if figures.is_exact else 'WRONG'}; "
        f"{figures.bytes_on_disk:.0f} bytes each, job's state {figures.state_bytes} bytes",
        flush=True,
    )


def main() -> None:
    """Run one worker, and each number asked for, and print how they compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--table", help="numbers of workers, in the place of --workers")
    parser.add_argument("--seconds", type=float, default=16.0, help="about, of each run")
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--strategy", default="random")
    parser.add_argument("--transport", choices=("none", "ray"), default="none")
    parser.add_argument("--postgres", action="store_true", help="a server of its own")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    fate = Fate(dies_s=given.seconds / 3)
    asked = Asked(given.in_flight, given.strategy, given.transport, fate)
    numbers = [int(number) for number in (given.table or str(given.workers)).split(",")]
    if given.transport == "ray":
        set_up_for(WorkerPlace(PROCESSES))
    found: list[Figures] = []
    with places(asked, given.postgres) as new:
        for number in dict.fromkeys([1, *numbers]):
            trials = round(number * given.seconds / fate.mean_s)
            found.append(pretended(number, trials, new(), asked))
            if not given.json:
                show(found[-1], found[0])
    if given.json:
        print(json.dumps([asdict(figures) for figures in found]))


if __name__ == "__main__":
    main()
