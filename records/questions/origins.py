"""How the bests of a database were found: what was tried for each is counted, `Origin` names it."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, bindparam, select

from tilesmith.records.questions.bests import Scope, candidates
from tilesmith.records.schema.models import SERIES, TRIALS
from tilesmith.records.trials.reading import first_of_each_series
from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.results.origin import SEARCH, Origin, origin_of
from tilesmith.search_space.support.errors import TilesmithError

if TYPE_CHECKING:
    from tilesmith.records.trials.record import Best
    from tilesmith.search_space.hardware.target import Target

_AT_ONCE = 1000  # servers limit the number of parameters of a statement


class Searched(NamedTuple):
    """What a search is of: workload's key, target's identity, threads, way of measuring."""

    workload: str
    target: str
    threads: int
    measured_by: MeasuredBy

    @classmethod
    def of(cls, best: "Best") -> "Searched":
        """What a best is the best of."""
        record = best.record
        way = record.result.measured_by
        return cls(record.workload_key, record.target_identity, record.threads, way)


def is_whole_space(workload: str, target: "Target | None", tried: int) -> bool:
    """Whether `tried` configurations are the workload's whole space; False if that is unknown."""
    from tilesmith.codegen.programs.structures import space_of
    from tilesmith.search_space.workloads.workload import Workload

    if target is None:
        return False
    try:
        return tried >= space_of(Workload.parse(workload), target).size
    except TilesmithError:  # an operator or a target of another installation
        return False


def tried_of(
    connection: Connection, subjects: Iterable[Searched], toolchain: Toolchain
) -> dict[Searched, int]:
    """How many configurations were tried of each, counted no further than tells a search."""
    wanted = set(subjects)
    keys = sorted({subject.workload for subject in wanted})
    series: dict[int, Searched] = {}
    for start in range(0, len(keys), _AT_ONCE):
        scope = Scope(keys[start : start + _AT_ONCE])
        members = candidates(connection, scope, toolchain, None, sought=False)
        series |= {c.series: Searched(*c.subject) for c in members if c.subject in wanted}
    digests: dict[Searched, set[str]] = {subject: set() for subject in wanted}
    trial = TRIALS.alias()
    some_of_each = (
        select(trial.c.id)
        .where(trial.c.series_id == SERIES.c.id, trial.c.latest)
        .order_by(trial.c.config_digest)
        .limit(SEARCH + 1)
        .correlate(SERIES)
    )
    rows = first_of_each_series(connection.dialect.name, some_of_each, trial)
    rows = rows.where(SERIES.c.id.in_(bindparam("series", expanding=True)))
    numbers = sorted(series)
    for start in range(0, len(numbers), _AT_ONCE):
        asked = {"series": numbers[start : start + _AT_ONCE]}
        for number, *_, digest in connection.execute(rows, asked):
            digests[series[number]].add(digest)
    return {subject: len(configs) for subject, configs in digests.items()}


def origins(
    bests: "Sequence[Best]", tried: dict[Searched, int], facts: "Callable[[str], Target | None]"
) -> list[Origin]:
    """How each best was found.

    Args:
        tried: as `tried_of` counts.
        facts: gives a target by its identity; asked only where a space may have been tried whole.
    """
    of_bests = []
    for best in bests:
        subject = Searched.of(best)

        def is_all(count: int, subject: Searched = subject) -> bool:
            return is_whole_space(subject.workload, facts(subject.target), count)

        of_bests.append(origin_of(tried.get(subject, 0), is_all, best.stale))
    return of_bests
