"""Files of fully measured search spaces, as the autotuning community exchanges them.

Two formats, plain or gzipped: T4 ("Open Autotuning Results Schema" 1.0.0, Torring et al., 2023,
the format of Kernel Tuner's benchmark hub) and Kernel Tuner's own cache files, which may lack
their last brackets because a run appends to them. What a trial took is told by parts; their
unit is `metadata.timeunit` in T4 (seconds where it is left out) and milliseconds in caches.

A file is somebody else's: it is read up to a bound, nothing in it is executed, and what does not
fit is an `InputError`.
"""

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilesmith.search_space.results.measure import MeasureResult, Status
from tilesmith.search_space.spaces.config import KnobValue
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import ending
from tilesmith.tuner.ledgers.recorded_space import RecordedSpace

MOST_BYTES = 1 << 30
"""Of a file, unpacked."""
_PIECE = 1 << 20
_ENDS = ("", "}}", "}\n}", "\n}\n}")

_UNITS = {
    "s": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "miliseconds": 1e-3,
    "us": 1e-6, "microseconds": 1e-6, "ns": 1e-9, "nanoseconds": 1e-9,
}  # fmt: skip
_STATUSES: dict[str, Status] = {
    "timeout": "timeout", "compile": "compile", "runtime": "crash", "correctness": "wrong",
    "constraints": "constraint",
}  # fmt: skip
_ERRORS = {
    "InvalidConfig": "constraints",
    "CompilationFailedConfig": "compile",
    "RuntimeFailedConfig": "runtime",
}
"""What Kernel Tuner's caches call failures, as T4 does."""
_FEWER, _MORE = ("time", "duration", "energy"), ("flop", "/s", "score", "throughput", "bandwidth")
"""What the names of objectives tell of their direction."""


@dataclass(frozen=True)
class RecordedTrial:
    """One result of a file.

    Attributes:
        values: of the tuning parameters.
        failure: T4's word for why it is invalid, "" where it is not.
        measured: the numbers that were measured, by name, as they stand in the file; with their
            units.
        parts: seconds by part of the trial (compilation, validation, runtimes, ...).
        runs: seconds of each invocation.
    """

    values: Mapping[str, KnobValue]
    failure: str
    measured: Mapping[str, tuple[float, str]]
    parts: Mapping[str, float]
    runs: tuple[float, ...]


@dataclass(frozen=True)
class RecordedFile:
    """The trials of a file, and what they were to minimise or maximise."""

    name: str
    trials: tuple[RecordedTrial, ...]
    objective: str
    unit: str

    def space(self, objective: str = "") -> RecordedSpace:
        """The search space with its results.

        Samples are the objective: seconds where it is a time, the number itself where it is another
        that is to be small, its reciprocal where it is to be large; `warm_samples` are the
        invocations.

        Args:
            objective: name of a measurement, with "min:" or "max:" before it where the name does
                not tell; "": the file's.

        Raises:
            InputError: no such measurement, or its direction is not known.
        """
        name, larger = _direction(objective or self.objective, self.name)
        names = list(self.trials[0].values)
        for trial in self.trials:
            if list(trial.values) != names and set(trial.values) != set(names):
                raise self._bad("its results do not all have the same parameters")
        results = [self._result(trial, name, larger) for trial in self.trials]
        if not any(result.ok for result in results):
            known = sorted({objective for trial in self.trials for objective in trial.measured})
            raise self._bad(
                f"no result of it has a valid '{name}'; measured were: {', '.join(known) or '-'}"
            )
        columns = {knob: [trial.values[knob] for trial in self.trials] for knob in names}
        return RecordedSpace.of(self.name, columns, results)

    def _result(self, trial: RecordedTrial, name: str, larger: bool) -> MeasureResult:
        took = sum(trial.parts.values())
        measurement = trial.measured.get(name)
        if trial.failure or measurement is None:
            status = _STATUSES.get(trial.failure, "crash")
            message = f"recorded as '{trial.failure or 'not measured'}'"
            return MeasureResult(status, "hardware", message=message, elapsed=took)
        value, unit = measurement
        if value <= 0:
            raise self._bad(f"'{name}' of a result is {value:g}; a search compares ratios")
        time = not larger and (unit.lower() in _UNITS or "time" in name.lower())
        scale = _UNITS.get(unit.lower(), _UNITS[self.unit]) if time else 1.0
        cost = 1.0 / value if larger else value * scale
        return MeasureResult("ok", "hardware", (cost,), warm_samples=trial.runs, elapsed=took)

    def _bad(self, what: str) -> InputError:
        return InputError(f"recorded space '{self.name}': {what}")


def read_recorded(path: str | Path) -> RecordedFile:
    """The trials of a T4 file or of a Kernel Tuner cache, plain or gzipped.

    Raises:
        InputError: it cannot be read, is too large, or is neither.
    """
    name = Path(path).name
    for suffix in (".gz", ".json"):
        name = name.removesuffix(suffix)
    document = _document(Path(path))
    try:
        if isinstance(document, dict) and isinstance(document.get("results"), list):
            return _t4(name, document)
        if isinstance(document, dict) and isinstance(document.get("cache"), dict):
            return _cache(name, document)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(
            f"'{path}' does not keep to the schema of recorded spaces: {type(error).__name__} "
            f"{str(error)[:80]}"
        ) from error
    raise InputError(
        f"'{path}' is no recorded space: a T4 file has a list 'results', a cache of Kernel Tuner "
        "an object 'cache'"
    )


def _document(path: Path) -> Any:
    try:
        text = _unpacked(path).decode()
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from error
    except (zlib.error, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' is damaged: {str(error)[:80]}") from error
    stripped = text.rstrip().rstrip(",")
    for end in _ENDS:
        try:
            return json.loads(stripped + end)
        except json.JSONDecodeError as error:
            reason = str(error)
        except (RecursionError, ValueError) as error:
            raise InputError(f"'{path}' is no JSON that can be read: {error}") from error
    raise InputError(f"'{path}' is no JSON: {reason}")


def _unpacked(path: Path) -> bytes:
    """A file's bytes, unpacked if they are gzipped, never more than `MOST_BYTES`."""
    content = bytearray()
    with ending(path).open("rb") as file:
        piece = file.read(_PIECE)
        packed = piece.startswith(b"\x1f\x8b")
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while piece:
            if packed:
                content += unpacker.decompress(piece, _PIECE)
                piece = unpacker.unconsumed_tail or file.read(_PIECE)
            else:
                content += piece
                piece = file.read(_PIECE)
            if len(content) > MOST_BYTES:
                raise InputError(
                    f"'{path}' has more than {MOST_BYTES >> 20} MiB unpacked; no recorded space "
                    "of that size is read"
                )
        if packed and not unpacker.eof:
            raise EOFError("it ends before its end")
    return bytes(content)


def _t4(name: str, document: Mapping[str, Any]) -> RecordedFile:
    unit = str((document.get("metadata") or {}).get("timeunit", "seconds")).lower()
    if unit not in _UNITS:
        raise ValueError(f"time unit '{unit[:20]}' is not known")
    scale = _UNITS[unit]
    trials, objective = [], ""
    for result in document["results"]:
        asked = result.get("objectives") or ()
        objective = objective or (str(asked[0]) if asked else "")
        runs = tuple(scale * x for x in _numbers(result["times"].get("runtimes", ())))
        failure = str(result["invalidity"])
        failure = "" if failure == "correct" else failure
        trials.append(
            RecordedTrial(
                _values(result["configuration"]),
                failure,
                {
                    str(m["name"]): (float(m["value"]), str(m.get("unit", "")))
                    for m in result.get("measurements", ())
                    if _is_number(m["value"])
                },
                {part: scale * sum(_numbers(took)) for part, took in result["times"].items()},
                runs,
            )
        )
    if not trials:
        raise ValueError("it has no results")
    return RecordedFile(name, tuple(trials), objective or "time", unit)


_CACHE_PARTS = {
    "compile_time": "compilation",
    "verification_time": "validation",
    "framework_time": "framework",
    "strategy_time": "search_algorithm",
}


def _cache(name: str, document: Mapping[str, Any]) -> RecordedFile:
    knobs = [str(knob) for knob in document["tune_params_keys"]]
    objective = document.get("objective", "time")
    objective = objective[0] if isinstance(objective, list) else objective
    trials = []
    for result in document["cache"].values():
        verdict = result.get("__error__", result.get(objective, "RuntimeFailedConfig"))
        failure = "" if _is_number(verdict) else _ERRORS.get(str(verdict), "runtime")
        runs = tuple(1e-3 * x for x in _numbers(result.get("times", ())))
        parts = {
            part: 1e-3 * sum(_numbers(result.get(key, 0.0))) for key, part in _CACHE_PARTS.items()
        }
        measured = {
            str(key): (float(value), "ms" if str(key) == "time" else "")
            for key, value in result.items()
            if key not in knobs and _is_number(value)
        }
        values = _values({knob: result[knob] for knob in knobs})
        trials.append(RecordedTrial(values, failure, measured, {**parts, "runs": sum(runs)}, runs))
    if not trials:
        raise ValueError("it has no results")
    return RecordedFile(name, tuple(trials), str(objective), "ms")


def _values(configuration: Mapping[str, Any]) -> dict[str, KnobValue]:
    """Tuning parameters; numbers that are no integers become texts."""
    values: dict[str, KnobValue] = {}
    for knob, value in configuration.items():
        if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
            value = int(value)
        if isinstance(value, int):
            values[str(knob)] = int(value)
        elif isinstance(value, float | str):
            values[str(knob)] = str(value)
        else:
            raise ValueError(f"parameter '{str(knob)[:40]}' is neither a number nor a text")
    if not values:
        raise ValueError("a result has no parameters")
    return values


def _is_number(value: Any) -> bool:
    """Whether it is a measurement; Kernel Tuner writes 1e20 for what failed."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value) and value != 1e20


def _numbers(value: Any) -> Iterator[float]:
    """The finite, non-negative numbers among one or several."""
    several = value if isinstance(value, list | tuple) else (value,)
    return (float(x) for x in several if _is_number(x) and x >= 0)


def is_larger_better(objective: str) -> bool | None:
    """What the name of an objective tells; None: nothing."""
    if any(word in objective.lower() for word in _FEWER):
        return False
    return True if any(word in objective.lower() for word in _MORE) else None


def _direction(objective: str, file: str) -> tuple[str, bool]:
    """An objective's name, and whether more of it is better."""
    way, colon, name = objective.partition(":")
    if colon and way in ("min", "max"):
        return name, way == "max"
    if (larger := is_larger_better(objective)) is not None:
        return objective, larger
    raise InputError(
        f"recorded space '{file}': whether '{objective}' is to be small or large is not known; "
        f"name it min:{objective} or max:{objective}"
    )
