"""One round of an order: a tuning job of some seconds, and an exchange if the model is faster then.

    tune -> compile with what is on record now -> run beside what runs now, in turns -> artifact

The job is one like any other: `tilesmith db jobs` lists it, the database keeps every trial, and the
next process compiles with what it found. Rounds become longer; the order is ended after `_IDLE` of
them without a gain. Invariant: an artifact is written only if the whole model, run in turns with
what its processes run now, is beyond doubt faster (`Versus.is_faster`); where it is slower, the
schedules that run now are recorded as those of the model.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tilesmith.capabilities.first_use.orders import (
    OrderFolder,
    OrderState,
    Shapes,
    TuningOrder,
    digest_of,
)
from tilesmith.capabilities.first_use.priority import MachineLoad, Pause
from tilesmith.capabilities.first_use.writing import digest_of_file
from tilesmith.compiler.recipe.program import kernels_of
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.runtime.turns import in_turns, rounds_of
from tilesmith.compiler.varying.executable import VaryingExecutable, load
from tilesmith.jobs.background import is_there
from tilesmith.jobs.compilation.compiling import (
    at_one_size,
    build_executable,
    parts_of,
    random_inputs,
)
from tilesmith.jobs.compilation.in_model import keep
from tilesmith.jobs.compilation.model_cache import CacheEntry, cache_entry
from tilesmith.jobs.requests.request import Request, TuneRequest
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.jobs.tuning.ending import JobStopped
from tilesmith.jobs.tuning.job import run_job, tuning_job
from tilesmith.jobs.tuning.tune_reports import TuneReport
from tilesmith.records.database import Database
from tilesmith.search_space.hardware.target import HOST
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ModelError, TilesmithError
from tilesmith.tuner.confirmation.whole_model import Versus, versus
from tilesmith.tuner.tasks.cancel import CancelToken

_LOG = logging.getLogger("tilesmith.first_use")

_FIRST_S, _LONGEST_S = 15.0, 120.0
"""Seconds of the first round, which are doubled from round to round, and of the longest."""
_IDLE = 2
"""Rounds without a gain after which none is expected."""
_MOST_S = 1800.0
"""Seconds of all rounds together."""
_TURNS = 5
_PAUSED_S = 0.5

Compiled = Executable | VaryingExecutable
Search = Callable[[TuningOrder, float, int, CancelToken, Pause], TuneReport]


@dataclass(frozen=True)
class Tools:
    """What a round works with.

    Attributes:
        search: a tuning job of some seconds.
        clock: tells seconds when models are run in turns.
        load: how busy others keep the machine.
    """

    search: Search
    clock: Callable[[], float] = time.perf_counter
    load: Callable[[], MachineLoad] = MachineLoad


def searched(
    order: TuningOrder, seconds: float, seed: int, token: CancelToken, pause: Pause
) -> TuneReport:
    """A tuning job of so many seconds; errors as `run_job`."""
    asked = order.resolved()
    request = TuneRequest(
        order.model, asked.target, asked.database, asked.shapes, threads=asked.threads,
        precision=asked.precision, updates=asked.updates, time_limit=seconds, seed=seed,
        measure=order.measure, bits=asked.bits,
    )  # fmt: skip
    return run_job(tuning_job(request, time.monotonic()), cancel=token, pause=pause)


TOOLS = Tools(searched)


def another(folder: OrderFolder, token: CancelToken, tools: Tools = TOOLS) -> None:
    """One more round of an order; what prevents it ends the order.

    Raises:
        InputError, JobError: the order's folder cannot be written.
    """
    order, state = folder.order, folder.state
    if order is None:
        return
    load = tools.load()
    time.sleep(load.every_s)  # nothing is known before
    pause = Pause(load, lambda: token.cancelled)
    _wait(pause)
    begun, waited = time.monotonic(), pause.seconds
    try:
        state = _round(folder, order, token, tools, pause)
    except JobStopped:
        return  # every trial is kept, and the next round knows of them
    except Exception as error:  # whatever it is, other models are still tuned
        ours = isinstance(error, TilesmithError)
        why = str(error) if ours else f"internal error: {type(error).__name__}: {error}"
        _LOG.warning("'%s' cannot be tuned: %s", order.model, why)
        state = replace(state, ended=why, failed=True)
    if token.cancelled:
        return
    spent = time.monotonic() - begun - (pause.seconds - waited)
    state = replace(state, seconds=state.seconds + spent)
    if not state.ended and (state.idle >= _IDLE or state.seconds >= _MOST_S):
        state = replace(state, ended=f"no gain is expected after {state.rounds} rounds")
    folder.state = state


def _round(
    folder: OrderFolder, order: TuningOrder, token: CancelToken, tools: Tools, pause: Pause
) -> OrderState:
    """How far the order is after one more round."""
    before = folder.state
    now, waited = _running(folder, order), pause.seconds
    seconds = min(_LONGEST_S, _FIRST_S * 2**before.rounds)
    report = tools.search(order, seconds, before.rounds, token, pause)
    # a round that mostly waited, or tried nothing, says nothing of what is to be gained
    counts = report.counts.trials > 0 and pause.seconds - waited < seconds / 2
    state = replace(before, rounds=before.rounds + counts)
    entry = _entry(order)
    inputs = None if entry is None else entry.inputs()
    better = build_executable(order.resolved())
    if entry is not None and inputs is not None:
        entry.store(better, inputs)  # the next process begins with it
    if token.cancelled or digest_of(better.recipe) == digest_of(now.recipe):
        return replace(state, idle=state.idle + counts)
    _wait(pause)
    comparison = compared(better, now, order.shapes, tools.clock)
    _LOG.info("'%s': %.3f of the time it takes now", order.model, comparison.ratio)
    if not comparison.is_faster:
        if comparison.is_slower:
            _keep(order, now, comparison.second_s)
        return replace(state, idle=state.idle + counts)
    version = state.version + 1
    better.save(folder.artifact(version))
    folder.artifact(version - 1).unlink(missing_ok=True)
    return replace(state, version=version, idle=0, ratio=state.ratio * comparison.ratio)


def _entry(order: TuningOrder) -> CacheEntry | None:
    """Where the next process looks for what it would compile, if it names this machine only."""
    asked = order.resolved()
    if order.ranges or resolve_target(HOST) != asked.target:
        return None
    request = Request(
        order.model, HOST, asked.database, asked.shapes, threads=asked.threads,
        precision=asked.precision, updates=asked.updates, packs=asked.packs, bits=asked.bits,
    )  # fmt: skip
    return cache_entry(request, require_tuned=False)


def _wait(pause: Pause) -> None:
    while pause():
        time.sleep(_PAUSED_S)


def _running(folder: OrderFolder, order: TuningOrder) -> Compiled:
    """The model as its processes run it: the last artifact, or else as they compiled it."""
    state, asked = folder.state, order.resolved()
    model = Path(order.model)
    if model.parent != folder.path and digest_of_file(model) != order.content:
        raise ModelError(f"the model's file '{model}' has changed since it was compiled")
    if state.version:
        return load(folder.artifact(state.version))
    if order.ranges:
        asked = replace(asked, shapes=order.ranges)
    untuned = build_executable(replace(asked, database=None))
    runs = set(folder.owners().values())
    if not runs or digest_of(untuned.recipe) in runs or not is_there(order.database):
        return untuned
    return build_executable(asked)


def compared(one: Compiled, other: Compiled, shapes: Shapes, clock: Callable[[], float]) -> Versus:
    """Two forms of a model, run in turns on the same random inputs."""
    models = [at_one_size(model, shapes) for model in (one, other)]
    inputs = random_inputs(models[0])
    runs = [partial(model.run, inputs) for model in models]

    def measure() -> list[MeasureResult]:
        rounds = rounds_of(runs, _TURNS, clock)
        return [MeasureResult("ok", "hardware", s) for s in in_turns(runs, rounds, clock)]

    return versus(measure)


def _keep(order: TuningOrder, now: Compiled, seconds: float | None) -> None:
    """Record the schedules that a model runs now as its own: the next process compiles with them,
    whatever is best alone."""
    asked = order.resolved()
    kernels = parts_of(asked).kernels
    if not isinstance(now, Executable) or kernels is None or seconds is None:
        return
    steps = {step.workload: step.config for step in kernels_of(now.recipe.steps)}
    workloads = {node.workload for node in kernels.nodes if node.workload is not None}
    choices = {w: Config.from_json(steps[w.key]) for w in workloads if w.key in steps}
    with Database.open(order.database) as database:
        keep(database, kernels, asked.target, order.threads, choices, seconds)
