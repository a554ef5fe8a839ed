"""Schedules that were found to be best inside a whole model: kept as records, read when compiling.

A tuning job that ends with re-ranking in place leaves one trial of the *model*: the workload
`model digest=...`, its configuration the pinned schedules (workload digest to configuration key),
its latency the model's, its message (JSON) what `in_model` of the job's report says. So it is
asked, exported, merged and goes stale like any other trial.

Invariants: the newest trial of a model counts, not the fastest; a pinned schedule holds until a
best schedule of its workload was measured later, and only while it is legal in its space.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from tilesmith.codegen.programs.structures import space_of
from tilesmith.records.trials.record import MODEL
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError
from tilesmith.search_space.workloads.workload import Workload

if TYPE_CHECKING:
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.records import Database, TuningRecord

Choices = dict[Workload, Config]


def model_key(kernels: "Graph") -> str:
    """The key of a model, whatever its weights: a digest of its kernels and how they connect."""
    lines = (
        f"{node.workload.key if node.workload else node.operator} {node.inputs} {node.outputs}"
        for node in kernels.nodes
    )
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return f"{MODEL} digest={digest}"


def keep(
    database: "Database",
    kernels: "Graph",
    target: Target,
    threads: int,
    choices: Choices,
    seconds: float,
    job: int | None = None,
    report: Mapping[str, Any] | None = None,
) -> None:
    """Record the schedules pinned in a model and its latency with them, by a job if any.

    Args:
        report: what comparing them came to, for the job's report.
    """
    from tilesmith.records import TuningRecord

    config = Config.of({workload.digest: pinned.key for workload, pinned in choices.items()})
    message = "" if report is None else json.dumps(report)
    result = MeasureResult("ok", _way(target), (seconds,), message)
    database.add(
        [TuningRecord(model_key(kernels), target.identity, config, result, threads)], job=job
    )


def pinned(database: "Database", kernels: "Graph", target: Target, threads: int) -> Choices:
    """The schedules to use in a model whatever is best alone; see the module for when they hold."""
    newest = _newest(database, model_key(kernels), target, threads)
    if newest is None or newest.created_at is None:
        return {}
    workloads = (node.workload for node in kernels.nodes if node.workload is not None)
    known = {workload.digest: workload for workload in workloads}
    pins = {
        known[digest]: Config.from_json(str(text))
        for digest, text in newest.config.items()
        if digest in known
    }
    bests = database.layout_bests(list(pins), target, threads)
    return {
        workload: config
        for workload, config in pins.items()
        if _is_legal(workload, target, config)
        and all(
            best.record.created_at is not None and best.record.created_at <= newest.created_at
            for best in bests.get(workload.key, {}).values()
        )
    }


def _newest(database: "Database", key: str, target: Target, threads: int) -> "TuningRecord | None":
    from tilesmith.records.questions.queries import Filter

    where = Filter(
        key, MODEL, target.identity, threads=threads, measured_by=_way(target), status="ok"
    )
    for record in database.query(where, limit=1):
        versions = record.toolchain
        if versions is None or not versions.stale_because(database.toolchain, _way(target)):
            return record
    return None


def _way(target: Target) -> Literal["hardware", "simulator"]:
    """How models of a target are judged."""
    from tilesmith.compiler.backends.backend import backend_of

    return backend_of(target).measured_by


def _is_legal(workload: Workload, target: Target, config: Config) -> bool:
    try:
        return config in space_of(workload, target)
    except ConfigError:
        return False
