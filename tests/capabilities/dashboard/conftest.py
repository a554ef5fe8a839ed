"""A database with two jobs, one of them hostile, and the live page over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.records import Database, TuningRecord
from tilesmith.records.trials.record import WorkerReport
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from tilesmith.capabilities.dashboard.application import Dashboard

PRODUCT = Workload.parse("matmul m=16 n=32 k=8")
LATER = Workload.parse("softmax shape=4x16 axis=1")
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
"""What a database of strangers may hold wherever there is text."""


@pytest.fixture(scope="session")
def cpu() -> Target:
    """This machine, uncalibrated: what every record here is of."""
    return resolve_target("cpu")


def trial(
    target: Target, workload: Workload, config: Config, us: float | None, message: str = ""
) -> TuningRecord:
    """A simulated trial of so many microseconds; None failed."""
    samples = () if us is None else (us / 1e6,)
    result = MeasureResult("ok" if us else "crash", "simulator", samples, message, elapsed=0.01)
    return TuningRecord.of(workload, target, config, result)


def configs(target: Target, workload: Workload, count: int) -> list[Config]:
    """Different configurations, the untuned default first."""
    default = default_of(workload, target)
    others = (config for config in space_of(workload, target) if config != default)
    return [default, *(next(others) for _ in range(count - 1))]


def stamped(records: list[TuningRecord], start: datetime) -> list[TuningRecord]:
    """A second between any two."""
    return [replace(r, created_at=start + timedelta(seconds=n)) for n, r in enumerate(records)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, cpu: Target) -> Iterator[Path]:
    """Job 1: product and softmax, finished. Job 2: the product, running, with hostile texts."""
    path = tmp_path_factory.mktemp("dashboard") / "tuning.db"
    start = datetime.now(UTC) - timedelta(minutes=5)
    product, later = configs(cpu, PRODUCT, 6), configs(cpu, LATER, 2)
    with Database.open(str(path)) as opened:
        command = "tilesmith tune --op 'matmul m=16 n=32 k=8' --target cpu"
        first = opened.start_job(command, seed=1, strategy="random", targets=[cpu])
        records = [
            trial(cpu, PRODUCT, config, us)
            for config, us in zip(product, (8.0, 9.0, 6.0, 4.1, 4.0, 7.0), strict=True)
        ]
        records += [trial(cpu, LATER, later[0], 3.0), trial(cpu, LATER, later[1], None, "no luck")]
        opened.add(stamped(records, start), job=first)
        opened.finish_job(first, "finished", "all trials are spent")
        opened.start_job(f"tilesmith tune '{HOSTILE}.onnx'", seed=2, strategy="evolutionary")
        second = [
            trial(cpu, PRODUCT, product[0], 8.0),
            trial(cpu, PRODUCT, product[1], None, HOSTILE),
            trial(cpu, PRODUCT, product[2], 4.15),
        ]
        opened.add([replace(r, host=HOSTILE) for r in stamped(second, start)], job=2)
        opened.write_workers(
            2,
            [
                WorkerReport(f"w {HOSTILE}", HOSTILE, "cpu-1", "set aside", HOSTILE, 7, 1, 0.5),
                WorkerReport("w2", "box", "cpu-1", "busy", "", 9, 0, 1.0),
            ],
        )
        yield path  # while it is open here, job 2 runs


Serve = Callable[..., "TestClient"]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Make a client of the page over a database, with a token or without."""
    for library in ("starlette", "uvicorn", "httpx2"):
        pytest.importorskip(library, reason=f"the live page is tested with {library}")
    from starlette.testclient import TestClient

    from tilesmith.capabilities.dashboard.application import Dashboard
    from tilesmith.capabilities.dashboard.guard import AccessRules, Guard, known_hosts

    opened: list[tuple[TestClient, Dashboard]] = []

    def make(location: object, token: str | None = None, **more: object) -> TestClient:
        dashboard = Dashboard(str(location))
        rules = AccessRules(token, known_hosts(["testserver"]), lambda: "what is the token?")
        client = TestClient(Guard(dashboard.application(), rules), follow_redirects=False, **more)  # type: ignore[arg-type]
        opened.append((client, dashboard))
        return client

    yield make
    for client, dashboard in opened:
        client.close()
        dashboard.access.close()


@pytest.fixture
def client(file: Path, serve: Serve) -> TestClient:
    """The page over the two jobs."""
    return serve(file)
