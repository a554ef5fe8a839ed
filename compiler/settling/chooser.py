"""Which schedule a workload is run with: the best recorded for each pair of layouts, or a stand-in.

Where this workload was never tuned with this many threads, the bests of other thread counts
compete with the default (`compiler.settling.parallel`), else those of the nearest tuned shape stand
in, else what a search on another machine found, where the family estimates that it beats the
default here, else the template's default; layouts nobody measured are offered as variants of the
best. What one thread was measured to do faster than all, one does.

Invariants: every schedule is legal in its workload's space; the seconds of measured schedules are
measurements, of all others estimates that never undercut a measurement on the same threads.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilesmith.codegen.programs.structures import default_of, inside_of, simulated, space_of
from tilesmith.compiler.backends.backend import backends
from tilesmith.compiler.backends.recorded import BestRecord, Records
from tilesmith.compiler.recipe.layouts import normal
from tilesmith.compiler.settling.parallel import ALL, Parallel, ScheduleCandidate
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

_DOUBT = 1.3
"""Factor on the seconds of a schedule derived from another's; squared for another algorithm's."""

_NEXT_BEST = 100
"""Records looked through for one that is legal when the best is not."""

_BYTES_PER_SECOND = 20e9
"""Of one core copying; an assumption that only unmeasured costs rest on."""

_ASSUMED_CLOCK = 3e9


@dataclass(frozen=True)
class KnownSchedule:
    """A configuration of a workload, what is known of it, and how many threads run it."""

    config: Config
    origin: Origin
    seconds: float
    threads: int = ALL


class ScheduleChooser:
    """Finds options; one for each compilation.

    Args:
        database: tuning records, or None.
        threads: how many threads the records have to be of.
        choices: configurations to use whatever the records say.
        measured_only: offer a tuned workload in no layouts but those it was measured in.
    """

    def __init__(
        self,
        target: Target,
        database: Records | None,
        threads: int,
        choices: Mapping[Workload, Config] | None = None,
        *,
        measured_only: bool = False,
    ) -> None:
        self.target = target
        self._choices = dict(choices or {})
        self.measured_only = measured_only
        self.threads = threads
        self.database = database
        self._parallel = Parallel(target, threads)
        self._known: dict[Workload, dict[tuple[str, str], KnownSchedule]] = {}
        self._origins: dict[int, Origin] = {}
        self._spaces: dict[Workload, SearchSpace] = {}
        self._simulated: set[Workload] = set()

    def preferring(self, changed: Mapping[Workload, Config]) -> "ScheduleChooser":
        """One that uses these, too, whatever the records say; its own choices come first."""
        if not changed:
            return self
        return self.with_choices({**changed, **self._choices})

    def with_choices(self, changed: Mapping[Workload, Config]) -> "ScheduleChooser":
        """One that uses these rather than its own choices of the same workloads."""
        return ScheduleChooser(
            self.target,
            self.database,
            self.threads,
            {**self._choices, **changed},
            measured_only=self.measured_only,
        )

    def prepare(self, workloads: Iterable[Workload]) -> None:
        """Look many workloads up at once (one query instead of one each)."""
        missing = [w for w in dict.fromkeys(workloads) if w not in self._known]
        bests: Mapping[str, Mapping[tuple[str, str], BestRecord]] = {}
        others: dict[str, Mapping[tuple[str, str], BestRecord]] = {}
        if self.database is not None and missing:
            bests = self.database.layout_bests(missing, self.target, self.threads)
            if self.threads > 1:
                others |= self.database.layout_bests(missing, self.target, 1)
            unknown = [w for w in missing if w.key not in bests and w.key not in others]
            if unknown:
                others |= self.database.layout_bests(unknown, self.target, None)
        known = [*bests.values(), *others.values()]
        self._look_up(best for pairs in known for best in pairs.values())
        for workload in missing:
            own = bests.get(workload.key, {})
            self._known[workload] = self._schedules(workload, own, others.get(workload.key, {}))

    def simulate(self, workloads: Iterable[Workload]) -> bool:
        """Estimate what nobody measured of these by simulation from now on, which takes some
        hundredths of a second each; False where that is done, or the family told at once."""
        asked = {
            workload
            for workload in set(workloads) - self._simulated
            if self.estimate_by_family(workload, default_of(workload, self.target)) is None
        }
        self._simulated |= asked
        for workload in asked:
            self._known.pop(workload, None)
        return bool(asked)

    def _look_up(self, bests: Iterable[BestRecord]) -> None:
        """How bests were found, all at once."""
        asked = list(bests)
        if self.database is not None and asked:
            origins = self.database.origins(asked)
            self._origins |= {id(best): origin for best, origin in zip(asked, origins, strict=True)}

    def schedules(self, workload: Workload) -> Mapping[tuple[str, str], KnownSchedule]:
        """The best schedule known for each (input, output) layout pair of a workload."""
        self.prepare([workload])
        return self._known[workload]

    def best(self, workload: Workload) -> KnownSchedule:
        """The fastest of them."""
        return min(self.schedules(workload).values(), key=lambda schedule: schedule.seconds)

    def space(self, workload: Workload) -> SearchSpace:
        if workload not in self._spaces:
            self._spaces[workload] = space_of(workload, self.target)
        return self._spaces[workload]

    def _schedules(
        self,
        workload: Workload,
        bests: Mapping[tuple[str, str], BestRecord],
        others: Mapping[tuple[str, str], BestRecord],
    ) -> dict[tuple[str, str], KnownSchedule]:
        """Of each layout pair; `others` are bests of other thread counts."""
        space = self.space(workload)
        schedules: dict[tuple[str, str], KnownSchedule] = {}
        if workload in self._choices:
            chosen = self._choices[workload]
            seconds = min((best.latency for best in bests.values()), default=0.0)
            origin = self._derived(workload, chosen)
            if bests:
                origin = self._origin(min(bests.values(), key=lambda best: best.latency))
            untuned = self._usual(workload, chosen) and not self.measured_only
            if untuned:
                seconds = self.estimate(workload, chosen)
            known = self._known_as(workload, chosen, origin, seconds)
            schedules[self.layouts(workload, chosen)] = known
            if untuned:  # in every layout it has, as in a model that was never tuned
                self._add_variants(workload, space, schedules)
            return schedules
        for best in bests.values():
            if best.record.config in space:
                config, origin = best.record.config, self._origin(best)
                known = self._known_as(workload, config, origin, best.latency)
                schedules[self.layouts(workload, config)] = known
        self._add_others(workload, space, schedules, others, bool(bests))
        if bests and not schedules:
            self._add_next_best(workload, space, schedules)
        if not schedules:
            schedule = self._untuned(workload, space)
            schedules[self.layouts(workload, schedule.config)] = schedule
        elif self.measured_only:
            return schedules
        self._add_variants(workload, space, schedules)
        return schedules

    def _add_others(
        self,
        workload: Workload,
        space: SearchSpace,
        schedules: dict[tuple[str, str], KnownSchedule],
        others: Mapping[tuple[str, str], BestRecord],
        tuned: bool,
    ) -> None:
        """Offer records of other thread counts; of a `tuned` workload those that fewer threads ran
        in less time than all."""
        for best in others.values():
            config, threads = best.record.config, best.record.threads
            if config not in space:
                continue
            candidates = [ScheduleCandidate(config, threads, best.latency, measured=True)]
            if not tuned:
                latency = best.latency
                candidates = self._parallel.candidates(workload, space, config, threads, latency)
                alone = ScheduleCandidate(config, threads, latency, measured=True)
                usual = self._usual_seconds(workload, threads)
                rival = self._parallel.usual(workload, alone, candidates[-1], usual)
                candidates += [rival] if rival is not None else []
            for one in candidates:
                origin = Origin.NEIGHBOUR
                if tuned:
                    origin = self._origin(best)
                elif one.config != config:
                    origin = self._derived(workload, one.config)
                pair = self.layouts(workload, one.config)
                known = schedules.get(pair)
                if known is None and tuned and self.measured_only:
                    continue
                if known is None or one.seconds <= known.seconds:
                    schedules[pair] = KnownSchedule(one.config, origin, one.seconds, one.threads)

    def _usual_seconds(self, workload: Workload, threads: int) -> float | None:
        """Measured seconds of the default on so many threads."""
        assert self.database is not None
        usual = default_of(workload, self.target)
        records = self.database.top(workload, self.target, threads=threads, limit=_NEXT_BEST)
        return next((one.latency for one in records if one.config == usual), None)

    def _derived(self, workload: Workload, config: Config) -> Origin:
        """Where a configuration comes from that is on no record of its workload."""
        return Origin.UNMEASURED if self._usual(workload, config) else Origin.NEIGHBOUR

    def _usual(self, workload: Workload, config: Config) -> bool:
        """Whether a configuration is one that nobody tuned: alone, or between kernels."""
        usual = default_of(workload, self.target), inside_of(workload, self.target)
        return config in usual

    def _add_next_best(
        self,
        workload: Workload,
        space: SearchSpace,
        schedules: dict[tuple[str, str], KnownSchedule],
    ) -> None:
        """Where the bests on record are of an older space: the fastest that is legal today."""
        assert self.database is not None
        for record in self.database.top(
            workload, self.target, threads=self.threads, limit=_NEXT_BEST
        ):
            if record.config in space and record.latency is not None:
                schedule = KnownSchedule(record.config, Origin.STALE, record.latency)
                schedules[self.layouts(workload, record.config)] = schedule
                return

    def _origin(self, best: BestRecord) -> Origin:
        """How a best was found."""
        return self._origins[id(best)]

    def layouts(self, workload: Workload, config: Config) -> tuple[str, str]:
        source, result = template_of(workload.operator).layouts(workload, config)
        return normal(source), normal(result)

    def _untuned(self, workload: Workload, space: SearchSpace) -> KnownSchedule:
        seconds = self.estimate(workload, default_of(workload, self.target))
        if self.database is not None:
            for threads in (self.threads, None):
                for near in self.database.nearest(workload, self.target, threads):
                    config = carried_over(near.record.config, space)
                    if config is not None:
                        return self._earned(workload, config, near.record.threads, seconds)
            for other in self._from_elsewhere(workload):
                config = carried_over(other.record.config, space)
                if config is not None:
                    return self._earned(workload, config, None, seconds)
        usual = default_of(workload, self.target)
        return self._known_as(workload, usual, Origin.UNMEASURED, seconds)

    def _known_as(
        self, workload: Workload, config: Config, origin: Origin, seconds: float
    ) -> KnownSchedule:
        """A schedule on as many threads as should run it."""
        return KnownSchedule(config, origin, seconds, self._parallel.users(workload, config))

    def _from_elsewhere(self, workload: Workload) -> Iterator[BestRecord]:
        """What searches on other machines found, the most alike first."""
        assert self.database is not None
        bests = self.database.elsewhere(workload, self.target, self.threads)
        self._look_up(bests)
        return (best for best in bests if self._origin(best) is Origin.SEARCHED)

    def estimate_by_family(self, workload: Workload, config: Config) -> float | None:
        """Seconds of a configuration that nobody measured, if the target's family can tell."""
        if workload in self._simulated:
            return simulated(workload, self.target, config)
        family = backends.find(self.target.family)
        return None if family is None else family.estimate_kernel(workload, self.target, config)

    def estimate(self, workload: Workload, config: Config) -> float:
        """Seconds of a configuration that nobody measured."""
        estimated = self.estimate_by_family(workload, config)
        return estimate(workload, self.target) if estimated is None else estimated

    def _earned(
        self, workload: Workload, config: Config, threads: int | None, seconds: float
    ) -> KnownSchedule:
        """A schedule of another shape, or of another machine, which is None's; one of another
        machine or thread count has to beat the default."""
        usual = default_of(workload, self.target)
        if threads != self.threads:
            config = self._parallel.faster(workload, [config, usual])
        origin = Origin.ELSEWHERE if threads is None else Origin.NEIGHBOUR
        origin = Origin.UNMEASURED if config == usual else origin
        return self._known_as(workload, config, origin, seconds)

    def _add_variants(
        self,
        workload: Workload,
        space: SearchSpace,
        schedules: dict[tuple[str, str], KnownSchedule],
    ) -> None:
        """Offer the best schedule in the layouts nobody measured."""
        best = min(schedules.values(), key=lambda schedule: schedule.seconds)
        derived = Origin.NEIGHBOUR
        if best.origin in (Origin.UNMEASURED, Origin.ELSEWHERE):
            derived = best.origin
        measured = 0.0
        if derived is Origin.NEIGHBOUR:
            measured = max(schedule.seconds for schedule in schedules.values())
        for config in layout_variants(space, best.config):
            pair = self.layouts(workload, config)
            if pair not in schedules:
                like = config.get("algorithm") == best.config.get("algorithm")
                factor = _DOUBT if like else _DOUBT * _DOUBT
                seconds = max(best.seconds * factor, measured)
                if derived is not Origin.NEIGHBOUR:
                    estimated = self.estimate_by_family(workload, config)
                    seconds = seconds if estimated is None else estimated
                schedules[pair] = self._known_as(workload, config, derived, seconds)


def layout_variants(space: SearchSpace, config: Config) -> Iterator[Config]:
    """Legal configurations with other layouts than `config`, as like it as can be.

    Those of the same algorithm come first; an algorithm that lacks a knob's value takes the middle
    of its own.
    """
    mine = config.get("algorithm")
    subspaces = sorted(
        space.subspaces, key=lambda subspace: dict(subspace.fixed).get("algorithm", mine) != mine
    )
    for subspace in subspaces:
        free = [knob for knob in subspace.knobs if knob.name.endswith("layout")]
        if not free and not any(name.endswith("layout") for name, _ in subspace.fixed):
            continue
        values: dict[str, KnobValue] = dict(subspace.fixed)
        for knob in subspace.knobs:
            kept = config.get(knob.name)
            values[knob.name] = kept if kept in knob.values else knob.values[len(knob.values) // 2]
        for chosen in itertools.product(*(knob.values for knob in free)):
            names = (knob.name for knob in free)
            variant = Config.of({**values, **dict(zip(names, chosen, strict=True))})
            if variant not in space:
                fixed = (*subspace.fixed, *zip((k.name for k in free), chosen, strict=True))
                rest = tuple(knob for knob in subspace.knobs if knob not in free)
                legal = iter(SearchSpace((replace(subspace, fixed=fixed, knobs=rest),)))
                variant = next(legal, config)
            if variant != config:
                yield variant


def estimate(workload: Workload, target: Target) -> float:
    """Seconds of a schedule nobody measured: half of peak, and memory at a copy's speed."""
    template = template_of(workload.operator)
    operands = (*template.operands(workload), template.output(workload))
    nbytes = sum(math.prod(o.shape) * size_of(o.dtype) for o in operands)
    lanes = vector_width(target) if "vector.bytes" in target else 4
    return template.flops(workload) / (2 * lanes * _ASSUMED_CLOCK) + nbytes / _BYTES_PER_SECOND


def copy_seconds(nbytes: int) -> float:
    """Seconds to read and write `nbytes` once, for conversions nobody measured."""
    return 2 * nbytes / _BYTES_PER_SECOND
