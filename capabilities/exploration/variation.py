"""Design points: numbers of a target that are varied, and the points that come of them.

    sbuf.mib=12:96        powers of two between both, ends included
    sbuf.mib=12:96:5      five values, evenly spaced by ratio
    tensor.rows=64,128    these

The first point is the target as it is; then come those where one number differs, which
sensitivities are read off; then the grid of all combinations, or as many of it as are asked for,
drawn at random.

Invariants: points are distinct and their order depends on nothing but the arguments; every point is
a target its family accepts, or is listed with the reason why not.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import InputError, TargetError
from tilesmith.simulator.dispatch import check_target, simulators

Settings = tuple[tuple[str, str], ...]
"""Varied numbers of a point, by name in the order they were asked for; none left out."""

_MOST = 1000
"""Values of a number: as many as designs are looked at."""


@dataclass(frozen=True)
class Variation:
    """A number of a target, and the values it takes: distinct, ascending."""

    name: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str, target: Target) -> "Variation":
        """A variation as a command line has it.

        Raises:
            InputError: the text is none, or its values are no numbers.
            TargetError: the target has no such number.
        """
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not values:
            raise InputError(
                f"'{text}' varies nothing; write for example sbuf.mib=12:96 or tensor.rows=64,128"
            )
        fact = target.fact(name)
        if isinstance(fact.value, bool) or not isinstance(fact.value, int | float):
            raise InputError(f"'{name}' is {fact.value!r}, no number to vary")
        numbers = _range(text, values) if ":" in values else _list(text, values)
        if isinstance(fact.value, int):
            if ":" not in values and any(value != round(value) for value in numbers):
                raise InputError(f"'{text}': {name} takes whole numbers")
            numbers = [float(round(value)) for value in numbers]
        return cls(name, tuple(sorted(set(numbers))))

    def text(self, value: float) -> str:
        """A value as settings of targets are written."""
        return f"{value:.0f}" if value == round(value) else f"{value:.6g}"


def _list(text: str, values: str) -> list[float]:
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        raise InputError(f"'{text}': values are numbers, with commas between them") from None
    if not all(math.isfinite(value) for value in numbers):
        raise InputError(f"'{text}': values are finite")
    return numbers


def _range(text: str, values: str) -> list[float]:
    parts = values.split(":")
    try:
        low, high = float(parts[0]), float(parts[1])
        count = int(parts[2]) if len(parts) == 3 else 0
    except ValueError:
        parts = []
    if len(parts) not in (2, 3) or not 0 < low < high < math.inf or (len(parts) == 3 and count < 2):
        raise InputError(f"'{text}': a range is LOW:HIGH or LOW:HIGH:COUNT, with 0 < LOW < HIGH")
    doublings = math.log2(high) - math.log2(low)  # their ratio may be no float
    if max(count, doublings) > _MOST:
        raise InputError(f"'{text}': a number takes at most {_MOST:,} values")
    if count:
        return [low * 2 ** (doublings * step / (count - 1)) for step in range(count)]
    return [*(low * 2**step for step in range(math.floor(doublings - 1e-9) + 1)), high]


@dataclass(frozen=True)
class Designs:
    """The points of a search for hardware.

    Attributes:
        variations: what is varied.
        points: settings of each point; the first ones are the target's own.
        targets: of each point.
        one_at_a_time: how many points, from the second on, differ in one number.
        refused: settings that make no target, and why.
        grid: how many combinations there are.
    """

    variations: tuple[Variation, ...]
    points: tuple[Settings, ...]
    targets: tuple[Target, ...]
    one_at_a_time: int
    refused: tuple[tuple[Settings, str], ...]
    grid: int

    def __len__(self) -> int:
        return len(self.points)


def designs(
    target: Target, variations: Sequence[Variation], most: int, rng: np.random.Generator
) -> Designs:
    """The points to look at: at most about `most`.

    Raises:
        InputError: no number is varied, one is twice, or no point but the base is a target.
    """
    names = [variation.name for variation in variations]
    if not names:
        raise InputError("nothing is varied; give --vary NAME=VALUES, such as sbuf.mib=12:96")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"'{twice}' is varied twice")
    own = {v.name: v.text(target.number(v.name)) for v in variations}
    first: Settings = tuple(own.items())
    single = [
        tuple({**own, v.name: v.text(value)}.items()) for v in variations for value in v.values
    ]
    grid = math.prod(len(variation.values) for variation in variations)
    wanted = dict.fromkeys([first, *single])
    wanted |= dict.fromkeys(_combinations(variations, grid, max(0, most - len(wanted)), rng))
    points, targets, refused = [], [], []
    for settings in wanted:
        try:
            targets.append(_target(target, settings, own))
            points.append(settings)
        except TargetError as error:
            refused.append((settings, str(error)))
    if len(points) < 2:
        raise InputError(
            f"no design beside the base can be built: {refused[0][1]}"
            if refused
            else f"only the base itself is varied to: {', '.join(v.name for v in variations)}"
        )
    alone = sum(1 for settings in points[1:] if settings in set(single))
    return Designs(tuple(variations), tuple(points), tuple(targets), alone, tuple(refused), grid)


def _combinations(
    variations: Sequence[Variation], grid: int, most: int, rng: np.random.Generator
) -> list[Settings]:
    def settings(values: Sequence[float]) -> Settings:
        return tuple((v.name, v.text(x)) for v, x in zip(variations, values, strict=True))

    if grid <= most:
        return [settings(v) for v in itertools.product(*(v.values for v in variations))]
    sizes = [len(variation.values) for variation in variations]
    numbers = sorted(rng.choice(grid, most, replace=False).tolist()) if grid < 2**62 else []
    places = [np.unravel_index(number, sizes) for number in numbers]
    return [
        settings([v.values[int(p)] for v, p in zip(variations, place, strict=True)])
        for place in places
    ]


def _target(base: Target, settings: Settings, own: Mapping[str, str]) -> Target:
    """The target of a point; numbers that keep their value are left to what goes with others."""
    changed = {name: value for name, value in settings if value != own[name]}
    target = simulators[base.family].with_settings(base, changed) if changed else base
    check_target(target)
    return target
