"""Carrying configurations over between spaces, of another shape or another machine: a best there as
a starting point here.
"""

import math
import re
from collections.abc import Sequence

from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.knobs import Knob
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.support.errors import ConfigError

_LAYOUT = re.compile(r"(?:[A-Z]|\d{1,6}[a-z])+")
"""Blocks are of the size of the machine's vectors: NCHW16c, NCHW8c."""
_BLOCK = re.compile(r"\d+")


def carried_over(config: Config, space: SearchSpace) -> Config | None:
    """`config` moved into `space`: every knob at its nearest allowed value; None if that breaks a
    limit.

    Numbers move to the nearest in ratio, layouts to the same one with blocks of the nearest size;
    other names that offer a choice must be the same. A limit that is broken is met, if possible, by
    stepping the ordered knobs down, largest first.
    """

    def renamed(subspace: Subspace) -> int:
        return sum(config.get(name) != value for name, value in subspace.fixed)

    for subspace in sorted(space.subspaces, key=renamed):
        moved = _moved(config, subspace)
        shrunk = _shrunk(moved, subspace, space) if moved is not None else None
        if shrunk is not None:
            return shrunk
    return None


def _moved(config: Config, subspace: Subspace) -> dict[str, KnobValue] | None:
    values: dict[str, KnobValue] = dict(subspace.fixed)
    for name, value in subspace.fixed:
        theirs = config.get(name)
        if theirs != value and not (isinstance(theirs, str) and _nearest_name((value,), theirs)):
            return None
    for knob in subspace.knobs:
        nearest = _nearest(knob, config.get(knob.name))
        if nearest is None:
            return None
        values[knob.name] = nearest
    return values


def _nearest(knob: Knob, value: KnobValue | None) -> KnobValue | None:
    """The allowed value nearest to `value`; None if there are several and none is like it."""
    if knob.ordered and isinstance(value, int):
        numbers = [other for other in knob.values if isinstance(other, int)]
        return min(numbers, key=lambda other: _ratio(value, other))
    if value in knob.values:
        return value
    named = _nearest_name(knob.values, value) if isinstance(value, str) else None
    return knob.values[0] if named is None and len(knob.values) == 1 else named


def _nearest_name(values: Sequence[KnobValue], name: str) -> str | None:
    """The layout that differs from `name` in the sizes of its blocks alone, and in them least."""
    if not _LAYOUT.fullmatch(name):
        return None
    names = [other for other in values if isinstance(other, str)]
    like = [other for other in names if _BLOCK.sub("#", other) == _BLOCK.sub("#", name)]
    return min(like, key=lambda other: _sizes_apart(other, name), default=None)


def _sizes_apart(first: str, second: str) -> float:
    sizes = zip(_BLOCK.findall(first), _BLOCK.findall(second), strict=True)
    return math.prod(_ratio(int(one), int(other)) for one, other in sizes)


def _ratio(first: int, second: int) -> float:
    small, large = sorted((max(1, first), max(1, second)))
    return large / small


def _shrunk(values: dict[str, KnobValue], subspace: Subspace, space: SearchSpace) -> Config | None:
    ordered = [knob for knob in subspace.knobs if knob.ordered]
    for _ in range(32):
        config = Config.of(values)
        try:
            space.validate(config)
        except ConfigError:
            position, knob = max(((k.values.index(values[k.name]), k) for k in ordered),
                                 key=lambda pair: pair[0], default=(0, None))  # fmt: skip
            if knob is None or position == 0:
                return None
            values[knob.name] = knob.values[position - 1]
        else:
            return config
    return None
