"""Carrying configurations over between shapes: a similar workload's best as a starting point."""

from __future__ import annotations

from tilesmith.search_space.errors import ConfigError
from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.knobs import Knob
from tilesmith.search_space.spaces.space import SearchSpace, Subspace


def carried_over(config: Config, space: SearchSpace) -> Config | None:
    """`config` moved into `space`: every knob at its nearest allowed value; None if that breaks a
    limit.

    Structural knobs that offer a choice must have the same value; ordered ones move to the nearest
    in ratio. A limit that is broken is met, if possible, by stepping the ordered knobs down,
    largest first.
    """
    for subspace in space.subspaces:
        if all(config.get(name) == value for name, value in subspace.fixed):
            moved = _moved(config, subspace)
            return _shrunk(moved, subspace, space) if moved is not None else None
    return None


def _moved(config: Config, subspace: Subspace) -> dict[str, KnobValue] | None:
    values: dict[str, KnobValue] = dict(subspace.fixed)
    for knob in subspace.knobs:
        value = config.get(knob.name)
        if knob.ordered and isinstance(value, int):
            values[knob.name] = _nearest(knob, value)
        elif value in knob.values and value is not None:
            values[knob.name] = value
        elif len(knob.values) == 1:
            values[knob.name] = knob.values[0]
        else:
            return None
    return values


def _nearest(knob: Knob, value: int) -> KnobValue:
    def distance(other: KnobValue) -> float:
        assert isinstance(other, int)
        small, large = sorted((max(1, value), max(1, other)))
        return large / small

    return min(knob.values, key=distance)


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
