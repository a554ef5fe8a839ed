"""What a search came to, as jobs report it; schedules have the origins that compiling will name."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.jobs.tuning.tune_reports import InModelReport, Pinned, TuneReport, WorkloadReport
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.tuner.confirmation.in_place import InPlace
from tilesmith.tuner.confirmation.publish import NEAR_TIE
from tilesmith.tuner.ledgers.recorded_space import NamedWorkload
from tilesmith.tuner.session.progress import TaskReport as TunedTask
from tilesmith.tuner.session.progress import TuningSummary

if TYPE_CHECKING:
    from tilesmith.jobs.tuning.tune_reports import WorkloadReport
    from tilesmith.records import Database


def report_of(summary: TuningSummary) -> TuneReport:
    """What a search came to, for people."""
    return TuneReport(
        counts=summary.counts,
        wall_s=summary.wall_s,
        tasks=tuple(_task(task, summary.in_place) for task in summary.tasks),
        stopped=summary.reason,
        failures=dict(summary.failures),
        search_s=summary.search_s,
        drift=summary.drift,
        steady=summary.steady,
        in_model=in_model_of(summary),
        trial_ms=dict(summary.trial_ms),
        noise=summary.noise,
    )


def in_model_of(summary: TuningSummary) -> InModelReport | None:
    in_place = summary.in_place
    if in_place.before_s is None or in_place.after_s is None:
        return None
    kept = {task.workload.key: pinned_of(task, in_place) for task in summary.tasks}
    parts, untuned = in_place.parts, in_place.untuned_s
    return InModelReport(
        in_place.before_s * 1e3,
        in_place.after_s * 1e3,
        tuple(key for key, one in kept.items() if one is not None and one.kept == "other"),
        in_place.compared,
        None if untuned is None else untuned * 1e3,
        tuple(sorted(k for k, one in kept.items() if one is not None and one.kept == "default")),
        None if parts is None else parts.alone_s * 1e3,
        None if parts is None else parts.in_place_s * 1e3,
        None if parts is None else parts.added_s * 1e3,
    )


def _task(task: TunedTask, in_place: InPlace) -> WorkloadReport:
    flops = 0
    if not isinstance(task.workload, NamedWorkload):
        flops = template_of(task.workload.operator).flops(task.workload)
    best_s = task.best_s
    if best_s and task.default_s and best_s <= task.default_s * (1 + NEAR_TIE):
        best_s = min(best_s, task.default_s)  # measurements cannot tell near-ties apart
    return WorkloadReport(
        workload=task.workload,
        weight=task.weight,
        default_us=None if task.default_s is None else task.default_s * 1e6,
        best_us=None if best_s is None else best_s * 1e6,
        gflops=flops / best_s / 1e9 if best_s and flops else None,
        config=task.config,
        measured_by=task.measured_by,
        trials=task.trials,
        schedule=task.origin,
        in_model=pinned_of(task, in_place),
    )


def pinned_of(task: TunedTask, in_place: InPlace) -> Pinned | None:
    """What the model runs of a task in place of its best alone."""
    config = in_place.choices.get(task.workload)
    if config is None or config == task.config:
        return None
    return Pinned("default" if config == task.default else "other", config)


def with_origins(
    tasks: Sequence[WorkloadReport], database: "Database", target: Target, threads: int
) -> tuple[WorkloadReport, ...]:
    """Reports of tasks with the origin of what is on record of each, or stands in for it."""
    chooser = ScheduleChooser(target, database, threads)
    reports = []
    for task in tasks:
        origin = None
        if task.best_us is not None:
            origin = database.origin(task.workload, target, threads, task.measured_by)
        try:
            origin = origin or chooser.best(task.workload).origin
        except TilesmithError:  # no schedule at all
            origin = Origin(task.schedule)
        reports.append(replace(task, schedule=origin))
    return tuple(reports)
