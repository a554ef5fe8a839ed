"""The part of a space whose configurations all add in one order, so that outputs are equal bits.

A workload with `sums=same` has this space: of the whole one, the configurations whose order of
summation (`summation.order`) is that of its scheduler's `canonical` one. The
structures of each subspace are scheduled once; knobs that have no say in the order stay as they
are, structural ones that have are fixed, and of the tile sizes that have the values are cut.

Invariant: every configuration of the part adds in the canonical order. Where tile sizes agree with
it only together, those that do beside each other are kept: the part may then be smaller than it
could be, and never larger.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.knobs import Knob
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.summation.order import StageOrder, Summation
from tilesmith.search_space.summation.reading import summation_of
from tilesmith.search_space.workloads.scheduler import Scheduler, scheduler_of
from tilesmith.search_space.workloads.workload import Workload

Values = tuple[KnobValue, ...]
Order = tuple[StageOrder, ...]
Kept = dict[str, Knob] | None


def same_bits(
    scheduler: Scheduler, space: SearchSpace, workload: Workload, target: Target
) -> SearchSpace:
    """The configurations of a space that add in the canonical order."""
    canonical = scheduler.canonical(workload, target)
    order = order_of(scheduler, space, workload, target, canonical)
    parts: list[Subspace] = []
    for subspace in space.subspaces:
        parts += _Part(scheduler, space, subspace, workload, target).with_order(order)
    return SearchSpace(tuple(parts))


def order_of(
    scheduler: Scheduler, space: SearchSpace, workload: Workload, target: Target, config: Config
) -> Order:
    """The order in which a configuration adds."""
    schedule = scheduler.schedule(workload, target, space.structure(config))
    return summation_of(schedule).at(space.tiles(config))


def add_alike(workload: Workload, target: Target, one: Config, other: Config) -> bool:
    """Whether two configurations of a workload add in one order: they compute equal bits.

    Raises:
        ConfigError: one is not in the workload's space.
    """
    scheduler = scheduler_of(workload, target)
    space = scheduler.space(workload, target)
    for config in (one, other):
        space.validate(config)
    orders = [order_of(scheduler, space, workload, target, config) for config in (one, other)]
    return orders[0] == orders[1]


class _Part:
    """One subspace, and the orders of its structures."""

    def __init__(
        self,
        scheduler: Scheduler,
        space: SearchSpace,
        subspace: Subspace,
        workload: Workload,
        target: Target,
    ) -> None:
        self.subspace = subspace
        self._asked = (scheduler, workload, target)
        names = space.structural_knobs
        self.structural = [knob for knob in subspace.knobs if knob.name in names]
        self.tiles = [knob for knob in subspace.knobs if knob.name not in names]
        self.fixed = {name: value for name, value in subspace.fixed if name in names}
        self.numbers = {n: v for n, v in subspace.fixed if n not in names and isinstance(v, int)}
        self._cuts: dict[Summation, Kept] = {}

    def with_order(self, order: Order) -> Iterator[Subspace]:
        """Parts of the subspace, each with other fixed values, that add in an order."""
        allowed = {
            values: kept
            for values in itertools.product(*(knob.values for knob in self.structural))
            if (kept := self._kept(values, order)) is not None
        }
        deciding = [place for place in range(len(self.structural)) if self._decides(place, allowed)]
        seen: set[Values] = set()
        for values, kept in allowed.items():
            fixed = tuple(values[place] for place in deciding)
            if fixed in seen:
                continue
            seen.add(fixed)
            named = {self.structural[place].name: values[place] for place in deciding}
            knobs = (kept.get(k.name, k) for k in self.subspace.knobs if k.name not in named)
            yield replace(
                self.subspace, fixed=(*self.subspace.fixed, *named.items()), knobs=tuple(knobs)
            )

    def _decides(self, place: int, allowed: Mapping[Values, Mapping[str, Knob]]) -> bool:
        """Whether the value of a structural knob has a say in which configurations are kept."""
        for values, kept in allowed.items():
            for value in self.structural[place].values:
                other = (*values[:place], value, *values[place + 1 :])
                if allowed.get(other) != kept:
                    return True
        return False

    def _kept(self, values: Values, order: Order) -> Kept:
        """The tile sizes that keep an order in one structure, of those knobs that have a say in it;
        None where none does."""
        scheduler, workload, target = self._asked
        structural = dict(zip((knob.name for knob in self.structural), values, strict=True))
        structure = Config.of({**self.fixed, **structural})
        summation = summation_of(scheduler.schedule(workload, target, structure))
        if summation not in self._cuts:
            self._cuts[summation] = self._cut(summation, order)
        return self._cuts[summation]

    def _cut(self, summation: Summation, order: Order) -> Kept:
        """The same, of an order with symbols."""
        knobs = [knob for knob in self.tiles if knob.name in summation.variables]
        right = {
            chosen
            for chosen in itertools.product(*(knob.values for knob in knobs))
            if summation.at(self.numbers | _numbers(knobs, chosen)) == order
        }
        if not right:
            return None
        return {
            knob.name: replace(knob, values=tuple(v for v in knob.values if v in values))
            for knob, values in zip(knobs, _box(right), strict=True)
            if set(knob.values) != values
        }


def _numbers(knobs: list[Knob], chosen: Values) -> dict[str, int]:
    return {
        knob.name: value
        for knob, value in zip(knobs, chosen, strict=True)
        if isinstance(value, int)
    }


def _box(points: set[Values]) -> list[set[KnobValue]]:
    """Values for each coordinate, all of whose combinations are among the points: grown from the
    largest point, a value at a time."""
    start = max(points)
    box: list[set[KnobValue]] = [{value} for value in start]
    for place in range(len(start)):
        for value in sorted({point[place] for point in points}, reverse=True):
            grown = [*box[:place], {value}, *box[place + 1 :]]
            if all(point in points for point in itertools.product(*grown)):
                box[place].add(value)
    return box
