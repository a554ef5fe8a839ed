"""Export and import as JSON Lines, a format of its own version, apart from the schema's.

The first line is a header; every other line one trial:

    {"format": "tilesmith-records", "version": 1, "targets": {"trn1-1f0c2a9b": {...}}}
    {"workload": "matmul m=8 n=8 k=8", "target": "trn1-1f0c2a9b", "threads": 1, "config": {...},
     "status": "ok", "latency_s": 1e-05, "samples": [1e-05], "measured_by": "simulator", ...}

A trial needs `workload`, `target`, `config`, `status`, `measured_by` and, if it is ok, `latency_s`
or `samples`; the rest may be left out. Lines are sorted by what they speak of, never by time, so
that the same search on a simulator exports the same text but for `host`, `created_at` and
`elapsed_s`.

Invariant: an import is one transaction: all good lines or none.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, cast, get_args

from sqlalchemy import Connection

from tilesmith.records.exchange import fields
from tilesmith.records.exchange.lines import FORMAT, VERSION
from tilesmith.records.exchange.parallel import in_order
from tilesmith.records.trials.incoming import Conflict, Incoming, SeriesKey
from tilesmith.records.trials.record import config_digest
from tilesmith.records.trials.writing import BATCH, Writer, samples_text, storable
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import STATUSES, MeasuredBy
from tilesmith.search_space.support.errors import DatabaseError, TilesmithError
from tilesmith.search_space.workloads.workload import canonical_key

_SUBJECT = ("workload", "target", "threads", "measured_by", "input_layout", "output_layout")
_SERIES = (*_SUBJECT, "calibration")
_OUTCOME = ("config", "status", "latency_s", "samples", "warm_samples", "message", "bound")
_KNOWN = {*_SERIES, *_OUTCOME, "toolchain", "elapsed_s", "host", "machine", "created_at"}


@dataclass(frozen=True)
class ImportReport:
    """What an import or a merge did.

    Attributes:
        added: trials written.
        duplicates: trials that were there already.
        conflict_count: trials that contradict one that was there; both are kept.
        conflicts: the first thousand of them.
        bad_lines: line number and reason of each line left out.
        stale: trials read in a merge that are of other versions than the installed ones.
    """

    added: int
    duplicates: int
    conflict_count: int = 0
    conflicts: tuple[Conflict, ...] = ()
    bad_lines: tuple[tuple[int, str], ...] = ()
    stale: int = 0


class _Reader:
    """Reads lines; a series that was met before is not checked anew."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._series: dict[tuple[Any, ...], SeriesKey] = {}

    def trial(self, text: str) -> Incoming:
        """One line as a trial on its way in; `ValueError` says what is wrong with it."""
        line = fields.object_in(text)
        if not line.keys() <= _KNOWN:
            raise ValueError(f"has the unknown key '{min(line.keys() - _KNOWN)}'")
        status = fields.one_of(line, "status", STATUSES)
        samples = fields.samples_of(line, "samples")
        config = fields.config_of(line)
        values = {
            "config": config,
            "config_digest": config_digest(config),
            "status": status,
            "message": storable(fields.text_of(line, "message", "")),
            "latency_s": fields.latency_of(line, status, samples),
            "samples": samples_text(samples),
            "warm_samples": samples_text(fields.samples_of(line, "warm_samples")),
            "bound": fields.text_of(line, "bound", ""),
            "elapsed_s": fields.number_of(line.get("elapsed_s", 0.0), "elapsed_s"),
            "job_id": None,
            "host": fields.text_of(line, "host", ""),
            "created_at": self._time(line),
            "machine": fields.text_of(line, "machine", "") or None,
        }
        return Incoming(self._series_of(line), values)

    def _series_of(self, line: dict[str, Any]) -> SeriesKey:
        toolchain = line.get("toolchain", {})
        if not isinstance(toolchain, dict):
            raise ValueError("'toolchain' is not an object")
        seen = (*map(line.get, _SERIES), *toolchain.items())
        try:
            return self._series[seen]
        except (KeyError, TypeError):  # new, or with a list where a text belongs
            key = SeriesKey(
                canonical_key(fields.text_of(line, "workload")),
                fields.text_of(line, "target"),
                fields.threads_of(line),
                cast(MeasuredBy, fields.one_of(line, "measured_by", get_args(MeasuredBy))),
                fields.text_of(line, "input_layout", ""),
                fields.text_of(line, "output_layout", ""),
                fields.toolchain_of(toolchain),
                fields.text_of(line, "calibration", ""),
            )
        return self._series.setdefault(seen, key)

    def _time(self, line: dict[str, Any]) -> datetime:
        if "created_at" not in line:
            return self._now
        said = fields.text_of(line, "created_at")
        try:
            moment = datetime.fromisoformat(said)
        except ValueError as error:
            raise ValueError(
                f"'created_at' is {said!r}, not a time such as 2026-01-31T12:00:00+00:00"
            ) from error
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def import_lines(
    connection: Connection,
    lines: Iterable[str],
    name: str,
    skip_bad: bool,
    processes: int = 1,
) -> ImportReport:
    """Write the trials of an export on an open write transaction.

    Args:
        name: how messages call the source.
        skip_bad: leave bad lines out and report them, instead of refusing the whole.
        processes: how many read lines; this one writes them, in their order.

    Raises:
        DatabaseError: not an export, of a newer format, or with a bad line.
    """
    writer = Writer(connection)
    bad: list[tuple[int, str]] = []
    numbered = iter(enumerate(lines, start=1))
    _read_header(writer, next(numbered, (1, ""))[1], name)
    chunks = iter(lambda: list(islice(numbered, BATCH)), [])
    for batch in in_order(partial(_read_lines, datetime.now(UTC)), chunks, processes):
        for number, reason in batch[1]:
            if not skip_bad:
                raise DatabaseError(
                    f"line {number} of '{name}' {reason}; nothing was imported "
                    "(--skip-bad imports the other lines)"
                )
            bad.append((number, reason))
        writer.insert(batch[0], deduplicate=True)
    return report(writer, bad)


def _read_lines(
    now: datetime, lines: Sequence[tuple[int, str]]
) -> tuple[list[Incoming], list[tuple[int, str]]]:
    """The trials of numbered lines, and the reasons of those that are none."""
    reader = _Reader(now)
    trials: list[Incoming] = []
    bad: list[tuple[int, str]] = []
    for number, line in lines:
        try:
            if line.strip():
                trials.append(reader.trial(line))
        except ValueError as error:
            bad.append((number, fields.reason_of(error)))
    return trials, bad


def report(writer: Writer, bad: Iterable[tuple[int, str]] = (), origin: str = "") -> ImportReport:
    """What a writer did with what came from `origin`, as a value."""
    tally = writer.tallies[origin]
    return ImportReport(
        tally.added, tally.duplicates, tally.conflict_count, tuple(tally.conflicts), tuple(bad)
    )


def _read_header(writer: Writer, line: str, name: str) -> None:
    try:
        header = fields.object_in(line)
    except ValueError:
        header = {}
    if header.get("format") != FORMAT:
        raise DatabaseError(
            f"'{name}' is not an export of tuning records: its first line is not a header with "
            f'"format": "{FORMAT}"'
        )
    version = header.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise DatabaseError(
            f"'{name}' has version {version!r} of the format and this Tilesmith reads up to "
            f"{VERSION}; upgrade with 'pip install -U tilesmith'"
        )
    targets = header.get("targets", {})
    for identity, facts in targets.items() if isinstance(targets, dict) else ():
        try:
            target = Target.from_json(json.dumps(facts))
        except (TilesmithError, KeyError, TypeError, AttributeError) as error:
            raise DatabaseError(f"the header of '{name}' describes '{identity}' wrongly") from error
        if target.identity == identity:  # else facts of an older meaning: keys stay, facts do not
            writer.target_id(target)
