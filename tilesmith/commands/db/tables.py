"""How records are shown: as JSON-able dictionaries for scripts, as tables for people, as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from io import StringIO
from typing import TYPE_CHECKING, Any

import click

from tilesmith.search_space.errors import TilesmithError

if TYPE_CHECKING:
    from tilesmith.records import Best, TuningRecord
    from tilesmith.records.exchange import ImportReport
    from tilesmith.records.maintenance import Drift
    from tilesmith.records.standing import Difference

_WIDE = 10_000  # columns off a terminal: a pipe or a file gets every row in one line


def record_values(record: TuningRecord) -> dict[str, Any]:
    """A record as plain data, under the names of the JSON Lines export."""
    result = record.result
    return {
        "id": record.id,
        "workload": record.workload_key,
        "target": record.target_identity,
        "threads": record.threads,
        "measured_by": result.measured_by,
        "input_layout": record.input_layout,
        "output_layout": record.output_layout,
        "config": dict(record.config),
        "status": result.status,
        "latency_s": result.latency,
        "gflops": gflops(record),
        "samples": list(result.samples),
        "warm_samples": list(result.warm_samples),
        "message": result.message,
        "bound": result.bound,
        "elapsed_s": result.elapsed,
        "job": record.job,
        "host": record.host,
        "machine": result.machine,
        "created_at": record.created_at.isoformat() if record.created_at else None,
        "calibration": record.calibration,
        "toolchain": record.toolchain.to_dict() if record.toolchain else {},
    }


def best_values(best: Best) -> dict[str, Any]:
    """A best record as plain data."""
    return {
        **record_values(best.record),
        "stale": best.stale,
        "stale_because": list(best.stale_because),
    }


def gflops(record: TuningRecord) -> float | None:
    """Direct-form operations per second in 1e9; None for failures and for unknown operators."""
    if record.latency is None:
        return None
    from tilesmith.search_space.template import template_of

    try:
        workload = record.workload
        return template_of(workload.operator).flops(workload) / record.latency / 1e9
    except TilesmithError:  # written by an installation that knows more operators
        return None


def records_table(records: Sequence[TuningRecord], stale: Sequence[bool] = ()) -> None:
    """Print records, one a line."""
    rows = [
        (
            record.id,
            record.workload_key,
            record.target_identity,
            record.threads,
            _microseconds(record.latency),
            _number(gflops(record)),
            record.result.measured_by + (" (stale)" if index < len(stale) and stale[index] else ""),
            record.result.status,
            str(record.config) if record.result.ok else record.result.message.partition("\n")[0],
        )
        for index, record in enumerate(records)
    ]
    header = "id|workload|target|threads|us|GFLOP/s|measured by|status|configuration or message"
    table(header.split("|"), rows, right={0, 3, 4, 5})


def record_page(record: TuningRecord) -> None:
    """Print everything about one record."""
    values = record_values(record)
    for name in ("samples", "warm_samples"):
        values[name] = _spread(values[name])
    rows = [(name, _plain(value)) for name, value in values.items() if value not in (None, "")]
    table(("column", "value"), rows)


def records_csv(records: Iterable[TuningRecord]) -> str:
    """Records as CSV with a header; configuration and samples are JSON texts."""
    from tilesmith.records.writing import samples_text

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


def differences_table(differences: Sequence[Difference]) -> None:
    """Print what two databases hold best."""
    rows = [
        (
            difference.workload,
            difference.target,
            difference.threads,
            _microseconds(difference.ours.latency if difference.ours else None),
            _microseconds(difference.theirs.latency if difference.theirs else None),
            _number(difference.ratio),
            "" if difference.comparable or difference.ratio is None else "measured differently",
        )
        for difference in differences
    ]
    header = "workload|target|threads|first us|second us|second / first|remark"
    table(header.split("|"), rows, right={2, 3, 4, 5})


def drift_values(drift: Drift, tolerance: float) -> dict[str, Any]:
    """A record measured again, for JSON."""
    return {
        "recorded": best_values(drift.best),
        "now": record_values(drift.now),
        "ratio": drift.ratio,
        "drifted": drift.exceeds(tolerance),
    }


def drifts_table(drifts: Sequence[Drift], tolerance: float) -> None:
    """Print best records measured again."""
    rows = [
        (
            drift.best.record.id,
            drift.best.record.workload_key,
            _microseconds(drift.best.latency),
            _microseconds(drift.now.latency) or drift.now.result.status,
            _number(drift.ratio),
            "drifted" if drift.exceeds(tolerance) else "holds",
            "; ".join(drift.best.stale_because),
        )
        for drift in drifts
    ]
    header = "id|workload|recorded us|now us|now / recorded|verdict|stale because"
    table(header.split("|"), rows, right={0, 2, 3, 4})


def report_values(report: ImportReport) -> dict[str, Any]:
    """What an import or a merge did, as plain data."""
    return {
        "added": report.added,
        "duplicates": report.duplicates,
        "conflict_count": report.conflict_count,
        "stale": report.stale,
        "conflicts": [asdict(conflict) for conflict in report.conflicts],
        "bad_lines": [{"line": number, "reason": reason} for number, reason in report.bad_lines],
    }


def report_text(report: ImportReport, shown: int = 20) -> None:
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
        table(("line", "left out because it"), report.bad_lines[:shown], right={0})


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], right: Iterable[int] = ()
) -> None:
    """Print a table on stdout; wrapped on a terminal, whole lines everywhere else."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, title in enumerate(header):
        to_right = number in set(right)
        grid.add_column(title, justify="right" if to_right else "left", no_wrap=to_right)
    for row in rows:
        grid.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console = Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE, highlight=False
    )
    console.print(grid)


def _spread(samples: Sequence[float]) -> str:
    """How many samples there are, and from where to where they reach."""
    if not samples:
        return ""
    return f"{len(samples)}, {min(samples) * 1e6:.3f} to {max(samples) * 1e6:.3f} us"


def _microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={item}" for name, item in value.items())
    return str(value)
