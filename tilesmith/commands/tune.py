"""`tilesmith tune`: search for the best schedules of a model or of single operators."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tilesmith.cli.files import time_limit_option
from tilesmith.cli.help import CommandOption, Explained
from tilesmith.cli.options import (
    Listed,
    bits_option,
    database_option,
    json_option,
    operator_option,
    pack_option,
    precision_option,
    seed_option,
    shape_option,
    targets_option,
    threads_option,
)
from tilesmith.cli.values import Shape
from tilesmith.display.output import duration, note, print_json, table
from tilesmith.search_space.results.origin import counted

if TYPE_CHECKING:
    from tilesmith.jobs.subjects.subject import Subject
    from tilesmith.jobs.tuning.tune_reports import InModelReport, TuneReport


_REPLAYED = ("trials", "time_limit", "early_stopping", "seed", "strategy", "cost_model")
"""Options that a search in a recorded space takes."""
_KEPT = "stopped; all finished trials are kept; to go on: "
_NOISY = 0.25
"""Of `TuneReport.noise`, from which on results are not to be believed (as `timing.UNSTEADY`)."""
_WHOLE = ("median", "mean")
"""Of `TuneReport.trial_ms`, what is no part of a trial."""


@click.command(cls=Explained)
@click.argument("model", required=False, metavar="MODEL.onnx|MODEL.mlir")
@operator_option
@targets_option(
    ", or a machine or an identity that the database knows; repeatable: each has a search of its "
    "own, and is measured by workers that are such machines."
)
@database_option(required=True, makes=True)
@pack_option
@click.option(
    "--trials",
    cls=CommandOption,
    type=click.IntRange(min=1),
    show_default="1000, or as many as --time-limit allows",
    help="Configurations to try, in all.",
)
@time_limit_option("When to stop.", type=click.FloatRange(min=0, min_open=True))
@click.option(
    "--early-stopping",
    type=click.IntRange(min=1),
    help="Leave a workload after this many trials without a better one.",
)
@click.option(
    "--measure",
    type=click.Choice(["simulator", "hardware", "both", "replay"]),
    help="How to measure; 'both' on cpu and 'simulator' elsewhere unless given. 'replay' looks "
    "results up in the database and writes nothing, to study a search.",
)
@click.option(
    "--space",
    metavar="FILE",
    help="Instead of a model, for 'replay': a search space that was measured in full, a T4 file or "
    "a cache of Kernel Tuner. Needs no database.",
)
@click.option(
    "--objective",
    default="",
    help="Of --space: the measurement to search by, with min: or max: before it where its name "
    "does not tell; the file's unless given.",
)
@click.option(
    "--strategy",
    cls=Listed,
    names="tilesmith.tuner.tasks.strategy:strategies",
    package="tilesmith.tuner.strategies",
    default="evolutionary",
    show_default=True,
    help="Search strategy.",
)
@click.option(
    "--scheduler",
    cls=Listed,
    names="tilesmith.tuner.tasks.scheduler:schedulers",
    package="tilesmith.tuner.schedulers",
    default="expected_gain",
    show_default=True,
    help="What shares trials among workloads.",
)
@click.option(
    "--cost-model",
    cls=Listed,
    names="tilesmith.tuner.surrogates.cost_model:cost_models",
    package="tilesmith.tuner.cost_models",
    default="",
    help="What ranks candidates; chosen by how is measured unless given.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(min=0),
    help="Batches proposed ahead of the one whose results are waited for; what is found depends on "
    "it, and on nothing else of where trials are measured.",
)
@click.option(
    "--choosing",
    type=click.IntRange(min=0),
    help="How many of these are chosen at once, by the workers; likewise.",
)
@click.option(
    "--workers",
    help="Who does the trials: a number of processes here, 'auto' (a cluster if there is one, else "
    "every core), 'ray' (this machine's cluster), or ray://HOST:PORT. Without it, this process.",
)
@threads_option
@precision_option
@bits_option
@seed_option("Of all random choices.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on where the last job on this input stopped; start one where none is unfinished.",
)
@shape_option
@json_option
def tune(
    model: str | None,
    operators: tuple[str, ...],
    targets: tuple[str, ...],
    settings: tuple[tuple[str, str], ...],
    shapes: tuple[tuple[str, Shape], ...],
    as_json: bool,
    **asked: Any,
) -> None:
    """Tune every operator of MODEL, or the operators given with --op.

    Every trial is stored in the database as it finishes; a job that is interrupted loses none.
    """
    from tilesmith.cli.stopping import resuming_command
    from tilesmith.jobs.subjects.subject import subject_of
    from tilesmith.jobs.tuning.job import NOTHING_TO_RESUME

    space, objective = asked.pop("space"), asked.pop("objective")
    if asked["resume"] and (space is not None or asked["measure"] == "replay"):
        note(NOTHING_TO_RESUME)
    if space is not None:
        _check_replay(model or operators, asked)
        _replay(space, objective, asked, as_json)
        return
    if objective:
        raise click.UsageError("--objective goes with --space")
    subject = subject_of(model, operators)
    resuming = resuming_command(click.get_current_context().find_root().obj)
    asked |= {"settings": dict(settings), "shapes": dict(shapes)}
    if len(targets) > 1:
        _tune_several(subject, targets, resuming, as_json, asked)
    else:
        _tune_one(subject, resuming, as_json, {**asked, "target": targets[0]})


def _replay(space: str, objective: str, asked: Mapping[str, Any], as_json: bool) -> None:
    """A search in a space that was measured in full."""
    from tilesmith import api
    from tilesmith.cli.stopping import ends_soon
    from tilesmith.display.progress import progress_display
    from tilesmith.jobs.tuning.ending import JobStopped

    options = {name: asked[name] for name in _REPLAYED}
    with ends_soon("stopped") as cancel, progress_display() as observer:
        try:
            report = api.replay(space, objective, observer=observer, cancel=cancel, **options)
        except JobStopped as stopped:
            if stopped.report is not None:
                _print(stopped.report, as_json)
            raise
    _print(report, as_json)


def _tune_one(subject: "Subject", resuming: str, as_json: bool, asked: dict[str, Any]) -> None:
    """A search for one target; what it found is printed, though it be stopped."""
    from tilesmith import api
    from tilesmith.cli.stopping import ends_soon
    from tilesmith.display.progress import progress_display
    from tilesmith.jobs.tuning.ending import JobStopped
    from tilesmith.records.schema.urls import without_password

    try:
        with ends_soon(_KEPT + resuming) as cancel, progress_display() as observer:
            report = api.tune(subject, observer=observer, cancel=cancel, **asked)
    except JobStopped as stopped:
        if stopped.report is not None:
            _print(stopped.report, as_json)
        said = str(stopped).rpartition(";")[0]
        raise JobStopped(None, f"{said}; to go on: {resuming}", stopped.reason) from stopped
    _print(report, as_json)
    _say_what_lacks(report, without_password(asked["database"]))
    note(f"{report.counts} in {report.wall_s:.1f} s")


def _say_what_lacks(report: "TuneReport", database: str) -> None:
    """Note workloads that had no turn.

    Raises:
        JobError: of a workload that had one, no schedule worked.
    """
    from tilesmith.search_space.support.errors import JobError

    failed = [task for task in report.tasks if task.best_us is None and task.trials]
    untried = sum(task.best_us is None and not task.trials for task in report.tasks)
    if untried:
        note(f"{untried} of {len(report.tasks)} workloads had no turn in {report.counts}; "
             "more --trials reach all")  # fmt: skip
    if failed:
        raise JobError(
            f"no schedule worked for {len(failed)} workloads, the first is "
            f"'{failed[0].workload}'; 'tilesmith db query --database {database} --status "
            "failed' shows why"
        )


def _tune_several(
    subject: "Subject",
    targets: tuple[str, ...],
    resuming: str,
    as_json: bool,
    asked: dict[str, Any],
) -> None:
    """A search for each target; what was found for each is printed, whatever became of others."""
    import time

    from tilesmith.cli.stopping import ends_soon
    from tilesmith.display.progress import progress_display
    from tilesmith.jobs.requests.request import TuneRequest
    from tilesmith.jobs.tuning.several import NotAllTuned, tune_for

    request = TuneRequest(subject, **asked)
    failure: NotAllTuned | None = None
    try:
        with ends_soon(_KEPT + resuming) as cancel, progress_display() as observer:
            reports = tune_for(request, targets, time.monotonic(), observer, cancel)
    except NotAllTuned as error:
        reports, failure = error.reports, error
    if as_json:
        print_json({"targets": {name: report.to_json() for name, report in reports.items()}})
    for name, report in () if as_json else reports.items():
        click.echo(f"target {name}\n{_summary(report)}")
    if failure is not None:
        raise failure
    note(f"{sum(report.trials for report in reports.values())} trials for {len(reports)} targets")


def _check_replay(named: str | tuple[str, ...] | None, asked: Mapping[str, Any]) -> None:
    """Refuse what says nothing of a recorded space."""
    others = [name for name in ("database", "in_flight") if asked[name]]
    if named or others or asked["measure"] not in (None, "replay"):
        what = f"--{others[0].replace('_', '-')}" if others else "a model, --op or --measure"
        raise click.UsageError(f"--space is replayed by itself; leave {what} out")


def _print(report: "TuneReport", as_json: bool) -> None:
    if as_json:
        print_json(report.to_json())
    else:
        click.echo(_summary(report))


def _in_model(report: "InModelReport") -> list[str]:
    """The whole model: against untuned, what was pinned in it, and what it is made up of."""
    times = "" if report.gain is None else f" ({report.gain:.2f} times as fast)"
    untuned = (
        "" if report.untuned_ms is None else f"untuned {duration(report.untuned_ms / 1e3)} -> "
    )
    lines = [
        f"in the model: {untuned}{duration(report.after_ms / 1e3)}{times}; of {report.compared} "
        f"schedules tried in it it keeps {len(report.reverted)} default and {len(report.pinned)} "
        f"other ones (with each kernel's best alone {duration(report.before_ms / 1e3)})"
    ]
    if report.foretold_ms is not None:
        lines.append(
            f"foretold by its parts: {report.foretold_ms:.4g} ms (kernels alone "
            f"{report.kernels_ms:.4g}, in their places {report.kernels_in_place_ms:.4g}, "
            f"conversions and what was not measured {report.added_ms:.3g})"
        )
    return lines


def _summary(report: "TuneReport") -> str:
    rows = [
        (
            task.workload,
            task.weight,
            task.trials,
            task.default_us,
            task.best_us,
            "-" if task.gain is None else f"{task.gain:.2f}",
            task.gflops,
            task.measured_by,
            task.schedule,
            "" if task.in_model is None else task.in_model.kept,
        )
        for task in sorted(report.tasks, key=lambda task: -(task.best_us or 0) * task.weight)
    ]
    header = "workload|times|trials|default us|best us|gain|GFLOP/s|measured by|schedule"
    lines = [table((*header.split("|"), "in the model"), rows)]
    if gain := report.gain:
        missing = f"; without {gain.missing} workloads not measured so" if gain.missing else ""
        lines.append(
            f"all together, each alone: {duration(gain.default_s / 1e6)} -> "
            f"{duration(gain.best_s / 1e6)} ({gain.times:.2f} times as fast{missing})"
        )
    origins = Counter(task.schedule for task in report.tasks)
    lines.append(f"schedules: {counted(origins)}")
    if report.in_model is not None:
        lines += _in_model(report.in_model)
    if cost := report.trial_ms:
        parts = ", ".join(f"{name} {cost[name]:.1f}" for name in cost if name not in _WHOLE)
        lines.append(f"a trial took {cost['median']:.0f} ms (median); on average {parts} ms")
    lines += [f"scores start from {said}" for said in report.models.values()]
    if not report.steady:
        lines.append(
            f"the machine was not steady: a kernel measured again and again moved by "
            f"{report.drift:.0%}; what was published was measured in turns, and the cost model "
            "learned latencies without that change"
        )
    if report.noise >= _NOISY:
        lines.append(
            f"the machine is too noisy to believe: the usual run of a chosen schedule takes "
            f"{report.noise:.0%} longer than its fastest, measured again and in turns; end what "
            "else runs here and tune again ('tilesmith doctor' looks at the noise)"
        )
    return "\n".join(lines)
