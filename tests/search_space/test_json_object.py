"""Reports as JSON objects: keys in the declared order, units by the keys' names, plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from tests.packaging.test_imports import modules
from tilesmith.search_space.support.json_object import JsonObject


@dataclass(frozen=True)
class Inner(JsonObject):
    least: float
    pair: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Plain:
    name: str
    value: float


@dataclass(frozen=True)
class Own:
    def to_json(self) -> dict[str, Any]:
        return {"own": math.inf}


@dataclass(frozen=True)
class Outer(
    JsonObject,
    keys="twice name:inner.pair best_us:best_s all_us:all_s *inner missing? ... last:inner",
):
    best_s: float | None
    inner: Inner | None
    missing: tuple[str, ...] = ()
    more: Mapping[Any, Any] = field(default_factory=dict)
    parts: tuple[Any, ...] = ()
    all_s: tuple[float, ...] = ()

    @property
    def twice(self) -> float | None:
        return self.best_s and 2 * self.best_s


def test_keys_stand_as_they_are_declared() -> None:
    outer = Outer(1.5e-6, Inner(math.nan), ("a",), MappingProxyType({3: (True, None)}),
                  (Plain("p", -math.inf), Own()), (1e-6, 2e-6))  # fmt: skip
    shown = outer.to_json()
    assert list(shown) == [
        "twice", "name", "best_us", "all_us", "least", "pair", "missing", "more", "parts", "last"
    ]  # fmt: skip
    assert shown == {
        "twice": 3e-6, "name": [1, 2], "best_us": 1.5e-6 * 1e6, "all_us": [1.0, 2.0],
        "least": None, "pair": [1, 2], "missing": ["a"], "more": {"3": [True, None]},
        "parts": [{"name": "p", "value": None}, {"own": None}],
        "last": {"least": None, "pair": [1, 2]},
    }  # fmt: skip
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_what_is_missing_is_none_or_left_out() -> None:
    shown = Outer(None, Inner(1.0)).to_json()
    assert shown["best_us"] is None and shown["twice"] is None and "missing" not in shown
    assert Outer(0.0, Inner(1.0)).to_json()["best_us"] == 0.0


def test_a_path_ends_where_nothing_is() -> None:
    @dataclass(frozen=True)
    class Holder(JsonObject, keys="least:inner.least"):
        inner: Inner | None

    assert Holder(None).to_json() == {"least": None}


def _declared() -> list[type[JsonObject]]:
    for name, path in modules().items():
        if "json_object import" in path.read_text():
            __import__(name)
    pending, known = [JsonObject], []
    while pending:
        pending += (new := pending.pop().__subclasses__())
        known += [one for one in new if one.__module__.startswith("tilesmith.")]
    return known


def test_every_declared_key_reads_something() -> None:
    declared = _declared()
    assert len(declared) > 25
    for one in declared:
        known = {each.name for each in fields(one)} | set(dir(one))  # type: ignore[arg-type]
        for key in one._keys:
            first = key.strip("*?").rpartition(":")[2].partition(".")[0]
            assert key == "..." or first in known, f"{one.__qualname__} has no '{first}'"
