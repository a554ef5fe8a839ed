"""`Target`: a piece of hardware as data: every number with its source, trust and unit.

A target is a name, a family ("cpu", "systolic", "trainium", ...) and facts by dotted name
(`sbuf.mib`, `l1.kib`). Targets of an existing family are one TOML file in `targets/`:

    family = "trainium"
    doc = "AWS Trainium, one NeuronCore-v2"
    [sbuf]
    mib = {value = 24, source = "A1", trust = "V", minimum = 1, maximum = 1024}
    partitions = 128                       # short form: no source, trust "?"

A target may be `like = "trn1"`, a known name: it has its facts but for those it states itself.

`doc` and the per-fact keys `unit`, `source`, `trust` (V read in the primary text, S secondary,
F fitted, ? assumed), `calibratable`, `minimum`, `maximum`, `choices` (of a text) are optional.
Invariants: frozen; the *identity* of a target (`identity`) covers the facts that are not
calibratable, so that keys stay stable when measured constants are fitted anew. Records,
calibrations and jobs are found by it: renaming a fact does not change it (`FIRST_KNOWN_AS`).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import NoneType
from typing import Any

from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.files import ending
from tilesmith.search_space.support.registry import FileRegistry
from tilesmith.search_space.support.suggestions import did_you_mean, instead

HOST = "cpu"
"""The name of the target that is the machine this process runs on."""

FactValue = int | float | str | bool | tuple[Any, ...]

FIRST_KNOWN_AS = {"vector.bytes": ("vector.lanes", 4, "bytes")}
"""Facts that were renamed: today's name, the first one, how many of today's unit made one then, and
today's unit. Identities are made of first names; descriptions that use them are read as today's."""


@dataclass(frozen=True)
class Fact:
    """One number (or name) of a target with where it comes from."""

    value: FactValue
    source: str = ""
    trust: str = "?"
    unit: str = ""
    calibratable: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def limits(self) -> tuple[float, float]:
        """Least and greatest value of a number; unless they are stated, it is not negative and fits
        into 64 bits."""
        low = self.minimum if self.minimum is not None else 0.0
        return low, self.maximum if self.maximum is not None else float(1 << 63)

    @property
    def allowed(self) -> str:
        """The allowed range of a number, to end a sentence with."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            return ""
        low, high = self.limits
        return f"; allowed: {low:g} to {high:g}"

    def check(self, target: str, name: str) -> "Fact":
        """Return self; raise `TargetError` if the value is outside the allowed range."""
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            low, high = self.limits
            if not low <= self.value <= high:
                raise TargetError(
                    f"target '{target}': {name} = {self.value} is out of range{self.allowed}"
                )
        if self.choices and self.value not in self.choices:
            raise TargetError(
                f"target '{target}': {name} = {self.value!r} is unknown; "
                f"one of {', '.join(self.choices)} is expected"
            )
        return self


@dataclass(frozen=True)
class Target:
    """Frozen hardware facts. Load one with `load_target`, change numbers with `with_settings`."""

    name: str
    family: str
    facts: tuple[tuple[str, Fact], ...]
    doc: str = ""

    def __repr__(self) -> str:
        """In a line: its facts are in `facts`, and shown by `tilesmith targets NAME`."""
        return f"<Target '{self.name}' of {self.family}, {len(self.facts)} facts>"

    @classmethod
    def of(cls, name: str, family: str, facts: Mapping[str, Fact], doc: str = "") -> "Target":
        checked = {key: fact.check(name, key) for key, fact in facts.items()}
        return cls(name, family, tuple(sorted(checked.items())), doc)

    @cached_property
    def _by_name(self) -> dict[str, Fact]:
        return dict(self.facts)

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.family, self.facts, self.doc))

    def __hash__(self) -> int:
        return self._hash  # of some hundred facts: kept, as targets are keys of what is remembered

    def __getstate__(self) -> dict[str, object]:
        """Without the hash, which is another one in another process."""
        return {name: self.__dict__[name] for name in ("name", "family", "facts", "doc")}

    def fact(self, name: str) -> Fact:
        """A fact by dotted name; `TargetError` if the target lacks it."""
        if name not in self._by_name:
            all_of_them = f"'tilesmith targets' with its name lists all {len(self._by_name)}"
            hint = instead(name, self._by_name, "it has", all_of_them)
            raise TargetError(f"target '{self.name}' has no '{name}'{hint}")
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def integer(self, name: str) -> int:
        """An integer fact."""
        value = self.fact(name).value
        if isinstance(value, bool) or not isinstance(value, int):
            raise TargetError(f"target '{self.name}': {name} = {value!r} is not an integer")
        return value

    def number(self, name: str) -> float:
        """A numeric fact as float."""
        value = self.fact(name).value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TargetError(f"target '{self.name}': {name} = {value!r} is not a number")
        return float(value)

    def text(self, name: str) -> str:
        """A textual fact."""
        return str(self.fact(name).value)

    def with_settings(self, settings: Mapping[str, str | FactValue]) -> "Target":
        """Change facts (what `--set KEY=VALUE` does), keeping type and range.

        Raises:
            TargetError: unknown name, a value of another type, or one out of range.
        """
        changed = dict(self.facts)
        for name, given in settings.items():
            old = self.fact(name)
            changed[name] = replace(old, value=_coerce(self.name, name, old, given), source="--set")
        return Target.of(self.name, self.family, changed, self.doc)

    @cached_property
    def identity(self) -> str:
        """Name and a digest of the facts that calibration may not change: `trn1-1f0c2a9b`."""
        fixed = {name: fact.value for name, fact in self.facts if not fact.calibratable}
        for name, (first, scale, _) in FIRST_KNOWN_AS.items():
            if name in fixed:
                fixed[first] = self.integer(name) // scale
                del fixed[name]
        text = json.dumps([self.family, fixed], sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @cached_property
    def uncalibrated(self) -> "Target":
        """The target without what was measured of it: the same for every machine of its kind."""
        facts = {name: fact for name, fact in self.facts if not fact.calibratable}
        return Target.of(self.name, self.family, facts, self.doc)

    def to_json(self) -> str:
        """Every fact, for the database and for artifacts."""
        facts = {
            n: {k: v for k, v in vars(f).items() if k == "value" or v not in (None, "", ())}
            for n, f in self.facts
        }
        return json.dumps(
            {"name": self.name, "family": self.family, "doc": self.doc, "facts": facts}
        )

    @classmethod
    def from_json(cls, text: str) -> "Target":
        """A target from what `to_json` wrote; `TargetError` where that was changed."""
        raw = json.loads(text)
        for key in ("name", "family"):
            if not isinstance(raw[key], str):
                raise TargetError(f"the {key} of a target is {raw[key]!r}, no text")
        facts = dict(_fact(raw["name"], name, entry) for name, entry in raw["facts"].items())
        return cls.of(raw["name"], raw["family"], facts, raw.get("doc", ""))


def _coerce(target: str, name: str, old: Fact, given: str | FactValue) -> FactValue:
    kind = type(old.value)
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[str(given).lower()]
        if kind is int:
            return int(str(given))
        if kind is float:
            return float(str(given))
    except (ValueError, KeyError) as error:
        raise TargetError(
            f"target '{target}': {name} = {given!r} is not of type {kind.__name__} "
            f"(it is {old.value!r} now){old.allowed}"
        ) from error
    return str(given)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and "value" not in value:
            yield from _flatten(value, f"{name}.")
        else:
            yield name, value


_TEXT, _NUMBER = (str, "a text"), ((int, float, NoneType), "a number")
_KINDS: dict[str, tuple[Any, str]] = {
    "value": ((int, float, str, bool, tuple), "a number, a text or a list"), "unit": _TEXT,
    "source": _TEXT, "trust": _TEXT, "calibratable": (bool, "true or false"),
    "minimum": _NUMBER, "maximum": _NUMBER, "choices": (tuple, "a list of texts"),
}  # fmt: skip


def _fact(target: str, name: str, entry: Any) -> tuple[str, Fact]:
    """A fact as it is written, under its name of today."""
    fields = dict(entry) if isinstance(entry, Mapping) else {"value": entry}
    for key, given in fields.items():
        if key not in _KINDS:
            meant = did_you_mean(key, _KINDS)
            raise TargetError(
                f"target '{target}': {name} has the unknown key '{key}'; keys are "
                f"{', '.join(_KINDS)}{meant}"
            )
        fields[key], (kind, said) = _freeze(given), _KINDS[key]
        if not isinstance(fields[key], kind):
            where = f"target '{target}': the {key} of {name}"
            raise TargetError(f"{where} is {given!r:.40}; {said} is expected")
    return _of_today(name, Fact(**fields))


def _of_today(name: str, fact: Fact) -> tuple[str, Fact]:
    """`vector.lanes` = 16 (float32) -> `vector.bytes` = 64"""
    for today, (first, scale, unit) in FIRST_KNOWN_AS.items():
        if name == first and isinstance(fact.value, int):
            least, most = (None if x is None else x * scale for x in (fact.minimum, fact.maximum))
            value = fact.value * scale
            return today, replace(fact, value=value, unit=unit, minimum=least, maximum=most)
    return name, fact


def _freeze(value: Any) -> Any:
    return tuple(_freeze(item) for item in value) if isinstance(value, list) else value


@lru_cache(maxsize=256)  # a target is frozen, and asked for again and again
def parse_target(name: str, text: str) -> Target:
    """Read a target from TOML text; `TargetError` says what is wrong with it."""
    import tomllib  # here: commands that read no target start without it

    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TargetError(f"target '{name}' is not valid TOML: {error}") from error
    like, family, doc = (table.pop(key, "") for key in ("like", "family", "doc"))
    if like:
        base = parse_target(str(like), target_files[str(like)].read_text())
        inherited = {key: replace(f, source=f"as {like}: {f.source}") for key, f in base.facts}
        facts = {**inherited, **parse_facts(name, table)}
        return Target.of(name, family or base.family, facts, str(doc))
    if not family or not isinstance(family, str):
        raise TargetError(f"target '{name}' names no family; write family = \"cpu\" at its top")
    return Target.of(name, family, parse_facts(name, table), str(doc))


def parse_facts(name: str, table: Mapping[str, Any]) -> dict[str, Fact]:
    """The facts of a parsed TOML table by dotted name; `name` is whose they are, for errors."""
    return dict(_fact(name, key, entry) for key, entry in _flatten(table))


target_files = FileRegistry("target", "tilesmith.search_space.targets", TargetError, room="targets")
"""TOML files by the names of what they describe: those that ship, and those of extensions."""


def target_names() -> list[str]:
    """Names of the targets that are known as files."""
    return list(target_files)


def load_target(name: str) -> Target:
    """A known target by name, or one from a path that ends in `.toml`.

    Raises:
        TargetError: unknown name, unreadable or invalid file.
    """
    if name.endswith(".toml"):
        path = Path(name)
        try:
            return parse_target(path.stem, ending(path).read_text())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise TargetError(f"target file '{name}' cannot be read: {reason}") from error
    if name == HOST:
        raise TargetError(
            f"target '{HOST}' is the machine that this runs on: it is found out by 'host_target', "
            f"and has no file; of one are {', '.join(target_names())}"
        )
    if name not in target_files:
        raise TargetError(
            f"unknown target '{name}'; one of {HOST}, {', '.join(target_names())} or a .toml file "
            f"is expected{did_you_mean(name, (HOST, *target_names()))}"
        )
    return parse_target(name, target_files[name].read_text())
