"""Configurations as people write them: a few knobs by name, the others from one that is known.

    --config algorithm=packed,m_tile=8        --config '{"m_tile": 8}'

Invariant: what comes out is legal in the space, or a `ConfigError` names the knob, or the limit
that is broken, and what is allowed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.knobs import Knob
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.spaces.subspace import Subspace
from tilesmith.search_space.support.errors import ConfigError
from tilesmith.search_space.support.suggestions import did_you_mean, unknown

DRAWN = 256
"""Configurations that are drawn where knobs of another algorithm have to be filled in."""

_SHOWN = 12
"""Values that a message names."""


@dataclass(frozen=True)
class Filled:
    """A whole configuration of a few knobs.

    Attributes:
        candidates: the configuration; several where knobs that the base lacks are open.
        open: those knobs.
    """

    candidates: tuple[Config, ...]
    open: tuple[str, ...] = ()


def parsed(texts: Sequence[str]) -> dict[str, str]:
    """Knobs by name: of `KEY=VALUE,KEY=VALUE` or a JSON object, several of them joined.

    A part without `=` goes on with the value before it: orders have commas in them.

    Raises:
        ConfigError: a text is neither, or a knob has two values.
    """
    knobs: dict[str, str] = {}
    for text in texts:
        for name, value in _pairs(text):
            if knobs.setdefault(name, value) != value:
                raise ConfigError(f"knob '{name}' is given twice: {knobs[name]} and {value}")
    return knobs


def _pairs(text: str) -> list[tuple[str, str]]:
    if text.lstrip().startswith("{"):
        return [(name, str(value)) for name, value in Config.from_json(text).items()]
    pairs: list[tuple[str, str]] = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if equals and name and value:
            pairs.append((name, value))
        elif pairs and not equals and name:
            last, before = pairs[-1]
            pairs[-1] = last, f"{before},{name}"
        else:
            raise ConfigError(
                f"'{text}' is no configuration; write KEY=VALUE,KEY=VALUE or a JSON object"
            )
    return pairs


def filled(
    space: SearchSpace, given: Mapping[str, str], base: Config, rng: np.random.Generator
) -> Filled:
    """The knobs given over those of `base`.

    Raises:
        ConfigError: an unknown knob, a value that is not allowed, or a limit that is broken.
    """
    values = {name: _value(space, name, text) for name, text in given.items()}
    holding = [s for s in space.subspaces if all(_takes(s, n, v) for n, v in values.items())]
    if not holding:
        raise ConfigError(_together(space, values))
    wanted = {**base, **values}
    holding.sort(key=lambda s: -sum(_takes(s, name, value) for name, value in wanted.items()))
    nearest = holding[0]
    names = {name for name, _ in nearest.fixed} | {knob.name for knob in nearest.knobs}
    open_ = tuple(k.name for k in nearest.knobs if not _takes(nearest, k.name, wanted.get(k.name)))
    if not open_:
        config = Config.of({**{n: v for n, v in wanted.items() if n in names}, **_fixed(nearest)})
        _check(nearest, config, set(values))
        return Filled((config,))
    for kept in (wanted, values):  # the base's other knobs where they go with it
        narrowed = _narrowed(nearest, {n: v for n, v in kept.items() if n not in open_})
        if not narrowed.empty:
            rows = narrowed.draw(rng, DRAWN)
            drawn = dict.fromkeys(narrowed.config(row) for row in rows)
            free = tuple(k.name for k in narrowed.knobs if len(k.values) > 1)
            return Filled(tuple(drawn), free)
    raise ConfigError(_together(space, values))


def _fixed(subspace: Subspace) -> dict[str, KnobValue]:
    return dict(subspace.fixed)


def _takes(subspace: Subspace, name: str, value: KnobValue | None) -> bool:
    fixed = _fixed(subspace)
    if name in fixed:
        return fixed[name] == value
    return any(knob.name == name and value in knob.values for knob in subspace.knobs)


def _narrowed(subspace: Subspace, values: Mapping[str, KnobValue]) -> Subspace:
    """A subspace whose knobs are held to those values that they can have."""
    knobs = tuple(
        Knob(k.name, (values[k.name],), k.structural, k.setting)
        if k.name in values and values[k.name] in k.values
        else k
        for k in subspace.knobs
    )
    return replace(subspace, knobs=knobs)


def _value(space: SearchSpace, name: str, text: str) -> KnobValue:
    """A knob's value as the space has it.

    Raises:
        ConfigError: no such knob, or no such value.
    """
    known = space.describe()
    if name not in known:
        raise unknown("knob", name, sorted(known), ConfigError)
    values = {str(value): value for value in known[name]}
    if text not in values:
        meant = did_you_mean(text, values) if not text.lstrip("-").isdigit() else ""
        raise ConfigError(
            f"knob '{name}' cannot be {text}; allowed: {_words(tuple(values))}{meant}"
        )
    return values[text]


def _words(values: Sequence[object]) -> str:
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return ", ".join(map(str, values[:_SHOWN])) + more


def _together(space: SearchSpace, values: Mapping[str, KnobValue]) -> str:
    """Which of the given knobs no algorithm has at once, and which values the last of them can
    have beside the others."""
    names = list(values)
    for count in range(2, len(names) + 1):
        before, last = {n: values[n] for n in names[: count - 1]}, names[count - 1]
        holding = [s for s in space.subspaces if all(_takes(s, n, v) for n, v in before.items())]
        if any(_takes(s, last, values[last]) for s in holding):
            continue
        settings = " ".join(f"{n}={v}" for n, v in before.items())
        allowed = SearchSpace(tuple(holding)).describe().get(last, ())
        what = f"allowed there: {_words(allowed)}" if allowed else "there is no such knob there"
        return f"knob '{last}' cannot be {values[last]} beside {settings}; {what}"
    settings = " ".join(f"{n}={v}" for n, v in values.items())
    return f"no configuration has {settings}: whatever the other knobs, a limit is broken"


def _check(subspace: Subspace, config: Config, given: set[str]) -> None:
    """Raise `ConfigError` with the limit that is broken, and what the given knobs can be."""
    try:
        subspace.check(config)
    except ConfigError as error:
        alternatives = []
        for name in sorted(given & {knob.name for knob in subspace.knobs}):
            (knob,) = (knob for knob in subspace.knobs if knob.name == name)
            legal = [v for v in knob.values if _legal(subspace, Config.of({**config, name: v}))]
            alternatives.append(
                f"{name} can be {_words(legal)}" if legal else f"{name} can be nothing"
            )
        raise ConfigError(
            f"{error}; the other knobs as they are, {'; '.join(alternatives)}"
        ) from None


def _legal(subspace: Subspace, config: Config) -> bool:
    return bool(subspace.legal(subspace.row(config))[0])
