"""The file of a pack: JSON Lines, one machine or one schedule a line, in one order.

    {"format": "tilesmith-pack", "version": 1}
    {"machine": "cpu-1f0c2a9b", "model": "AMD EPYC 9R14", "name": "cpu", "facts": {...}, ...}
    {"target": "cpu-1f0c2a9b", "workload": "matmul m=8 n=8 k=8", "config": {...},
     "samples": [1.2e-05], "default_s": 2.1e-05, "measured_by": "hardware", ...}

The fields of a schedule are those of an export (docs/database.md), with the default's latency and
how the schedule was found. Equal packs are equal files, so that git shows what changed.

Invariant: what is read is a `Pack` or one sentence, whatever the file holds; whether a
configuration is legal in its workload's space is asked where it is used (`packs.lookup`) and by
`tilesmith pack check`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast, get_args

from tilesmith.capabilities.packs.pack import Pack, PackedMachine, PackedSchedule
from tilesmith.codegen.host.machine import cpu_target
from tilesmith.compiler.artifact.signature import verified
from tilesmith.records.exchange import fields
from tilesmith.records.trials.record import TuningRecord
from tilesmith.search_space.hardware.target import HOST, Target, load_target
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError, TargetError, TilesmithError
from tilesmith.search_space.support.files import ending, written
from tilesmith.search_space.workloads.workload import canonical_key

FORMAT = "tilesmith-pack"
VERSION = 1

SUFFIX = ".jsonl"

LARGEST = 256 << 20
"""Bytes of a pack that is read: more is no pack."""

_SAMPLES = 9
"""Samples of a schedule that are kept: their median, and how far they spread."""
_DIGITS = 4
"""Of a sample; a clock and a machine tell no more."""

_SCHEDULE = {
    "target", "workload", "threads", "measured_by", "input_layout", "output_layout", "calibration",
    "toolchain", "config", "samples", "default_s", "schedule", "created_at",
}  # fmt: skip
_MACHINE = {"machine", "model", "name", "family", "facts"}
_ORIGINS = (Origin.SEARCHED, Origin.MEASURED)

_KEY = re.compile(r"[!-~]+( [!-~]+)*")
_HUGE = re.compile(r"\d{16}")
_LONGEST_KEY = 4000


def read_pack(path: Path, trusted_key: Path | None = None) -> Pack:
    """A pack from its file.

    Args:
        trusted_key: public key whose owner has to have signed it (`compiler.artifact.signature`).

    Raises:
        InputError: the file cannot be read, is no pack, is of a newer version, or a line is wrong;
            it is not signed so.
    """
    if path.is_dir():
        raise InputError(f"'{path}' is a folder, not a pack; name a file such as pack{SUFFIX}")
    if trusted_key is not None:
        return pack_of(verified(path, trusted_key, "pack"), str(path))
    try:
        with ending(path).open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(f"pack '{path}' cannot be read: {error.strerror}") from error
    return pack_of(content, str(path))


def pack_of(content: bytes, name: str) -> Pack:
    """A pack from the bytes of its file; errors as `read_pack`."""
    if len(content) > LARGEST:
        raise InputError(f"'{name}' has more than {LARGEST >> 20} MiB, which no pack has")
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"'{name}' is not a pack: it is not UTF-8") from error
    _check_header(lines[0] if lines else "", name)
    machines: dict[str, PackedMachine] = {}
    schedules: dict[tuple[Any, ...], PackedSchedule] = {}
    for number, text in enumerate(lines[1:], start=2):
        try:
            line = fields.object_in(text)
            if "machine" in line:
                machine = _machine(line)
                machines[machine.identity] = machine
                continue
            schedule = _schedule(line, machines)
            if schedules.setdefault(schedule.key, schedule) is not schedule:
                raise ValueError("repeats the workload, machine and layouts of an earlier one")
        except ValueError as error:
            raise InputError(
                f"line {number} of pack '{name}' {fields.reason_of(error)}; make the pack again"
            ) from error
    return Pack.of(Path(name).name, machines.values(), schedules.values())


def lines_of(pack: Pack) -> Iterator[str]:
    """The lines of a pack's file, without their ends."""
    yield _compact({"format": FORMAT, "version": VERSION})
    for machine in pack.machines:
        model = {"model": machine.model} if machine.model else {}
        target = machine.target
        facts = {name: fact.value for name, fact in target.facts}
        described = {"name": target.name, "family": target.family, "facts": facts}
        yield _compact({"machine": machine.identity, **model, **described})
    for schedule in pack.schedules:
        yield _compact(_line(schedule))


def write_pack(pack: Pack, path: Path) -> int:
    """Write a pack's file; returns its bytes. Errors as `written`."""
    content = "".join(f"{line}\n" for line in lines_of(pack)).encode()
    with written(path) as stream:
        stream.write(content)
    return len(content)


def rounded(record: TuningRecord) -> TuningRecord:
    """A record as a pack keeps it: few samples of few digits, a day, and no host."""
    result = record.result
    ordered = sorted(result.samples)
    last, kept = len(ordered) - 1, min(len(ordered), _SAMPLES)
    places = [round(i * last / max(1, kept - 1)) for i in range(kept)]
    samples = tuple(float(f"{ordered[i]:.{_DIGITS}g}") for i in places)
    day = record.created_at
    return replace(
        record,
        result=MeasureResult(result.status, result.measured_by, samples),
        host="",
        job=None,
        id=None,
        created_at=day and day.replace(hour=0, minute=0, second=0, microsecond=0),
    )


_compact = json.JSONEncoder(separators=(",", ":")).encode


def _line(schedule: PackedSchedule) -> dict[str, Any]:
    record = schedule.record
    layouts = zip(("input_layout", "output_layout"), record.layouts, strict=True)
    dated = {"created_at": f"{record.created_at:%Y-%m-%d}"} if record.created_at else {}
    return {
        "target": record.target_identity,
        "workload": record.workload_key,
        **({"threads": record.threads} if record.threads != 1 else {}),
        **{name: layout for name, layout in layouts if layout},
        "config": dict(record.config),
        "samples": list(record.result.samples),
        "default_s": schedule.default_s,
        "schedule": str(schedule.origin),
        "measured_by": record.result.measured_by,
        **({"calibration": record.calibration} if record.calibration else {}),
        **dated,
        "toolchain": record.toolchain.to_dict() if record.toolchain else {},
    }


def _check_header(text: str, name: str) -> None:
    try:
        header = fields.object_in(text)
    except ValueError:
        header = {}
    if header.get("format") != FORMAT:
        raise InputError(
            f'\'{name}\' is not a pack: its first line is not a header with "format": "{FORMAT}"; '
            "tilesmith pack make writes one"
        )
    version = header.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise InputError(
            f"pack '{name}' has version {str(version)[:40]!r} of the format and this Tilesmith "
            f"reads up to {VERSION}; upgrade with 'pip install -U tilesmith'"
        )


def _machine(line: dict[str, Any]) -> PackedMachine:
    _only(line, _MACHINE)
    identity = fields.text_of(line, "machine")
    facts = line.get("facts")
    if not isinstance(facts, dict):
        raise ValueError("has no 'facts', or some that are no object")
    try:
        target = _target(fields.text_of(line, "name"), fields.text_of(line, "family"), facts)
    except TilesmithError as error:
        raise ValueError(f"describes no machine: {error}") from error
    if target.identity != identity:
        raise ValueError(f"calls the machine '{target.identity}' {identity[:40]!r}")
    return PackedMachine(target, fields.text_of(line, "model", ""))


def _target(name: str, family: str, facts: dict[str, Any]) -> Target:
    """What a machine is, each fact of the kind and in the range that this installation knows."""
    if family != HOST:
        if not name.isidentifier():
            raise TargetError(f"{name[:40]!r} is the name of no target")
        known = load_target(name)
        return known.with_settings(_other(known, facts)).uncalibrated
    isa, triple, processor, features = (str(facts.get(f"isa.{part}", "")) for part in
                                        ("name", "triple", "processor", "features"))  # fmt: skip
    if not isa.replace("_", "").isalnum():
        raise TargetError(f"{isa[:40]!r} is the name of no instruction set")
    known = cpu_target(name, isa, triple, processor, features)
    return known.with_settings(_other(known, facts)).uncalibrated


def _other(known: Target, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts that are not as they are known."""
    same = {name: fact.value for name, fact in known.facts}
    return {name: value for name, value in facts.items() if same.get(name) != value}


def _schedule(line: dict[str, Any], machines: dict[str, PackedMachine]) -> PackedSchedule:
    _only(line, _SCHEDULE)
    identity = fields.text_of(line, "target")
    if identity not in machines:
        raise ValueError(f"is of '{identity}', a machine that no line above describes")
    toolchain = line.get("toolchain", {})
    if not isinstance(toolchain, dict):
        raise ValueError("'toolchain' is not an object")
    samples = fields.samples_of(line, "samples")
    fields.latency_of(line, "ok", samples)
    way = cast(MeasuredBy, fields.one_of(line, "measured_by", get_args(MeasuredBy)))
    default_s = fields.number_of(line.get("default_s"), "default_s")
    if not default_s:
        raise ValueError("has a default that takes 0 s")
    record = TuningRecord(
        _key(line),
        identity,
        Config.from_json(fields.config_of(line)),
        MeasureResult("ok", way, tuple(samples)),
        fields.threads_of(line),
        fields.text_of(line, "input_layout", ""),
        fields.text_of(line, "output_layout", ""),
        fields.text_of(line, "calibration", ""),
        fields.toolchain_of(toolchain),
        created_at=_day(line),
    )
    return PackedSchedule(record, default_s, Origin(fields.one_of(line, "schedule", _ORIGINS)))


def _key(line: dict[str, Any]) -> str:
    """A workload's key: words of printable ASCII, no number that is no extent."""
    key = fields.text_of(line, "workload")
    if len(key) > _LONGEST_KEY or not _KEY.fullmatch(key) or _HUGE.search(key):
        raise ValueError(f"'workload' is {key[:40]!r}, which is the key of no workload")
    return canonical_key(key)


def _day(line: dict[str, Any]) -> datetime | None:
    if "created_at" not in line:
        return None
    said = fields.text_of(line, "created_at")
    try:
        return datetime.fromisoformat(said).replace(tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"'created_at' is {said[:40]!r}, not a day such as 2026-01-31") from error


def _only(line: dict[str, Any], known: Iterable[str]) -> None:
    if unknown := line.keys() - set(known):
        raise ValueError(f"has the unknown key {min(unknown)[:40]!r}")
