"""The best of a series, found along its index.

A best-of question takes three statements: the first lists the series in question with the lowest
latency of each (one index seek each; where many workloads are asked for, those of stale series only
if there is no fresh one); the second fetches, from the series that can win, the
near-ties of that latency; the third the rest of the winners. Near-ties fall to the lowest
configuration key, so that two machines with the same records choose the same schedule.

Order of preference: hardware before simulator (where both exist), fresh before stale (see
`records.trials.toolchain`), then latency. A stale trial does not count where the same
configuration has a fresh one, whatever came of that: the fresh one is the last word.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    RowMapping,
    ScalarSelect,
    and_,
    bindparam,
    case,
    exists,
    literal,
    select,
)

from tilesmith.records.schema.models import MACHINES, SERIES, TARGETS, TRIALS, WORKLOADS
from tilesmith.records.trials.incoming import SeriesKey
from tilesmith.records.trials.reading import (
    MACHINE,
    TRIAL_COLUMNS,
    Rows,
    first_of_each_series,
    select_series,
    to_record,
)
from tilesmith.records.trials.record import Best
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.search_space.results.measure import MeasuredBy

NEAR_TIE: dict[MeasuredBy, float] = {"hardware": 0.02, "simulator": 1e-6}
"""Relative difference of medians taken as equal: noise on hardware, rounding on simulators."""

NEAR_TIES_READ = 32
"""At most so many near-ties of a series are compared (the first by latency and digest)."""


UNSOUGHT = -1.0
"""In place of a latency that was not looked for yet."""

_SERIES_AT_ONCE = 10_000
_GROUPS_AT_ONCE = 1000  # servers limit the number of parameters of a statement


class Scope(NamedTuple):
    """Which series a best-of question is about; None means any.

    Attributes:
        workloads: canonical keys.
        target: identity.
        operator: name; to range over all workloads of an operator.
    """

    workloads: Sequence[str] | None = None
    target: str | None = None
    threads: int | None = None
    input_layout: str | None = None
    output_layout: str | None = None
    measured_by: MeasuredBy | None = None
    operator: str | None = None

    def asked(self) -> dict[str, Any]:
        """Return the conditions that are set, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class Candidate(NamedTuple):
    """A series in scope; `fastest` is None where no trial of it works."""

    series: int
    of: SeriesKey
    stale_because: tuple[str, ...]
    fastest: float | None

    @property
    def subject(self) -> tuple[str, str, int, MeasuredBy]:
        """What stays the same when versions and calibration change."""
        return self.of[:4]


Group = tuple[Any, ...]
"""What a best is wanted for, e.g. (workload, target, threads)."""


def candidates(
    connection: Connection,
    scope: Scope,
    current: Toolchain,
    calibration: str | None,
    *,
    sought: bool = True,
) -> list[Candidate]:
    """Every series in scope, with its lowest latency.

    Args:
        calibration: the target's present calibration digest; None leaves it unjudged.
        sought: whether the lowest latencies are looked for; else `fastest` is `UNSOUGHT`.
    """
    asked = scope.asked()
    judged: dict[tuple[Any, ...], tuple[Toolchain, tuple[str, ...]]] = {}
    series = []
    for row in connection.execute(_candidates(tuple(asked), sought), asked).all():
        by, calibrated = row[4], row[7]
        versions = (by, *row[7:-1])
        if versions not in judged:
            toolchain = Toolchain(*row[8:-1])
            because = toolchain.stale_because(current, by)
            if by == "simulator" and calibration is not None and calibrated != calibration:
                because = (*because, "the target was calibrated anew")
            judged[versions] = toolchain, because
        toolchain, because = judged[versions]
        key = SeriesKey._make((*row[1:7], toolchain, calibrated))
        series.append(Candidate(row[0], key, because, row[-1]))
    return series


@lru_cache
def _candidates(names: tuple[str, ...], sought: bool) -> Rows:
    """The statement behind `candidates`; built once, as building costs more than running it."""
    fastest = _fastest(SERIES.c.id) if sought else literal(UNSOUGHT)
    return select_series(fastest.label("fastest")).where(*in_scope(names))


def _seek(connection: Connection, members: Sequence[Candidate]) -> list[Candidate]:
    """Those that have a working trial, with the lowest latency."""
    unsought = [c.series for c in members if c.fastest == UNSOUGHT]
    fastest: dict[int, float | None] = {}
    for start in range(0, len(unsought), _SERIES_AT_ONCE):
        asked = {"series": unsought[start : start + _SERIES_AT_ONCE]}
        fastest |= {row[0]: row[1] for row in connection.execute(_SEEK, asked)}
    known = [c._replace(fastest=fastest.get(c.series, c.fastest)) for c in members]
    return [c for c in known if c.fastest is not None]


def pick(
    connection: Connection, offered: Sequence[Candidate], by: Sequence[str]
) -> dict[Group, Best]:
    """The best of each group of candidates; the fields `by` of their series tell groups apart."""
    groups = _grouped([c for c in offered if c.fastest is not None], by)
    fresh = [c for c in offered if not c.stale_because]
    winners: dict[Group, Best] = {}
    for level in range(4):
        open_groups = [members for group, members in groups.items() if group not in winners]
        believed = [c for members in open_groups for c in members if _level(c) == level]
        asked = list(_grouped(_seek(connection, believed), by).items())
        for start in range(0, len(asked), _GROUPS_AT_ONCE):
            part = dict(asked[start : start + _GROUPS_AT_ONCE])
            winners |= _winners(connection, part, _overruling(part, fresh) if level % 2 else [])
    return winners


def _grouped(members: Sequence[Candidate], by: Sequence[str]) -> dict[Group, list[Candidate]]:
    wanted = attrgetter("series", *(f"of.{name}" for name in by))
    groups: dict[Group, list[Candidate]] = {}
    for candidate in members:
        groups.setdefault(wanted(candidate)[1:], []).append(candidate)
    return groups


def _overruling(groups: dict[Group, list[Candidate]], fresh: list[Candidate]) -> list[int]:
    """Fresh series with the subject of a stale candidate: their word counts, not the old one."""
    subjects = {c.subject for members in groups.values() for c in members}
    return sorted(c.series for c in fresh if c.subject in subjects)


def _level(candidate: Candidate) -> int:
    """How little it is believed: 0 fresh hardware, 1 stale hardware, 2 and 3 the simulator's."""
    return 2 * (candidate.of.measured_by != "hardware") + bool(candidate.stale_because)


def _winners(
    connection: Connection, groups: dict[Group, list[Candidate]], overruling: list[int]
) -> dict[Group, Best]:
    """The lowest configuration key among the near-ties of each group.

    Args:
        overruling: series whose word on a configuration beats that of the candidates.
    """
    by_series = {
        c.series: (group, c)
        for group, members in groups.items()
        for c in (members if overruling else _near(members))
    }
    if not by_series:
        return {}
    rows: dict[Group, list[tuple[float, str, int]]] = {}
    asked: dict[str, Any] = {"series": sorted(by_series)}
    if overruling:
        asked["overruling"] = overruling
    statement = _near_ties(bool(overruling), connection.dialect.name)
    for series, number, latency, config, _ in connection.execute(statement, asked).all():
        rows.setdefault(by_series[series][0], []).append((latency, config, number))
    chosen: dict[int, Group] = {}
    for group, trials in rows.items():
        tolerance = NEAR_TIE[groups[group][0].of.measured_by]
        bound = min(trials)[0] * (1 + tolerance)
        chosen[
            min((config, latency, i) for latency, config, i in trials if latency <= bound)[2]
        ] = group
    winners = connection.execute(_TRIALS, {"numbers": sorted(chosen)}).mappings().all()
    return {chosen[row["id"]]: _best(row, by_series[row["series_id"]][1]) for row in winners}


_TRIALS = (
    select(TRIALS.c.series_id, MACHINE, *TRIAL_COLUMNS)
    .select_from(TRIALS)
    .outerjoin(MACHINES, MACHINES.c.id == TRIALS.c.machine_id)
    .where(TRIALS.c.id.in_(bindparam("numbers", expanding=True)))
)


def _best(row: RowMapping, candidate: Candidate) -> Best:
    return Best(to_record(row, candidate.of), candidate.stale_because)


def _near(members: Sequence[Candidate]) -> list[Candidate]:
    """Those that can win: the fastest of each other one is further off than a near-tie."""
    lowest = min(c.fastest for c in members if c.fastest is not None)
    bound = lowest * (1 + NEAR_TIE[members[0].of.measured_by])
    return [c for c in members if c.fastest is not None and c.fastest <= bound]


def _fastest(series: Any, more: Callable[[Any], list[Any]] = lambda trial: []) -> ScalarSelect[Any]:
    """Lowest latency of a series: one seek in `ix_trials_best`."""
    trial = TRIALS.alias()
    return (
        select(trial.c.latency_s)
        .where(trial.c.series_id == series, trial.c.latest, trial.c.latency_s.is_not(None))
        .where(*more(trial))
        .order_by(trial.c.latency_s)
        .limit(1)
        .correlate(SERIES)
        .scalar_subquery()
    )


_SEEK = select(SERIES.c.id, _fastest(SERIES.c.id)).where(
    SERIES.c.id.in_(bindparam("series", expanding=True))
)


@lru_cache
def _near_ties(overruled: bool, dialect: str) -> Rows:
    """Working trials of each series within the near-tie of its lowest latency.

    Parameters: `series`, and `overruling` if `overruled` ones are to be left out.
    """

    def conditions(trial: Any) -> list[Any]:
        return [~_overruled(trial)] if overruled else []

    tolerance = case(
        (SERIES.c.measured_by == "hardware", 1 + NEAR_TIE["hardware"]),
        else_=1 + NEAR_TIE["simulator"],
    )
    near = TRIALS.alias()
    ids = (
        select(near.c.id)
        .where(near.c.series_id == SERIES.c.id, near.c.latest, near.c.latency_s.is_not(None))
        .where(near.c.latency_s <= _fastest(SERIES.c.id, conditions) * tolerance)
        .where(*conditions(near))
        .order_by(near.c.latency_s, near.c.config_digest)
        .limit(NEAR_TIES_READ)
        .correlate(SERIES)
    )
    rows = first_of_each_series(dialect, ids, near)
    return rows.where(SERIES.c.id.in_(bindparam("series", expanding=True)))


def _overruled(trial: Any) -> Any:
    """Whether one of the series `overruling`, of the same subject, holds the same configuration."""
    other, its, theirs = TRIALS.alias(), SERIES.alias(), SERIES.alias()
    subject = ("workload_id", "target_id", "threads", "measured_by")
    return exists(
        select(other.c.id)
        .join(theirs, theirs.c.id == other.c.series_id)
        .join(its, and_(*(its.c[name] == theirs.c[name] for name in subject)))
        .where(
            other.c.config_digest == trial.c.config_digest,
            its.c.id == trial.c.series_id,
            theirs.c.id.in_(bindparam("overruling", expanding=True)),
        )
        .correlate(trial)
    )


def in_scope(names: Iterable[str]) -> list[Any]:
    """Conditions over joined workloads, targets and series; `Scope.asked` are the parameters."""
    columns = {
        "target": TARGETS.c.identity,
        "threads": SERIES.c.threads,
        "input_layout": SERIES.c.input_layout,
        "output_layout": SERIES.c.output_layout,
        "measured_by": SERIES.c.measured_by,
        "operator": WORKLOADS.c.operator,
    }
    return [
        WORKLOADS.c.key.in_(bindparam(name, expanding=True))
        if name == "workloads"
        else columns[name] == bindparam(name)
        for name in names
    ]
