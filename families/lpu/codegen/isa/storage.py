"""Schedules as bytes and back: what an artifact stores of a program.

One line of JSON (names, tensors, regions, units), then the table of bursts, little-endian.
Invariants: the same schedule gives the same bytes; what cannot be read is refused. (Whether it
keeps the laws is for `verification` to say.)
"""

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Operation
from tilesmith.families.lpu.codegen.isa import bursts
from tilesmith.search_space.support.errors import ModelError


def to_bytes(schedule: bursts.BurstSchedule) -> bytes:
    """A schedule as bytes."""
    head = {
        "name": schedule.name,
        "rows": len(schedule.table),
        "chains": schedule.chains,
        "order": schedule.order,
        "places": [[p.name, p.rows, p.dtype, p.role] for p in schedule.places],
        "regions": [[r.tensor, r.first, r.rows, r.homes, r.zeros] for r in schedule.regions],
        "units": [_unit(unit) for unit in schedule.units],
    }
    return json.dumps(head).encode() + b"\n" + schedule.table.tobytes()


def _unit(unit: bursts.Unit) -> dict[str, Any]:
    """A unit without what is as by default."""
    plain = bursts.Unit(unit.place)
    return {
        name: value for name, value in asdict(unit).items() if value != getattr(plain, name)
    } | {"place": unit.place}


def from_bytes(content: bytes, chip: Chip) -> bursts.BurstSchedule:
    """The schedule that `to_bytes` wrote.

    Raises:
        ModelError: the bytes are damaged.
    """
    try:
        line, _, binary = content.partition(b"\n")
        head = json.loads(line)
        table = np.frombuffer(binary, bursts.BURST).view(bursts.Table)
        if len(table) != head["rows"]:
            raise ValueError(f"{len(table)} bursts where {head['rows']} are declared")
        schedule = bursts.BurstSchedule(
            str(head["name"]),
            chip,
            table,
            tuple(_read_unit(unit) for unit in head["units"]),
            tuple(bursts.TensorPlace(*place) for place in head["places"]),
            tuple(_region(*region) for region in head["regions"]),
            tuple(head["chains"]),
            tuple(int(place) for place in head["order"]),
        )
        _numbers(schedule)
        return schedule
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(f"the code of a kernel is damaged ({error})") from error


def _region(tensor: str, first: int, rows: int, homes: Any, zeros: bool) -> bursts.Region:
    read = tuple(tuple((int(s), int(b), int(a)) for s, b, a in stripe) for stripe in homes)
    return bursts.Region(tensor, int(first), int(rows), read, bool(zeros))


def _read_unit(raw: dict[str, Any]) -> bursts.Unit:
    fields = dict(raw)
    for name in ("inputs", "outputs"):
        groups = (
            bursts.StreamGroup(**{**g, "streams": tuple(g["streams"])}) for g in raw.get(name, ())
        )
        fields[name] = tuple(groups)
    operations = (
        Operation(**{**o, "operands": tuple(o["operands"])}) for o in raw.get("operations", ())
    )
    fields["operations"] = tuple(operations)
    for name in ("results", "lanes"):
        fields[name] = tuple(raw.get(name, ()))
    return bursts.Unit(**fields)


def _numbers(schedule: bursts.BurstSchedule) -> None:
    """Numbers that are used as indices."""
    table = schedule.table
    for name, most in (
        ("queue", len(schedule.chip.queues)),
        ("unit", len(schedule.units)),
        ("chain", len(schedule.chains)),
        ("op", 12),
        ("tensor", len(schedule.places)),
    ):
        least = -1 if name in ("unit", "tensor") else 0
        if len(table) and not (table[name].min() >= least and table[name].max() < most):
            raise ValueError(f"a burst has a {name} of none of the {most}")
