"""A made-up tuning database of any size, alike to what a team has after years of tuning.

Several hundred workloads (those of a model of 60 among them), six targets, two thread counts, three
layout pairs for convolutions, five toolchains of which the last is the installed one, hundreds of
jobs of very unlike sizes (one of them with a tenth of all trials on one workload), rounds of 64
trials, an eighth of them failures of every kind, one in twenty-five a configuration measured
again. The same seed gives the same rows.

Rows go straight into the tables, without `records.Writer`: ten million would take it a quarter of
an hour. Indexes are made afterwards, and statistics collected as the server would by itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine, insert, text

from tilesmith.records import Database, Toolchain
from tilesmith.records.schema.engine import make_engine, parse_url
from tilesmith.records.schema.models import JOBS, SERIES, TARGETS, TOOLCHAINS, WORKLOADS
from tilesmith.records.trials.record import config_digest

CPU = "cpu-0123abcd"
IDENTITIES = (CPU, "cpu-4567cdef", "cpu-89ab0123", "cpu-aaaa1111", "trn1-1f0c2a9b", "edge-77777777")
LAYOUTS = (("NCHW16c", "NCHW16c"), ("NCHW", "NCHW16c"), ("NHWC", "NHWC"))
ROUND = 64
START = datetime(2025, 1, 1, tzinfo=UTC)

_FAILURES = (
    (
        "constraint",
        0.40,
        "the tile of {n} x 64 elements needs more than the 32 registers there are",
    ),
    ("slow", 0.22, "aborted: a sample took more than four times as long as the best"),
    (
        "compile",
        0.17,
        "LLVM ERROR: out of registers while allocating block {n}:\n" + "  %v = add\n" * 40,
    ),
    ("lowering", 0.09, "axis 'k' of extent 512 cannot be split by {n}"),
    ("crash", 0.07, "the worker died of signal 11"),
    ("timeout", 0.04, "no result after 10 s"),
    ("wrong", 0.01, "wrong: 3 of 4096 values differ by more than 0.001"),
)

_COLUMNS = (
    "id", "series_id", "config", "config_digest", "status", "message", "latency_s", "samples",
    "warm_samples", "bound", "elapsed_s", "latest", "job_id", "host", "created_at",
)  # fmt: skip


def model_workloads() -> list[str]:
    """The 60 workloads of one model."""
    convolutions = [
        f"conv2d n=1 c={c} h={h} w={h} oc={oc} kh={k} kw={k} stride=1 pad={k // 2} const=b"
        for c, h in ((64, 56), (128, 28), (256, 14), (512, 7))
        for oc in (64, 128, 256, 512)
        for k in (1, 3)
    ]
    products = [f"matmul m={64 + i} n=512 k=512 const=b" for i in range(28)]
    return [*convolutions, *products]


def all_workloads(count: int = 420) -> list[str]:
    """`count` workloads, those of the model first."""
    found = model_workloads()
    found += [f"matmul m={m} n={n} k=768" for m in range(8, 152, 8) for n in (256, 768, 1000, 3072)]
    rest = count - len(found)
    found += [
        f"conv2d n=1 c={32 + 8 * (i // 9)} h=28 w=28 oc={64 + 32 * (i % 9)} "
        "kh=3 kw=3 stride=1 pad=1"
        for i in range(rest)
    ]
    return found[:count]


def toolchains() -> tuple[Toolchain, ...]:
    """Four sets of versions that were, and the installed one."""
    now = replace(Toolchain.installed(), schema="")
    old = [replace(now, tilesmith=f"0.0.{i}", space=f"old{i}", codegen=f"old{i}") for i in range(4)]
    return (*old, now)


@dataclass(frozen=True)
class Plan:
    """What each trial is of, in the order of arrival; arrays of shape (trials,).

    Attributes:
        series: the rows of `series`, without their numbers.
        jobs: the rows of `jobs`.
        of_series, of_job, config: index of the series and job, number of the configuration.
        latest: whether no later trial of the series has that configuration.
    """

    series: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    of_series: NDArray[np.int32]
    of_job: NDArray[np.int32]
    config: NDArray[np.int32]
    latest: NDArray[np.bool_]


def plan(trials: int, keys: list[str], seed: int = 0) -> Plan:
    """Jobs one after the other, each in rounds over its workloads."""
    rng = np.random.default_rng(seed)
    numbers: dict[tuple[Any, ...], int] = {}
    of_series, of_job, jobs = [], [], []
    sizes = _sizes(trials, rng)
    for job, size in enumerate(sizes):
        mine = _workloads_of(job, size, keys, rng)
        target = int(rng.choice(len(IDENTITIES), p=_shares(len(IDENTITIES))))
        age = min(4, int(5 * job / len(sizes)) + int(rng.random() < 0.5))
        if job == _LARGE:
            target, age = 0, 4
        by = "simulator" if rng.random() < 0.3 else "hardware"
        threads = 8 if rng.random() < 0.2 else 1
        known = []
        for key in mine:
            pairs = LAYOUTS if keys[key].startswith("conv2d") else (("", ""),)
            for pair in pairs:
                slot = (key, target, threads, by, *pair, age)
                known.append(numbers.setdefault(slot, len(numbers)))
        rounds = rng.choice(known, -(-size // ROUND))
        of_series.append(np.repeat(rounds, ROUND)[:size])
        of_job.append(np.full(size, job))
        jobs.append(_job(job, len(sizes), by))
    series = np.concatenate(of_series).astype(np.int32)
    config, latest = _configurations(series, rng)
    rows = [_series(slot) for slot in numbers]
    return Plan(rows, jobs, series, np.concatenate(of_job).astype(np.int32), config, latest)


_LARGE = 1


def _sizes(trials: int, rng: np.random.Generator) -> list[int]:
    """Trials of each job: one with a tenth of all, the others log-normal."""
    count = max(12, min(800, trials // 200))
    weights = rng.lognormal(0.0, 1.3, count)
    weights[_LARGE] = 0.0
    sizes = np.maximum(1, (weights / weights.sum() * trials * 0.9).astype(int))
    sizes[_LARGE] = max(1, trials - sizes.sum() + sizes[_LARGE])
    return [int(size) for size in sizes]


def _shares(count: int) -> NDArray[np.float64]:
    shares = 1.0 / np.arange(1, count + 1)
    return np.asarray(shares / shares.sum())


def _workloads_of(job: int, size: int, keys: list[str], rng: np.random.Generator) -> list[int]:
    if job == _LARGE:
        return [len(model_workloads()) - 1]
    if job % 3 == 0:
        return list(range(min(60, len(keys))))
    count = max(1, min(40, size // 200))
    return [int(i) for i in rng.choice(len(keys), count, replace=False)]


def _configurations(
    series: NDArray[np.int32], rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Counting up within each series, one in 25 an earlier one again; which are the last word."""
    order = np.argsort(series, kind="stable")
    ordered = series[order]
    first = np.r_[0, np.flatnonzero(np.diff(ordered)) + 1]
    rank = np.arange(len(series)) - np.repeat(first, np.diff(np.r_[first, len(series)]))
    again = rng.random(len(series)) < 0.04
    rank = np.where(again, (rng.random(len(series)) * rank).astype(int), rank).astype(np.int32)
    config = np.empty_like(rank)
    config[order] = rank
    by_config = np.lexsort((np.arange(len(series)), config, series))
    last = np.ones(len(series), bool)
    s, c = series[by_config], config[by_config]
    last[:-1] = (s[1:] != s[:-1]) | (c[1:] != c[:-1])
    latest = np.empty(len(series), bool)
    latest[by_config] = last
    return config, latest


def _series(slot: tuple[Any, ...]) -> dict[str, Any]:
    key, target, threads, by, given, made, age = slot
    return {
        "workload_id": key + 1,
        "target_id": target + 1,
        "threads": threads,
        "measured_by": by,
        "input_layout": given,
        "output_layout": made,
        "toolchain_id": age + 1,
        "calibration": "c0ffee" if by == "simulator" else "",
    }


def _job(job: int, count: int, by: str) -> dict[str, Any]:
    start = START + timedelta(days=600 * job / count)
    return {
        "uid": f"{job:032x}",
        "command": f"tilesmith tune model{job}.onnx --measure {by}",
        "seed": job,
        "strategy": "evolution",
        "state": None,
        "status": "finished" if job % 9 else "interrupted",
        "message": "",
        "host": f"box{job % 40}",
        "started_at": start,
        "ended_at": start + timedelta(hours=2),
    }


def rows(made: Plan, seed: int = 0) -> Iterator[tuple[Any, ...]]:
    """The rows of `trials`, in the order of `_COLUMNS`."""
    rng = np.random.default_rng(seed + 1)
    count = int(made.config.max()) + 1
    configs = [
        f'{{"k_tile":{8 << n % 5},"m_tile":{n % 997},"n_tile":{n},'
        f'"order":"mnk","unroll":{1 + n % 3}}}'
        for n in range(count)
    ]
    digests = [config_digest(config) for config in configs]
    base = rng.lognormal(-8, 1.0, len(made.series))
    kinds, shares, _ = zip(*_FAILURES, strict=True)
    messages = {kind: message for kind, _, message in _FAILURES}
    hardware = [series["measured_by"] == "hardware" for series in made.series]
    for start in range(0, len(made.config), 100_000):
        part = slice(start, start + 100_000)
        size = len(made.config[part])
        of = made.of_series[part].tolist()
        latency = (base[made.of_series[part]] * (1 + rng.exponential(0.6, size))).tolist()
        failed = (rng.random(size) < 0.125).tolist()
        kind = rng.choice(len(kinds), size, p=shares).tolist()
        noise = rng.normal(0, 0.004, size).tolist()
        config, jobs = made.config[part].tolist(), made.of_job[part].tolist()
        latest = made.latest[part].tolist()
        for i in range(size):
            number, n, job = start + i + 1, config[i], jobs[i]
            seconds, e, real = latency[i], abs(noise[i]), hardware[of[i]]
            status, message, samples, warm = "ok", "", f"[{seconds!r}]", "[]"
            median: float | None = seconds
            if failed[i]:
                status, median, samples = kinds[kind[i]], None, "[]"
                message = messages[status].format(n=n % 4096)
                if status == "slow":
                    samples = f"[{4 * seconds!r}]"
            elif real:
                low, high = seconds * (1 - e), seconds * (1 + e)
                more = f"{seconds * (1 - 2 * e)!r},{low!r},{seconds!r},{high!r}"
                samples, warm = (
                    f"[{more},{high!r}]",
                    f"[{low * 0.9!r},{seconds * 0.9!r},{high * 0.9!r}]",
                )
            moment = made.jobs[job]["started_at"] + timedelta(microseconds=60_000 * number % 10**10)
            yield (
                number, of[i] + 1, configs[n], digests[n], status, message, median, samples, warm,
                "memory" if real else "compute", 0.06, latest[i], job + 1,
                f"box{job % 40}", moment.replace(tzinfo=None),
            )  # fmt: skip


def fill(location: str, trials: int, seed: int = 0) -> None:
    """Fill an empty database; what is already in one is left, with a sentence."""
    made, keys = plan(trials, all_workloads(), seed), all_workloads()
    with Database.open(location) as database:
        schema = database.toolchain.schema
    engine = make_engine(parse_url(location))
    nouns = [
        (WORKLOADS, [_workload(key) for key in keys]),
        (TARGETS, [_target(identity) for identity in IDENTITIES]),
        (TOOLCHAINS, [_toolchain(each, schema) for each in toolchains()]),
        (JOBS, made.jobs),
        (SERIES, made.series),
    ]
    with engine.connect().execution_options(tilesmith_write=True) as connection, connection.begin():
        for table, values in nouns:
            connection.execute(insert(table), values)
    with _without_indexes(engine):
        _load(engine, location, rows(made, seed))
    with engine.connect() as connection:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        if engine.dialect.name == "postgresql":
            _renumber(connection)
            connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()


def _workload(key: str) -> dict[str, Any]:
    import hashlib

    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return {"key": key, "digest": digest, "operator": key.split()[0], "dtype": "float32"}


def _target(identity: str) -> dict[str, Any]:
    name = identity.rpartition("-")[0]
    return {"identity": identity, "name": name, "family": name, "facts": ""}


def _toolchain(each: Toolchain, schema: str) -> dict[str, Any]:
    return {f.name: getattr(each, f.name) for f in fields(Toolchain)} | {"schema": schema}


@contextmanager
def _without_indexes(engine: Engine) -> Iterator[None]:
    """Drop the indexes of `trials` that hold no constraint, and make the same again."""
    definitions = {
        "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index' "
        "AND tbl_name = 'trials' AND sql IS NOT NULL",
        "postgresql": "SELECT indexname, indexdef FROM pg_indexes "
        "WHERE tablename = 'trials' AND indexname LIKE 'ix_%'",
    }
    with engine.connect().execution_options(tilesmith_write=True) as connection, connection.begin():
        found = connection.execute(text(definitions[engine.dialect.name])).all()
        for name, _ in found:
            connection.execute(text(f"DROP INDEX {name}"))
    yield
    with engine.connect().execution_options(tilesmith_write=True) as connection, connection.begin():
        for _, definition in found:
            connection.execute(text(definition))


def _load(engine: Engine, location: str, made: Iterable[tuple[Any, ...]]) -> None:
    """Rows in, as fast as the engine takes them."""
    names = _COLUMNS
    if engine.dialect.name == "sqlite":
        file = sqlite3.connect(location, isolation_level=None)
        file.execute("PRAGMA synchronous = OFF")
        file.execute("BEGIN")
        marks = ",".join("?" * len(names))
        strings = ((*row[:14], row[14].isoformat(" ", "microseconds")) for row in made)
        file.executemany(f"INSERT INTO trials ({','.join(names)}) VALUES ({marks})", strings)
        file.execute("COMMIT")
        file.close()
        return
    with engine.connect() as connection, connection.begin():
        connection.execute(text("SET session_replication_role = replica"))
        driver: Any = connection.connection.driver_connection
        with driver.cursor().copy(f"COPY trials ({','.join(names)}) FROM STDIN") as copy:
            for row in made:
                copy.write_row(row)


def _renumber(connection: Any) -> None:
    """Tell PostgreSQL's counters what numbers are taken."""
    tables = ("workloads", "targets", "toolchains", "jobs", "series", "trials")
    for table in tables:
        last = f"(SELECT max(id) FROM {table})"
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {last})"))
