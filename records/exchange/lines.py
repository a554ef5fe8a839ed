"""Trials as lines of the exchange format (`records.exchange`), and in the order they have there.

Invariant: what is there has one order on every server: by what it is of, then by configuration
(its bytes), then by time.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, select

from tilesmith.records.questions.queries import Filter, conditions
from tilesmith.records.schema.models import MACHINES, TARGETS, TRIALS
from tilesmith.records.trials.incoming import SeriesKey
from tilesmith.records.trials.reading import MACHINE, TRIAL_COLUMNS, select_series, to_series
from tilesmith.records.trials.writing import BATCH

FORMAT = "tilesmith-records"
VERSION = 1

_NUMBER, *_OTHERS = TRIAL_COLUMNS
_TRIAL_COLUMNS = (*_OTHERS, TRIALS.c.config_digest, TRIALS.c.latency_s, MACHINE)
"""Those of an incoming trial: its number is this database's own."""


def export_lines(connection: Connection, where: Filter) -> Iterator[str]:
    """The header and one line a trial, without line ends; see the module's docstring."""
    yield header(connection)
    yield from lines_of(connection, series_of(connection, where), where)


def header(connection: Connection) -> str:
    """The first line."""
    return json.dumps({"format": FORMAT, "version": VERSION, "targets": _targets(connection)})


def lines_of(
    connection: Connection,
    series: Iterable[tuple[SeriesKey, int]],
    where: Filter,
    until: int | None = None,
) -> Iterator[str]:
    """Yield one JSON line for each trial of these series whose number is at most `until`."""
    _, about_trials = conditions(where)
    if until is not None:
        about_trials.append(TRIALS.c.id <= until)
    for key, number in series:
        shared = {**key._asdict(), "toolchain": key.toolchain.to_dict()}
        start = _compact(shared)[:-1]
        for trial in _trials(connection, number, about_trials):
            yield _line(start, trial)


_compact = json.JSONEncoder(separators=(",", ":")).encode
_is_list = re.compile(r"\[[-+.,0-9e]*\]").fullmatch


def _line(start: str, trial: dict[str, Any]) -> str:
    """A line, of texts that are JSON already: what the database holds is written as it is."""
    latency = trial["latency_s"]
    machine = f'"machine":{_compact(trial["machine"])},' if trial["machine"] else ""
    return (
        f'{start},"config":{_checked(trial["config"])},"status":"{trial["status"]}",'
        f'"latency_s":{"null" if latency is None else repr(latency)},'
        f'"samples":{_list(trial["samples"])},"warm_samples":{_list(trial["warm_samples"])},'
        f'"message":{_compact(trial["message"])},"bound":{_compact(trial["bound"])},'
        f'"elapsed_s":{trial["elapsed_s"]!r},"host":{_compact(trial["host"])},{machine}'
        f'"created_at":"{trial["created_at"].isoformat()}"}}'
    )


def _list(text: str | bytes) -> str:
    return text if isinstance(text, str) and _is_list(text) else _compact(json.loads(text))


@lru_cache(maxsize=1 << 16)
def _checked(text: str) -> str:
    """A configuration as it is written; `JSONDecodeError` for bytes that nobody wrote."""
    return _compact(json.loads(text))


def stored(
    connection: Connection, where: Filter
) -> Iterator[tuple[SeriesKey, Iterator[dict[str, Any]]]]:
    """Every series that may hold trials of `where`, sorted, each with its trials, sorted.

    Trials are dictionaries of the columns of `trials`, as `Incoming.values`.
    """
    _, about_trials = conditions(where)
    for key, number in series_of(connection, where):
        yield key, _trials(connection, number, about_trials)


def series_of(connection: Connection, where: Filter) -> list[tuple[SeriesKey, int]]:
    """Every series that may hold trials of `where`, with its number, sorted."""
    about_series, _ = conditions(where)
    rows = connection.execute(select_series().where(*about_series)).mappings()
    numbered = [(to_series(row), int(row["series_id"])) for row in rows]
    return sorted(numbered, key=lambda item: series_order(item[0]))


def series_order(key: SeriesKey) -> tuple[Any, ...]:
    """Sorts series by what they are of, the same everywhere."""
    return (*key[:6], tuple(key.toolchain.to_dict().items()), key.calibration)


def _trials(connection: Connection, series: int, more: list[Any]) -> Iterator[dict[str, Any]]:
    query = (
        select(*_TRIAL_COLUMNS)
        .outerjoin(MACHINES, MACHINES.c.id == TRIALS.c.machine_id)
        .where(TRIALS.c.series_id == series, *more)
        .order_by(by_bytes(connection, TRIALS.c.config), TRIALS.c.created_at, TRIALS.c.id)
        .execution_options(yield_per=BATCH)
    )
    for row in connection.execute(query).mappings():
        yield dict(row)


def by_bytes(connection: Connection, column: Any) -> Any:
    """Return a text column that every server orders by its bytes, not by its own language."""
    return column.collate("C") if connection.dialect.name == "postgresql" else column


def _targets(connection: Connection) -> dict[str, Any]:
    rows = connection.execute(
        select(TARGETS.c.identity, TARGETS.c.facts).order_by(TARGETS.c.identity)
    )
    return {row.identity: json.loads(row.facts) for row in rows if row.facts}
