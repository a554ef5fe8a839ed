"""One line of the exchange format: its values, each checked by what it has to be.

Trials in an export and schedules in a pack are lines of one form, so that one place says what a
latency, a configuration or a toolchain is. Invariants: every function raises `ValueError` with a
clause that follows the line's number in a sentence; nothing here needs a database, as a model is
compiled with a pack where there is none.
"""

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import fields
from statistics import median
from typing import Any

from tilesmith.records.trials.toolchain import Toolchain

_VERSIONS = frozenset(f.name for f in fields(Toolchain))
_canonical = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def toolchain_of(given: dict[str, Any]) -> Toolchain:
    """Versions by name, as `Toolchain.to_dict` gives them."""
    if given.keys() - _VERSIONS or not all(isinstance(value, str) for value in given.values()):
        raise ValueError(f"'toolchain' names {', '.join(sorted(_VERSIONS))}, as texts")
    return Toolchain(**given)


def reason_of(error: ValueError) -> str:
    """What is wrong with a line, to follow its number in a sentence."""
    return str(error) if not isinstance(error, json.JSONDecodeError) else "is not JSON"


def object_in(text: str) -> dict[str, Any]:
    """The JSON object that a line is, of texts that any database takes."""
    try:
        line = json.loads(text)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if not isinstance(line, dict):
        raise ValueError("is not a JSON object")
    if "\\u" in text:  # only escapes write what no database takes as a text
        _check_storable({name: value for name, value in line.items() if name != "message"})
    return line


def _check_storable(line: dict[str, Any]) -> None:
    written = json.dumps(line, ensure_ascii=False)
    if "\\u0000" in written or any("\ud800" <= character <= "\udfff" for character in written):
        raise ValueError("holds a text with a NUL or half a character (\\u0000, \\ud800)")


_LARGEST = sys.float_info.max


def text_of(line: dict[str, Any], name: str, default: str | None = None) -> str:
    """A text; without a default one that is there and says something."""
    value = line.get(name, default)
    if value is None:
        raise ValueError(f"has no '{name}'")
    if not isinstance(value, str) or (default is None and not value.strip()):
        raise ValueError(f"'{name}' is {value!r}, not a text")
    return value


def one_of(line: dict[str, Any], name: str, allowed: Iterable[str]) -> str:
    """One of the texts allowed."""
    value = text_of(line, name)
    if value not in allowed:
        raise ValueError(f"'{name}' is '{value}'; one of {', '.join(allowed)} is expected")
    return value


def threads_of(line: dict[str, Any]) -> int:
    """`threads`, 1 unless given."""
    value = line.get("threads", 1)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 31:
        raise ValueError(f"'threads' is {value!r:.40}, not a positive integer (of 32 bits)")
    return value


def number_of(value: Any, name: str) -> float:
    """A finite number of seconds, 0 or more."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError(f"'{name}' holds {value!r:.40}, not a number of seconds")
    return float(value)


def samples_of(line: dict[str, Any], name: str) -> list[float]:
    """A list of seconds, [] unless given."""
    values = line.get(name, [])
    if not isinstance(values, list):
        raise ValueError(f"'{name}' is not a list")
    plain = set(map(type, values)) <= {float} and all(map(math.isfinite, values))
    if plain and min(values, default=0.0) >= 0:  # the usual case, at the speed of C
        return values
    return [number_of(value, name) for value in values]


def latency_of(line: dict[str, Any], status: str, samples: list[float]) -> float | None:
    """The median, more than 0; fills in the only sample where just the latency is given."""
    given = line.get("latency_s")
    if status != "ok":
        if given is not None:
            raise ValueError(f"has a latency, but its status is '{status}'")
        return None
    if given is None and not samples:
        raise ValueError("is ok, but has neither 'latency_s' nor 'samples'")
    if not samples:
        samples.append(number_of(given, "latency_s"))
    middle = samples[0] if len(samples) == 1 else median(samples)
    if given is not None and not math.isclose(number_of(given, "latency_s"), middle, rel_tol=1e-9):
        raise ValueError(f"'latency_s' is {given!r}, the median of its samples {middle!r}")
    if middle <= 0:
        raise ValueError("is ok, but took 0 s: a clock that is too coarse tells no latency")
    return middle


def config_of(line: dict[str, Any]) -> str:
    """The canonical key of the configuration."""
    config = line.get("config")
    if not isinstance(config, dict):
        raise ValueError("has no 'config', or one that is not an object")
    for name, value in config.items():
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise ValueError(f"knob '{name}' of its 'config' is neither integer nor text")
    return _canonical(config)
