"""A search space, looked at: its knobs and size, its limits, how latencies spread, what matters.

    report = ts.space("matmul m=512 n=512 k=512", target="trn1", database="tuning.db")

Limits are seen on combinations drawn from each algorithm's full product, latencies on legal
configurations drawn uniformly and judged by the simulator. Importance is by permutation (Breiman,
"Random Forests", 2001): a forest learns the logarithm of latency from two thirds of the
configurations, and a knob counts by how much of the rest it no longer explains when that knob's
column is shuffled. It is learnt from the database's trials where there are enough of them, else
from the judged sample.

Invariant: deterministic in the seed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.jobs.databases import BY_DEFAULT, Named, here
from tilesmith.jobs.inspection.measuring import known_best, only_workload
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.requests.request import Asked, Request, Resolved
from tilesmith.jobs.subjects.targets import check_schedulable
from tilesmith.search_space.hardware.target import HOST, Target
from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import ConfigError, InputError
from tilesmith.search_space.support.json_object import JsonObject, object_of
from tilesmith.search_space.workloads.workload import Workload

Floats = NDArray[np.float64]

ENOUGH_RECORDS = 60
"""Trials with latencies from which importance is learnt; fewer say nothing of so many knobs."""

QUANTILES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
BINS = 12
_DRAWN_FOR_LIMITS = 4096


@dataclass(frozen=True)
class KnobReport:
    """A knob: its values, and of how many algorithms it is."""

    name: str
    values: tuple[KnobValue, ...]
    algorithms: int


@dataclass(frozen=True)
class LimitReport:
    """A limit, in words; the share of all combinations drawn that break it, and those that break
    no other."""

    meaning: str
    limit: int
    advice: str
    breaks: float
    alone: float


@dataclass(frozen=True)
class _Standing:
    """A configuration among those drawn: its judged latency, and the share that is slower."""

    name: str
    config: Config
    latency_us: float | None
    faster_than: float | None


@dataclass(frozen=True)
class SpaceReport(
    JsonObject,
    keys="workload target size combinations legal algorithms knobs:_knobs limits judged:_judged "
    "*_standings importance importance_from importance_count importance_explained:explained notes",
):
    """What `space` found.

    Attributes:
        size, combinations: configurations that are legal, and that there would be without limits.
        algorithms: values that subspaces share, in words.
        drawn, failures: configurations judged, and how many of them have no latency.
        quantiles: judged us, by share of the configurations that are faster.
        bins: of the histogram: (from us, to us, configurations), even steps of the logarithm.
        importance: by knob, adding up to one, most important first.
        importance_from: "records" or "judged sample"; `importance_count`: of how many.
        explained: share of the variance of unseen configurations that the forest explains (R2).
    """

    workload: str
    target: str
    size: int
    combinations: int
    algorithms: tuple[str, ...]
    knobs: tuple[KnobReport, ...]
    limits: tuple[LimitReport, ...]
    drawn: int
    failures: int
    quantiles: Mapping[float, float]
    bins: tuple[tuple[float, float, int], ...]
    standings: tuple[_Standing, ...]
    importance: Mapping[str, float]
    importance_from: str
    importance_count: int
    explained: float
    notes: tuple[str, ...]

    @property
    def legal(self) -> float:
        """Share of the combinations that are legal."""
        return self.size / self.combinations if self.combinations else 0.0

    @property
    def _knobs(self) -> dict[str, Any]:
        return {knob.name: object_of(knob, "values algorithms") for knob in self.knobs}

    @property
    def _judged(self) -> dict[str, Any]:
        return {
            **object_of(self, "drawn failures"),
            "quantiles_us": {f"{q:g}": us for q, us in self.quantiles.items()},
            "histogram": [{"from_us": a, "to_us": b, "count": n} for a, b, n in self.bins],
        }

    @property
    def _standings(self) -> dict[str, Any]:
        return {one.name: object_of(one, "config latency_us faster_than") for one in self.standings}


@takes(Asked)
def space(
    operator: str | Workload,
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    *,
    samples: int = 1000,
    seed: int = 0,
    **asked: Unpack[Asked],
) -> SpaceReport:
    """Knobs, limits, spread of latencies and importance of knobs of an operator's search space.

    Args:
        operator: as `--op` takes it.
        samples: configurations to draw and judge; a space of no more is judged whole.
        asked: `threads`, `settings`, as `tune`.

    Raises:
        InputError: operator, target or database are wrong; the target's family has no simulator.
        ConfigError: no configuration is legal.
    """
    workload = Workload.parse(operator) if isinstance(operator, str) else operator
    return analysed(Request(workload, target, here(database), **asked), samples, seed)


def analysed(request: Request, samples: int, seed: int) -> SpaceReport:
    """See `space`; of a request for one operator."""
    from tilesmith.simulator import judge

    if samples < 2:
        raise InputError(f"{samples} samples show no distribution; take 2 or more")
    asked = request.resolved(calibrate=True)
    workload = only_workload(asked)
    check_schedulable([workload], asked.target)
    space, rng = space_of(workload, asked.target), np.random.default_rng(seed)
    drawn = list(space) if space.size <= samples else space.sample(rng, samples)
    latency = judge(workload, asked.target, drawn).latency * 1e6
    able = np.flatnonzero(np.isfinite(latency)).tolist()
    if not able:
        raise ConfigError(
            f"none of {len(drawn)} configurations drawn of '{workload}' can be judged"
        )
    judged = [drawn[i] for i in able], latency[able]
    standings, notes = _standings(workload, asked, *judged)
    source, (configs, values) = _learnt_from(workload, asked, judged)
    importance, explained = _importance(space, configs, values, seed)
    algorithms = [" ".join(f"{n}={v}" for n, v in s.fixed) for s in space.subspaces]
    return SpaceReport(
        str(workload), asked.target.name, space.size,
        sum(s.cardinality for s in space.subspaces), tuple(algorithms), tuple(_knobs(space)),
        tuple(_limits(space, rng)), len(drawn), len(drawn) - len(able),
        {q: float(np.quantile(judged[1], q)) for q in QUANTILES}, tuple(_bins(judged[1])),
        standings, importance, source, len(configs), explained, tuple(notes),
    )  # fmt: skip


def _knobs(space: SearchSpace) -> list[KnobReport]:
    def holds(name: str) -> int:
        return sum(
            any(name == n for n, _ in s.fixed) or any(name == k.name for k in s.knobs)
            for s in space.subspaces
        )

    described = space.describe()
    return [
        KnobReport(name, tuple(dict.fromkeys(values)), holds(name))
        for name, values in described.items()
    ]


def _limits(space: SearchSpace, rng: np.random.Generator) -> list[LimitReport]:
    """Every limit, and which share of the combinations it refuses, most first."""
    whole = sum(s.cardinality for s in space.subspaces)
    breaks: dict[tuple[str, int, str], float] = {}
    alone: dict[tuple[str, int, str], float] = {}
    for subspace in space.subspaces:
        rows = rng.integers(0, subspace.radices, size=(_DRAWN_FOR_LIMITS, len(subspace.knobs)))
        tiles = subspace.tiles(rows)
        broken = [
            np.broadcast_to(c.value.evaluate(tiles) > c.limit, (len(rows),))
            for c in subspace.constraints
        ]
        count = np.sum(broken, axis=0)
        for constraint, bad in zip(subspace.constraints, broken, strict=True):
            key = constraint.meaning, constraint.limit, constraint.advice
            share = subspace.cardinality / whole
            breaks[key] = breaks.get(key, 0.0) + share * float(bad.mean())
            alone[key] = alone.get(key, 0.0) + share * float((bad & (count == 1)).mean())
    return [
        LimitReport(*key, share, alone[key])
        for key, share in sorted(breaks.items(), key=lambda item: -item[1])
    ]


def _bins(latency: Floats) -> list[tuple[float, float, int]]:
    low, high = math.log(float(latency.min())), math.log(float(latency.max()))
    if high - low < 1e-6:
        return [(float(latency.min()), float(latency.max()), len(latency))]
    counts, edges = np.histogram(np.log(latency), BINS, (low, high))
    bounds = np.exp(edges)
    return [
        (float(a), float(b), int(n))
        for a, b, n in zip(bounds[:-1], bounds[1:], counts, strict=True)
    ]


def _standings(
    workload: Workload, asked: Resolved, configs: Sequence[Config], latency: Floats
) -> tuple[tuple[_Standing, ...], list[str]]:
    """The default, the best of the database and the best drawn, among those drawn."""
    from tilesmith.simulator import judge

    default = default_of(workload, asked.target)
    best, best_is, notes = known_best(workload, asked)
    wanted = {"default": default}
    if best_is.startswith("best"):
        wanted["best"] = best
        notes.insert(0, f"best: {best_is}, here as the simulator judges it")
    wanted["best_drawn"] = configs[int(np.argmin(latency))]
    judged = judge(workload, asked.target, list(wanted.values())).latency * 1e6
    standings = []
    for (name, config), us in zip(wanted.items(), judged.tolist(), strict=True):
        able = math.isfinite(us)
        share = float((latency > us * (1 + 1e-9)).mean()) if able else None
        standings.append(_Standing(name, config, us if able else None, share))
    return tuple(standings), notes


def _learnt_from(
    workload: Workload, asked: Resolved, judged: tuple[list[Config], Floats]
) -> tuple[str, tuple[list[Config], Floats]]:
    """Where importance is learnt from: records where there are enough, hardware's if so."""
    if asked.database is None:
        return "judged sample", judged
    from tilesmith.records.database import Database
    from tilesmith.records.questions.queries import Filter

    with Database.open(asked.database, create=False) as opened:
        for label in ("hardware", "simulator"):
            where = Filter(
                workload.key, target=asked.target.identity, threads=asked.threads,
                measured_by=label, status="ok", latest=True,
            )  # fmt: skip
            records = opened.query(where, sort="oldest", limit=None)
            latencies = {
                record.config: record.latency * 1e6
                for record in records
                if record.workload_key == workload.key and record.latency
            }
            if len(latencies) >= ENOUGH_RECORDS:
                return f"records ({label})", (list(latencies), np.array(list(latencies.values())))
    return "judged sample", judged


def _importance(
    space: SearchSpace, configs: Sequence[Config], latency: Floats, seed: int
) -> tuple[dict[str, float], float]:
    """Shares by knob, and what the forest explains; none where nothing can be learnt."""
    names = [n for n in space.describe() if len({config.get(n) for config in configs}) > 1]
    if not names or len(configs) < 12:
        return {}, 0.0
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    table = np.array([_encoded(space, names, config) for config in configs])
    wanted = np.log(latency)
    order = np.random.default_rng(seed).permutation(len(configs))
    test, train = order[: len(order) // 3], order[len(order) // 3 :]
    forest = RandomForestRegressor(100, min_samples_leaf=2, random_state=seed)
    forest.fit(table[train], wanted[train])
    explained = float(forest.score(table[test], wanted[test]))
    importance = permutation_importance(
        forest, table[test], wanted[test], n_repeats=5, random_state=seed
    ).importances_mean
    shares = np.maximum(importance, 0.0)
    if not shares.sum() > 0:
        return {}, explained
    ranked = sorted(zip(shares / shares.sum(), names, strict=True), reverse=True)
    return {name: float(share) for share, name in ranked}, explained


def _encoded(space: SearchSpace, names: Sequence[str], config: Config) -> list[float]:
    """Numbers of a configuration: a knob's own where it is a number, else its place in the list;
    -1 where the algorithm has no such knob."""
    values = space.describe()
    row = []
    for name in names:
        value = config.get(name)
        if value is None:
            row.append(-1.0)
        elif isinstance(value, int):
            row.append(float(value))
        else:
            row.append(float(values[name].index(value)) if value in values[name] else -1.0)
    return row
