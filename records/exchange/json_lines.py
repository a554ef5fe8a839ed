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
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, cast, get_args

from sqlalchemy import Connection

from tilesmith.records.exchange.lines import FORMAT, VERSION
from tilesmith.records.exchange.parallel import in_order
from tilesmith.records.trials.incoming import Conflict, Incoming, SeriesKey
from tilesmith.records.trials.record import config_digest
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.records.trials.writing import BATCH, Writer, samples_text, storable
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import STATUSES, MeasuredBy
from tilesmith.search_space.support.errors import DatabaseError, TilesmithError

_SUBJECT = ("workload", "target", "threads", "measured_by", "input_layout", "output_layout")
_SERIES = (*_SUBJECT, "calibration")
_OUTCOME = ("config", "status", "latency_s", "samples", "warm_samples", "message", "bound")
_KNOWN = {*_SERIES, *_OUTCOME, "toolchain", "elapsed_s", "host", "machine", "created_at"}
_VERSIONS = frozenset(f.name for f in fields(Toolchain))
_canonical = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


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
        line = _object(text)
        if not line.keys() <= _KNOWN:
            raise ValueError(f"has the unknown key '{min(line.keys() - _KNOWN)}'")
        status = _one_of(line, "status", STATUSES)
        samples = _samples(line, "samples")
        config = _config(line)
        values = {
            "config": config,
            "config_digest": config_digest(config),
            "status": status,
            "message": storable(_text(line, "message", "")),
            "latency_s": _latency(line, status, samples),
            "samples": samples_text(samples),
            "warm_samples": samples_text(_samples(line, "warm_samples")),
            "bound": _text(line, "bound", ""),
            "elapsed_s": _number(line.get("elapsed_s", 0.0), "elapsed_s"),
            "job_id": None,
            "host": _text(line, "host", ""),
            "created_at": self._time(line),
            "machine": _text(line, "machine", "") or None,
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
                _text(line, "workload"),
                _text(line, "target"),
                _threads(line),
                cast(MeasuredBy, _one_of(line, "measured_by", get_args(MeasuredBy))),
                _text(line, "input_layout", ""),
                _text(line, "output_layout", ""),
                _toolchain(toolchain),
                _text(line, "calibration", ""),
            )
        return self._series.setdefault(seen, key)

    def _time(self, line: dict[str, Any]) -> datetime:
        if "created_at" not in line:
            return self._now
        said = _text(line, "created_at")
        try:
            moment = datetime.fromisoformat(said)
        except ValueError as error:
            raise ValueError(
                f"'created_at' is {said!r}, not a time such as 2026-01-31T12:00:00+00:00"
            ) from error
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _toolchain(given: dict[str, Any]) -> Toolchain:
    if given.keys() - _VERSIONS or not all(isinstance(value, str) for value in given.values()):
        raise ValueError(f"'toolchain' names {', '.join(sorted(_VERSIONS))}, as texts")
    return Toolchain(**given)


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
            bad.append((number, _reason(error)))
    return trials, bad


def report(writer: Writer, bad: Iterable[tuple[int, str]] = (), origin: str = "") -> ImportReport:
    """What a writer did with what came from `origin`, as a value."""
    tally = writer.tallies[origin]
    return ImportReport(
        tally.added, tally.duplicates, tally.conflict_count, tuple(tally.conflicts), tuple(bad)
    )


def _read_header(writer: Writer, line: str, name: str) -> None:
    try:
        header = _object(line)
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


def _reason(error: ValueError) -> str:
    return str(error) if not isinstance(error, json.JSONDecodeError) else "is not JSON"


def _object(text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(line, dict):
        raise ValueError("is not a JSON object")
    if "\\u" in text:  # only escapes write what no database takes as a text
        _check_storable({name: value for name, value in line.items() if name != "message"})
    return line


def _check_storable(line: dict[str, Any]) -> None:
    written = json.dumps(line, ensure_ascii=False)
    if "\\u0000" in written or any("\ud800" <= character <= "\udfff" for character in written):
        raise ValueError("holds a text with a NUL or half a character (\\u0000, \\ud800)")


_LARGEST = sys.float_info.max


def _text(line: dict[str, Any], name: str, default: str | None = None) -> str:
    value = line.get(name, default)
    if value is None:
        raise ValueError(f"has no '{name}'")
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise ValueError(f"'{name}' is {value!r}, not a text")
    return value


def _one_of(line: dict[str, Any], name: str, allowed: Iterable[str]) -> str:
    value = _text(line, name)
    if value not in allowed:
        raise ValueError(f"'{name}' is '{value}'; one of {', '.join(allowed)} is expected")
    return value


def _threads(line: dict[str, Any]) -> int:
    value = line.get("threads", 1)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 31:
        raise ValueError(f"'threads' is {value!r:.40}, not a positive integer (of 32 bits)")
    return value


def _number(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError(f"'{name}' holds {value!r:.40}, not a number of seconds")
    return float(value)


def _samples(line: dict[str, Any], name: str) -> list[float]:
    values = line.get(name, [])
    if not isinstance(values, list):
        raise ValueError(f"'{name}' is not a list")
    plain = set(map(type, values)) <= {float} and all(map(math.isfinite, values))
    if plain and min(values, default=0.0) >= 0:  # the usual case, at the speed of C
        return values
    return [_number(value, name) for value in values]


def _latency(line: dict[str, Any], status: str, samples: list[float]) -> float | None:
    """The median, more than 0; fills in the only sample where just the latency is given."""
    given = line.get("latency_s")
    if status != "ok":
        if given is not None:
            raise ValueError(f"has a latency, but its status is '{status}'")
        return None
    if given is None and not samples:
        raise ValueError("is ok, but has neither 'latency_s' nor 'samples'")
    if not samples:
        samples.append(_number(given, "latency_s"))
    middle = samples[0] if len(samples) == 1 else median(samples)
    if given is not None and not math.isclose(_number(given, "latency_s"), middle, rel_tol=1e-9):
        raise ValueError(f"'latency_s' is {given!r}, the median of its samples {middle!r}")
    if middle <= 0:
        raise ValueError("is ok, but took 0 s: a clock that is too coarse tells no latency")
    return middle


def _config(line: dict[str, Any]) -> str:
    """The canonical key of the configuration."""
    config = line.get("config")
    if not isinstance(config, dict):
        raise ValueError("has no 'config', or one that is not an object")
    for name, value in config.items():
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise ValueError(f"knob '{name}' of its 'config' is neither integer nor text")
    return _canonical(config)
