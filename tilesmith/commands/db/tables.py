"""How records are shown: as JSON-able dictionaries for scripts, as tables for people, as CSV."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

import click

from tilesmith.display import output
from tilesmith.display.output import note
from tilesmith.display.printable import printable
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.support.json_object import object_of

if TYPE_CHECKING:
    from tilesmith.records import Best, TuningRecord
    from tilesmith.records.exchange.json_lines import ImportReport
    from tilesmith.records.questions.gains import Task
    from tilesmith.records.upkeep.maintenance import Drift
    from tilesmith.search_space.results.origin import Origin


_SUBJECT = (
    "id workload:workload_key target:target_identity threads measured_by:result.measured_by "
    "input_layout output_layout config status:result.status"
)
_OUTCOME = (
    "samples:result.samples warm_samples:result.warm_samples message:result.message "
    "bound:result.bound elapsed_s:result.elapsed job host machine:result.machine created_at "
    "calibration"
)


def record_values(record: "TuningRecord", task: "Task | None" = None) -> dict[str, Any]:
    """A record as plain data, under the names of the JSON Lines export.

    Args:
        task: what a job tells of it, as `gflops`.
    """
    return {
        **object_of(record, _SUBJECT),
        "latency_us": in_us(record.latency),
        "latency_s": record.latency,
        "gflops": gflops(record, task),
        **object_of(record, _OUTCOME),
        "toolchain": record.toolchain.to_dict() if record.toolchain else {},
    }


def best_values(
    best: "Best", task: "Task | None" = None, origin: "Origin | None" = None
) -> dict[str, Any]:
    """A best record as plain data; `task` as `record_values`.

    Args:
        origin: how it was found.
    """
    return {
        **record_values(best.record, task),
        **({} if origin is None else {"schedule": origin}),
        "stale": best.stale,
        "stale_because": list(best.stale_because),
    }


def gflops(record: "TuningRecord", task: "Task | None" = None) -> float | None:
    """Direct-form operations per second in 1e9; None for failures and for unknown operators.

    Args:
        task: what a job tells of the record's workload: where it tells the operations, nobody has
            to import the operator, and numpy with it, to count them.
    """
    if record.latency is None:
        return None
    if task is not None and task.flops is not None:
        return task.flops / record.latency / 1e9
    from tilesmith.search_space.workloads.template import template_of

    try:
        workload = record.workload
        return template_of(workload.operator).flops(workload) / record.latency / 1e9
    except TilesmithError:  # written by an installation that knows more operators
        return None


def bests_table(
    bests: "Sequence[Best]", tasks: "Sequence[Task | None]", origins: "Sequence[Origin]", empty: str
) -> None:
    """Print bests, one a line, with what each gains a model.

    Args:
        tasks: what a job tells of each.
        origins: how each was found.
        empty: as `table`.
    """
    rows = []
    for best, task, origin in zip(bests, tasks, origins, strict=True):
        record = best.record
        gained = None if task is None else task.gained_s(best)
        rows.append(
            (
                record.id,
                record.workload_key,
                record.target_identity,
                record.threads,
                number(None if task is None else task.weight),
                microseconds(None if task is None else task.default_s),
                microseconds(best.latency),
                times(None if task is None else task.gain(best)),
                microseconds(gained),
                number(gflops(record, task)),
                record.result.measured_by,
                origin,
                str(record.config),
            )
        )
    header = "id|workload|target|threads|times|default us|us|gain|gained us|GFLOP/s|measured by"
    table((*header.split("|"), "schedule", "configuration"), rows, empty)


def records_table(records: "Sequence[TuningRecord]", empty: str) -> None:
    """Print records, one a line; `empty` as `table`."""
    rows = [
        (
            record.id,
            record.workload_key,
            record.target_identity,
            record.threads,
            microseconds(record.latency),
            number(gflops(record)),
            record.result.measured_by,
            record.result.status,
            str(record.config) if record.result.ok else record.result.message.partition("\n")[0],
        )
        for record in records
    ]
    header = "id|workload|target|threads|us|GFLOP/s|measured by|status|configuration or message"
    table(header.split("|"), rows, empty)


def record_page(record: "TuningRecord") -> None:
    """Print everything about one record."""
    values = record_values(record)
    for name in ("samples", "warm_samples"):
        values[name] = _spread(values[name])
    rows = [(name, _plain(value)) for name, value in values.items() if value not in (None, "")]
    table(("column", "value"), rows)


def records_csv(records: "Iterable[TuningRecord]") -> str:
    """Records as CSV with a header; configuration and samples are JSON texts."""
    from tilesmith.records.trials.writing import samples_text

    text = StringIO()
    writer: csv.DictWriter[str] | None = None
    for record in records:
        values = record_values(record)
        values["config"] = record.config.key
        values["samples"] = samples_text(record.result.samples)
        values["warm_samples"] = samples_text(record.result.warm_samples)
        versions = values.pop("toolchain")
        values |= {name: versions.get(name, "") for name in ("tilesmith", "llvm", "simulator")}
        if writer is None:
            writer = csv.DictWriter(text, values, lineterminator="\n")
            writer.writeheader()
        writer.writerow(values)
    return text.getvalue()


def drift_values(drift: "Drift", tolerance: float) -> dict[str, Any]:
    """A record measured again, for JSON."""
    return {
        "recorded": best_values(drift.best),
        "now": record_values(drift.now),
        "ratio": drift.ratio,
        "drifted": drift.exceeds(tolerance),
    }


def drifts_table(drifts: "Sequence[Drift]", tolerance: float) -> None:
    """Print best records measured again."""
    rows = [
        (
            drift.best.record.id,
            drift.best.record.workload_key,
            microseconds(drift.best.latency),
            microseconds(drift.now.latency) or drift.now.result.status,
            number(drift.ratio),
            "drifted" if drift.exceeds(tolerance) else "holds",
            "; ".join(drift.best.stale_because),
        )
        for drift in drifts
    ]
    header = "id|workload|recorded us|now us|now / recorded|verdict|stale because"
    table(header.split("|"), rows)


def report_values(report: "ImportReport") -> dict[str, Any]:
    """What an import or a merge did, as plain data."""
    bad_lines = [{"line": number, "reason": reason} for number, reason in report.bad_lines]
    counts = object_of(report, "added duplicates conflict_count stale conflicts")
    return {**counts, "bad_lines": bad_lines}


def report_text(report: "ImportReport", shown: int = 20) -> None:
    """Print what an import or a merge did; conflicts and bad lines as tables."""
    click.echo(
        f"{report.added} trials added, {report.duplicates} were there already, "
        f"{report.conflict_count} contradict one that was, {len(report.bad_lines)} bad lines"
        + (f", {report.stale} are of other versions" if report.stale else "")
    )
    if report.conflicts:
        rows = [(c.workload, c.config, c.kept, c.came, c.reason) for c in report.conflicts[:shown]]
        table(("workload", "configuration", "here", "came", "both kept, because"), rows)
    if report.bad_lines:
        table(("line", "left out because it"), report.bad_lines[:shown])


def table(header: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "") -> None:
    """Print a table on stdout.

    Args:
        empty: what is said, on stderr, in place of a table without rows.
    """
    if not rows and empty:
        note(empty)
        return
    click.echo(output.table(header, [tuple(map(_line, row)) for row in rows]))


def _line(cell: object) -> object:
    """A cell as one line: texts of a database may be of any form."""
    if not isinstance(cell, str):
        return cell
    return printable(cell)


def _spread(samples: Sequence[float]) -> str:
    """How many samples there are, and from where to where they reach."""
    if not samples:
        return ""
    return f"{len(samples)}, {min(samples) * 1e6:.3f} to {max(samples) * 1e6:.3f} us"


def in_us(seconds: float | None) -> float | None:
    """A latency in the unit of JSON objects."""
    return None if seconds is None else seconds * 1e6


def microseconds(seconds: float | None) -> str:
    """Seconds as a cell of microseconds; "" for none."""
    return "" if seconds is None else f"{seconds * 1e6:.2f}"


def times(gain: float | None) -> str:
    """A gain as a cell; "" for none."""
    return "" if gain is None else f"{gain:.2f}"


def number(value: float | None) -> str:
    """A number as a cell, three digits of it; "" for none."""
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={item}" for name, item in value.items())
    return str(value)
