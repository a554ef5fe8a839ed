"""One way from a report to the JSON object that scripts read: a class declares its keys once.

    @dataclass(frozen=True)
    class Timing(JsonObject, keys="median_ms runs:samples.size best_us:best_s notes? *counts"):

    before: Timing(median_ms=1.5, samples=..., best_s=2e-6, notes=None, counts={"kept": 3})
    after:  {"median_ms": 1.5, "runs": 9, "best_us": 2.0, "kept": 3}

A declaration lists keys in the order in which they are printed:

- `key` reads the attribute of that name, a field or a property;
- `key:path` reads another attribute, or one of an attribute (`a.b`, None where `a` is None); a time
  whose unit differs from the key's (`_s`, `_ms`, `_us`) is converted;
- `key?` is left out where the value is None or empty;
- `*name` stands for all keys of that attribute, which is an object or a mapping itself;
- `...` stands for all fields that the declaration does not name otherwise.

Invariants: values are plain, so that `json` takes them: what has a `to_json` of its own becomes
what that gives, other dataclasses and mappings become objects, sequences lists, moments texts. A
number that is not finite becomes None, as standard JSON has none.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, ClassVar

_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}


class JsonObject:
    """A dataclass that is printed as an object; the module says how `keys` are declared."""

    _keys: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, keys: str = "...") -> None:
        super().__init_subclass__()
        cls._keys = tuple(keys.split())

    def to_json(self) -> dict[str, Any]:
        """The object, by the keys that scripts rely on."""
        return dict(_items(self, self._keys))


def object_of(value: Any, keys: str) -> dict[str, Any]:
    """An object of what is no `JsonObject`, by keys that are declared in the same way."""
    return dict(_items(value, keys.split()))


def plain(value: Any) -> Any:
    """A value as `json` takes it."""
    if hasattr(value, "to_json"):
        return plain(value.to_json())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    return value


def _items(value: Any, keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for declared in keys:
        if declared == "...":
            named = {part.strip("*?") for key in keys for part in key.split(":")}
            others = (field.name for field in fields(value) if field.name not in named)
            yield from ((name, plain(getattr(value, name))) for name in others)
        elif declared.startswith("*"):
            yield from plain(_reached(value, declared[1:])).items()
        else:
            key, _, path = declared.rstrip("?").partition(":")
            item = plain(_reached(value, path or key))
            if path and item is not None:
                item = _converted(item, path, key)
            if item or not declared.endswith("?"):
                yield key, item


def _reached(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _converted(value: Any, path: str, key: str) -> Any:
    """Times in the unit of their key."""
    given, wanted = (_UNITS.get(name.rpartition("_")[2]) for name in (path, key))
    if given is None or wanted is None or given == wanted:
        return value
    if isinstance(value, list):
        return [item * (wanted / given) for item in value]
    return value * (wanted / given)
