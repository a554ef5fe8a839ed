"""The Python API: tune, compile, load and simulate, the same jobs as the command line's.

    import tilesmith as ts
    ts.tune("model.onnx", target="cpu", database="tuning.db", trials=2000)
    model = ts.compile("model.onnx", target="cpu", database="tuning.db")
    outputs = model.run({"input": x})
    model.save("model.tsm"); model = ts.load("model.tsm")

Every function raises `InputError` (and its kinds) for what the caller gave and `JobError` for a job
that failed; messages are sentences for people.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilesmith.jobs.compiling import build_executable, is_artifact, parts_of
from tilesmith.jobs.subjects import is_model
from tilesmith.jobs.targets import check_schedulable, resolve_target
from tilesmith.search_space.files import check_output
from tilesmith.search_space.target import HOST, FactValue, Target

if TYPE_CHECKING:
    from tilesmith.compiler.executable import Executable
    from tilesmith.jobs.reports import TuneReport
    from tilesmith.jobs.subjects import Model, Subject
    from tilesmith.jobs.tuning import Observer
    from tilesmith.search_space.spaces.config import Config
    from tilesmith.search_space.workload import Workload
    from tilesmith.simulator import SimulationResult
    from tilesmith.tuner.cancel import CancelToken

Shapes = Mapping[str, tuple[int, ...]]
Settings = Mapping[str, str | FactValue]


def tune(
    subject: Subject,
    target: str | Target = HOST,
    database: str | Path = "tuning.db",
    *,
    trials: int | None = None,
    time_limit: float | None = None,
    early_stopping: int | None = None,
    measure: str | None = None,
    threads: int = 1,
    precision: str = "fp32",
    seed: int = 0,
    resume: bool = False,
    shapes: Shapes | None = None,
    settings: Settings | None = None,
    strategy: str = "evolutionary",
    scheduler: str = "expected_gain",
    cost_model: str = "",
    observer: Observer | None = None,
    cancel: CancelToken | None = None,
) -> TuneReport:
    """Search for the best schedules of a model, or of single operators.

    Every trial is in the database as soon as it is finished; the untuned default is measured first
    and stays a candidate, so that a tuned model is never slower than the default.

    Args:
        subject: path of an ONNX file, a loaded `onnx.ModelProto`, a `Workload`, or several.
        target: see `resolve_target`.
        database: SQLite file or SQLAlchemy URL; made if missing.
        trials: configurations to try in all; 1000 if neither this nor a time limit is given.
        time_limit: seconds after which to stop.
        early_stopping: leave a workload after so many trials without a better one.
        measure: "simulator", "hardware", "both", or "replay" (look results up in the database
            and write nothing); None: both on a CPU, else the simulator.
        threads: threads a kernel may use.
        precision: "fp32" or, on an accelerator, "bf16": of the kernels of an fp32 model.
        seed: of all random choices.
        resume: go on with the last unfinished job on the same input.
        shapes: of inputs with symbolic dimensions, by input name.
        settings: numbers of the target to change, by dotted name.
        strategy, scheduler, cost_model: registered names; cost_model "" chooses by the way of
            measuring.
        observer: called with a `tuner.options.Progress` now and then.
        cancel: a `tuner.cancel.CancelToken` that ends the job when it is set.

    Raises:
        InputError: as the class says: model, workload, target, database, or an option.
        JobError: interrupted (all finished trials are kept), no worker, a full disk.
    """
    started = time.monotonic()
    from tilesmith.jobs.tuning import run_job, tuning_job
    from tilesmith.tuner.options import TuneOptions

    options = TuneOptions(
        trials=1000 if trials is None and time_limit is None else trials,
        time_limit_s=time_limit,
        early_stopping=early_stopping,
        seed=seed,
        strategy=strategy,
        scheduler=scheduler,
        cost_model=cost_model,
        started=started,
    )
    resolved = resolve_target(target, settings, calibrate=True)
    job = tuning_job(
        subject, resolved, shapes, measure, threads, resume=resume, precision=precision
    )
    return run_job(job, str(database), options, observer, cancel)


def compile(
    model: Model,
    target: str | Target = HOST,
    database: str | Path | None = None,
    *,
    shapes: Shapes | None = None,
    settings: Settings | None = None,
    threads: int = 1,
    require_tuned: bool = False,
    precision: str = "fp32",
) -> Executable:
    """Compile a model with the best schedules of a database.

    An operator the database does not know takes the schedule of the nearest tuned shape, or else
    the default; one without a template runs on the host (`Executable.report` tells).

    Args:
        model: path of an ONNX file, or a loaded `onnx.ModelProto`.
        database: None compiles everything with defaults.
        require_tuned: refuse any schedule that is not the workload's own.
        precision: as `tune`.

    Raises:
        InputError: model, target or database are wrong; `require_tuned` and something is not tuned.
        CodegenError: a schedule could not be turned into code.
    """
    resolved = resolve_target(target, settings)
    return build_executable(model, resolved, database, shapes, threads, require_tuned, precision)


def load(path: str | Path) -> Executable:
    """Load an artifact that `Executable.save` or `tilesmith compile` wrote.

    Raises:
        ModelError: no artifact, a damaged one, or one for another instruction set.
    """
    from tilesmith.compiler.executable import Executable

    return Executable.load(path)


def simulate(
    subject: Subject,
    target: str | Target = HOST,
    database: str | Path | None = None,
    *,
    fidelity: str | None = None,
    trace: str | Path | None = None,
    threads: int = 1,
    precision: str = "fp32",
    shapes: Shapes | None = None,
    settings: Settings | None = None,
) -> SimulationResult:
    """Predict latency and what bounds it, on this machine or on described hardware.

    A model on an accelerator is compiled and its whole program played; elsewhere, and at the other
    fidelities, a model costs the sum of its operators.

    Args:
        subject: as `tune`; or the path of an artifact, whose own target counts, with `settings`.
        database: where tuned schedules are looked up; operators it lacks use the default.
        fidelity: "roofline", "analytical" or "timeline"; None: the timeline for a model on an
            accelerator, else analytical.
        trace: file for a Chrome/Perfetto trace of a single operator, or of a model that is one
            program on an accelerator.
        precision: as `tune`.

    Raises:
        InputError: subject, target, database or fidelity are wrong.
    """
    from tilesmith.compiler.backend import measures_models
    from tilesmith.jobs.simulation import Part, simulate_artifact, simulate_parts, simulate_whole

    path = None if trace is None else Path(trace)
    if path is not None:
        check_output(path, *(p for p in (subject, database) if isinstance(p, str | Path)))
    if is_artifact(subject):
        return simulate_artifact(Path(str(subject)), settings or {}, fidelity, path)
    resolved = resolve_target(target, settings, calibrate=True)
    whole_too = fidelity in (None, "timeline")
    if is_model(subject) and whole_too and measures_models(resolved, "simulator"):
        model: Model = subject  # type: ignore[assignment]
        return simulate_whole(
            build_executable(model, resolved, database, shapes, threads, precision=precision), path
        )
    whole = parts_of(subject, shapes, resolved, precision)
    workloads = [item.workload for item in whole.workloads]
    check_schedulable(workloads, resolved, simulated=True)
    best = _best_configs(workloads, resolved, database, threads)
    parts = [
        Part(item.workload, item.weight, best.get(item.workload.key)) for item in whole.workloads
    ]
    return simulate_parts(parts, resolved, fidelity or "analytical", path, whole.notes)  # type: ignore[arg-type]


def _best_configs(
    workloads: Sequence[Workload], target: Target, database: str | Path | None, threads: int
) -> dict[str, Config]:
    """The fastest configuration on record of each workload that has one, by its key."""
    if database is None:
        return {}
    from tilesmith.records.database import Database

    with Database.open(str(database), create=False) as opened:
        bests = opened.bests(workloads, target, threads)
    return {key: best.record.config for key, best in bests.items()}
