"""The Python API: tune, compile, load and simulate, the same jobs as the command line's.

    import tilesmith as ts
    ts.tune("model.onnx", target="cpu", database="tuning.db", trials=2000)
    model = ts.compile("model.onnx", target="cpu", database="tuning.db")
    outputs = model.run({"input": x})
    model.save("model.tsm"); model = ts.load("model.tsm")

Every function raises `InputError` (and its kinds) for what the caller gave and `JobError` for a job
that failed; messages are sentences for people. What is asked for becomes one request at once
(`tilesmith.jobs.requests.request`). Models of other frameworks come by functions of the
capabilities that read them.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tilesmith.jobs.databases import BY_DEFAULT, Named, here
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.requests.request import (
    Asked,
    AskedOfReplay,
    AskedOfSearch,
    Request,
    TuneRequest,
    replay_options,
)
from tilesmith.search_space.hardware.target import HOST, Target

if TYPE_CHECKING:
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.compiler.varying.executable import VaryingExecutable
    from tilesmith.jobs.subjects.subject import Model, Subject
    from tilesmith.jobs.tuning.heartbeat import Observer
    from tilesmith.jobs.tuning.tune_reports import TuneReport
    from tilesmith.simulator import SimulationResult
    from tilesmith.tuner.tasks.cancel import CancelToken


@takes(AskedOfSearch)
def tune(
    subject: "Subject",
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    *,
    observer: "Observer | None" = None,
    cancel: "CancelToken | None" = None,
    **asked: Unpack[AskedOfSearch],
) -> "TuneReport":
    """Search for the best schedules of a model, or of single operators.

    Every trial is in the database as soon as it is finished; the untuned default is measured first
    and stays a candidate, so that a tuned model is never slower than the default.

    Args:
        subject: path of an ONNX or StableHLO file, a loaded `onnx.ModelProto`, a model of a front
            end, a `Workload`, or several.
        target: see `resolve_target`.
        database: SQLite file or SQLAlchemy URL, made if missing; by default see `jobs.databases`.
        observer: called with a `tuner.options.Progress` now and then.
        cancel: a `tuner.cancel.CancelToken` that ends the job when it is set.
        asked: what else the job is told, by name:

            trials: configurations to try in all; 1000 if neither this nor a time limit is given.
            time_limit: seconds after which to stop.
            early_stopping: leave a workload after so many trials without a better one.
            measure: "simulator", "hardware", "both", or "replay" (look results up in the database
                and write nothing); left out: both on a CPU, else the simulator.
            threads: threads a kernel may use; 1 unless given.
            precision: "fp32", "bf16" or, on CPUs, "fp16": of the kernels of an fp32 model. Or
                "int8": of a model that is quantised, or that `calibration` quantises.
            bits: "same": schedules stay inside one order of summation for each operator, so that
                outputs are equal to the bit whatever was tuned, and on however many threads
                (CPUs); "any" unless given.
            calibration: data for "int8", as `quantize` takes it.
            seed: of all random choices; 0 unless given.
            resume: go on with the last unfinished job on the same input; without one, start.
            shapes: of inputs with symbolic dimensions, by input name, or sizes of symbolic
                dimensions by theirs: {"input_ids": (8, 128)}, {"sequence": 128}. A pair is a range:
                {"sequence": (1, 2048)}, {"input_ids": ((1, 64), (1, 2048))}.
            settings: numbers of the target to change, by dotted name.
            updates: by input the output that its array is to hold after a run: a cache is written
                where it is, as far as kernels can.
            strategy, scheduler, cost_model: registered names; "evolutionary", "expected_gain", and
                by the way of measuring.
            in_flight: batches proposed ahead of the one whose results are waited for; unless
                given 4 where there are workers, else 1 where trials are measured on several cores
                of this machine, else 0.
            choosing: how many of them are chosen at once, by the workers; 0 (none: here) unless
                given. What is found depends on both, not on who chooses or measures.
            workers: who does the trials, by Ray: a number of processes on this machine, "ray",
                "auto" or "ray://HOST:PORT" (docs/fleet.md); this process unless given.

    Raises:
        InputError: as the class says: model, workload, target, database, or an option.
        DependencyError: workers without Ray.
        JobError: interrupted (all finished trials are kept), no worker, a full disk.
    """
    started = time.monotonic()
    from tilesmith.jobs.tuning.job import run_job, tuning_job

    request = TuneRequest(subject, target, here(database, makes=True), **asked)
    return run_job(tuning_job(request, started), observer, cancel)


@takes(AskedOfReplay)
def replay(
    space: str | Path,
    objective: str = "",
    *,
    observer: "Observer | None" = None,
    cancel: "CancelToken | None" = None,
    **asked: Unpack[AskedOfReplay],
) -> "TuneReport":
    """Search a space that others measured in full, with their results for measurements.

    Args:
        space: a T4 file (Kernel Tuner's benchmark hub has some) or a cache of Kernel Tuner, plain
            or gzipped.
        objective: the measurement to search by, with "min:" or "max:" before it where its name does
            not tell; the file's unless given.
        asked: trials, time_limit, early_stopping, seed, strategy, cost_model, as `tune` takes them.

    Raises:
        InputError: no such file, or no recorded space; an option that is out of range or unknown.
    """
    started = time.monotonic()
    from tilesmith.jobs.tuning.replaying import replayed

    return replayed(space, replay_options(asked, started), objective, observer, cancel)


@takes(Asked)
def compile(
    model: "Model",
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    *,
    require_tuned: bool = False,
    tune: str | None = None,
    **asked: Unpack[Asked],
) -> "Executable | VaryingExecutable":
    """Compile a model with the best schedules of a database.

    An operator the database does not know takes the schedule of the nearest tuned shape, or else
    the default; one without a template runs on the host (`Executable.report` tells).

    Args:
        model: path of an ONNX or StableHLO file, a loaded `onnx.ModelProto`, or a model of a front
            end (`from_stablehlo`).
        database: None compiles everything with defaults; left out: `TILESMITH_DATABASE`, else
            `tuning.db` where it lies in the current directory.
        require_tuned: refuse any schedule that is not the workload's own.
        tune: "background" has the model tuned by another process while it is used, and exchanged
            for what is faster between calls (docs/first-use.md); "never" does not. Left out: what
            `TILESMITH_TUNE` says, if anything.
        asked: `threads`, `precision`, `bits`, `calibration`, `shapes`, `settings`, `updates`, as
            `tune`. With ranges in `shapes`, what comes back runs inputs of every size in them, and
            compiles nothing when it does.

    Raises:
        InputError: model, target or database are wrong; `require_tuned` and something is not tuned.
        CodegenError: a schedule could not be turned into code.
    """
    from tilesmith.jobs.background import tuning_of
    from tilesmith.jobs.compilation.model_cache import compiled
    from tilesmith.jobs.subjects.subject import remember

    tuning = tuning_of(tune, database)
    request = Request(model, target, tuning.known, **asked)
    executable = tuning.followed(*compiled(request, require_tuned))
    remember(executable, model)
    return executable


@takes()
def load(
    path: str | Path, *, mapped: bool = True, trusted_key: str | Path | None = None
) -> "Executable | VaryingExecutable":
    """Load an artifact that `Executable.save` or `tilesmith compile` wrote.

    It holds native code: load it as you would load a shared library, from people you trust, or
    with the key that they sign theirs with.

    Args:
        mapped: let weights stay in the file, shared by all processes that load it; it must be
            replaced then, not overwritten in place. False makes copies in memory.
        trusted_key: PEM file of the Ed25519 public key that has to have signed the artifact
            (`tilesmith sign`); weights are then read as they were verified. None: the one that
            $TILESMITH_TRUSTED_KEY names, if it does.

    Raises:
        ModelError: no artifact, a damaged one, one for another instruction set, or one that is not
            signed so.
        InputError: the key cannot be read.
    """
    from tilesmith.compiler.varying.executable import load

    return load(path, mapped=mapped, trusted_key=trusted_key)


@takes(Asked)
def simulate(
    subject: "Subject",
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    *,
    fidelity: str | None = None,
    trace: str | Path | None = None,
    **asked: Unpack[Asked],
) -> "SimulationResult":
    """Predict latency and what bounds it, on this machine or on described hardware.

    A model on an accelerator is compiled and its whole program played; elsewhere, and at the other
    fidelities, a model costs the sum of its operators.

    Args:
        subject: as `tune`; or an executable, or the path of an artifact, whose own target counts,
            with `settings`.
        database: where tuned schedules are looked up; operators it lacks use the default.
        fidelity: "roofline", "analytical" or "timeline"; None: the timeline for a model on an
            accelerator, else analytical.
        trace: file for a Chrome/Perfetto trace of a single operator, or of a model that is one
            program on an accelerator.
        asked: `threads`, `precision`, `bits`, `shapes`, `settings`, as `tune`.

    Raises:
        InputError: subject, target, database or fidelity are wrong.
    """
    from tilesmith.jobs.evaluation.simulation import simulated

    request = Request(subject, target, here(database), **asked)
    return simulated(request, fidelity, None if trace is None else Path(trace))
