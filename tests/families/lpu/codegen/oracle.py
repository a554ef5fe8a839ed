"""The laws, looked at cell by cell and cycle by cycle: slow, and knows nothing of intervals.

Every token is moved hop by hop; whatever an instruction takes has to be in the cell beside its
slice in that very cycle. What it shares with the checker is the instruction set alone.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule, depths

Event = tuple[int, int, int, bool, int]  # cycle, place, stream key, last, chain


def broken(schedule: BurstSchedule) -> str:
    """What law is broken, or ""."""
    issued = [
        (row, turn, burst["cycle"] + turn * burst["interval"])
        for row, burst in enumerate(schedule)
        for turn in range(burst["count"])
    ]
    if any(cycle < 0 for _, _, cycle in issued):
        return "before the first cycle"
    bursts = list(schedule)
    return (
        _ports(schedule, bursts, issued)
        or _streams(schedule, bursts, issued)
        or _planes(schedule, bursts)
        or _words(schedule, bursts)
    )


def _ports(schedule: BurstSchedule, bursts: list[dict[str, int]], issued: list[Any]) -> str:
    seen: set[Any] = set()
    kinds = schedule.chip.mxm_queue(1, "load") - schedule.chip.mxm_queue(0, "load")
    for row, turn, cycle in issued:
        burst = bursts[row]
        op, queue = BurstOp(burst["op"]), burst["queue"]
        keys: list[Any] = [("queue", queue, op == BurstOp.WRITE, cycle)]
        if op in (BurstOp.READ, BurstOp.WRITE, BurstOp.GATHER):
            keys.append(("bank", queue, burst["bank"], cycle))
            address = burst["address"] + (turn * burst["step"] if op != BurstOp.GATHER else 0)
            if not 0 <= address < schedule.chip.bank_words:
                return "address"
        elif schedule.units[burst["unit"]].dtype == "float16":
            keys.append(("queue", queue + kinds, False, cycle))
        for key in keys:
            if key in seen:
                return str(key)
            seen.add(key)
    return ""


def _events(
    schedule: BurstSchedule, bursts: list[dict[str, int]]
) -> tuple[list[Event], list[Event]]:
    """Tokens given and taken: cycle at the cell, its position, stream and direction."""
    chip, given, taken = schedule.chip, list[Event](), list[Event]()
    for burst in bursts:
        op, unit = BurstOp(burst["op"]), burst["unit"]
        if op == BurstOp.INSTALL or (op in (BurstOp.ALU, BurstOp.TRANSPOSE) and burst["step"]):
            continue
        chain = burst["chain"]
        for turn in range(burst["count"]):
            cycle = burst["cycle"] + turn * burst["interval"]
            if op in (BurstOp.READ, BurstOp.WRITE, BurstOp.GATHER):
                place, key = chip.places[burst["queue"]], 2 * burst["stream"] + burst["east"]
                if op == BurstOp.WRITE:
                    taken.append((cycle, place, key, bool(burst["last"]), chain))
                else:
                    after = chip.delay("read" if op == BurstOp.READ else "gather")
                    given.append((cycle + after, place, key, False, chain))
            if unit < 0:
                continue
            what = schedule.units[unit]
            for number, group in enumerate(what.inputs):
                if op == BurstOp.LOAD and turn * len(what.inputs) + number >= burst["step"]:
                    continue
                taken += [
                    (cycle, what.place, 2 * s + group.east, group.last, chain)
                    for s in group.streams
                ]
            for number, group in enumerate(what.outputs):
                if op == BurstOp.ALU:
                    level = depths(len(what.inputs), what.operations)
                    deep = level[what.results[number] - len(what.inputs)] + 1
                    after = deep * chip.delay("alu")
                elif op == BurstOp.RECEIVE:
                    after = 0
                else:
                    after = chip.delay(op.name.lower())
                given += [
                    (cycle + after, what.place, 2 * s + group.east, False, chain)
                    for s in group.streams
                ]
    return given, taken


def _streams(schedule: BurstSchedule, bursts: list[dict[str, int]], issued: list[Any]) -> str:
    given, taken = _events(schedule, bursts)
    edge = schedule.chip.mxm_place
    arrivals: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    takers: dict[tuple[int, int], list[tuple[int, bool, int]]] = defaultdict(list)
    for cycle, place, key, _, chain in given:
        arrivals[key, cycle].append((place, chain))
    for cycle, place, key, last, chain in taken:
        takers[key, cycle].append((place, last, chain))
    for key in {k for k, _ in arrivals} | {k for k, _ in takers}:
        cycles = [c for k, c in (*arrivals, *takers) if k == key]
        step, there = (1 if key % 2 else -1), dict[int, int]()
        for cycle in range(min(cycles), max(cycles) + 1):
            there = {p + step: chain for p, chain in there.items() if abs(p + step) <= edge}
            for place, chain in arrivals[key, cycle]:
                if place in there:
                    return f"two tokens in a cell: {key} {place} {cycle}"
                there[place] = chain
            for place, _, chain in takers[key, cycle]:
                if there.get(place) != chain:
                    return f"no token of its own: {key} {place} {cycle}"
            for place in {place for place, last, _ in takers[key, cycle] if last}:
                del there[place]
    return ""


def _planes(schedule: BurstSchedule, bursts: list[dict[str, int]]) -> str:
    """Loads end before their install, which ends before products, one after the other."""
    chip = schedule.chip
    sums = {
        (schedule.units[b["unit"]].plane, b["cycle"], b["count"], b["interval"])
        for b in bursts
        if b["op"] == BurstOp.ACCUMULATE
    }
    moves = {
        (
            schedule.units[b["unit"]].plane, b["cycle"] + chip.delay("product"), b["count"],
            b["interval"],
        )
        for b in bursts
        if b["op"] == BurstOp.MOVE
    }  # fmt: skip
    if sums != moves:
        return "sums"
    loads = {b["unit"]: b["cycle"] + b["count"] for b in bursts if b["op"] == BurstOp.LOAD}
    for b in bursts:
        if b["op"] != BurstOp.INSTALL:
            continue
        plane, end = schedule.units[b["unit"]].plane, b["cycle"] + chip.install
        if b["cycle"] < loads[b["unit"]]:
            return "installed before it is loaded"
        for other in bursts:
            if other["op"] == BurstOp.MOVE and schedule.units[other["unit"]].plane == plane:
                stop = other["cycle"] + (other["count"] - 1) * other["interval"] + 1
                if other["cycle"] < end and b["cycle"] < stop:
                    return "installed under a product"
    return ""


Word = tuple[int, int, int]  # slice, bank, address
Named = tuple[str, int, int]  # tensor, row, byte


def _words(schedule: BurstSchedule, bursts: list[dict[str, int]]) -> str:
    """MEM is played cycle by cycle: reads see the row they name, by the chain that is to write it,
    and so does who looks at outputs and states in the end."""
    order = schedule.order or tuple(range(len(schedule.chains)))
    held, ends = _laid_out(schedule)
    reads: dict[int, list[tuple[Word, Named, int]]] = defaultdict(list)
    writes: dict[int, list[tuple[Word, Named, int]]] = defaultdict(list)
    authors: dict[Named, set[int]] = defaultdict(set)
    for burst in bursts:
        if burst["op"] not in (BurstOp.READ, BurstOp.WRITE, BurstOp.GATHER):
            continue
        gathered = schedule.units[burst["unit"]].k if burst["op"] == BurstOp.GATHER else 0
        tensor, turn_of = schedule.places[burst["tensor"]], order[burst["chain"]]
        for turn in range(burst["count"]):
            cycle = burst["cycle"] + turn * burst["interval"]
            for at in range(gathered) or (turn,):
                row = burst["row"] + at * burst["pitch"]
                if not 0 <= row < tensor.rows:
                    return "no such row"
                address = burst["address"] + at * (1 if gathered else burst["step"])
                access = (burst["queue"], burst["bank"], address), (tensor.name, row, burst["byte"])
                if burst["op"] == BurstOp.WRITE:
                    authors[access[1]].add(turn_of)
                    writes[cycle + schedule.chip.delay("write")].append((*access, turn_of))
                else:
                    reads[cycle].append((*access, turn_of))
    for cycle in sorted({*reads, *writes}):
        held |= {word: (name, turn) for word, name, turn in writes[cycle]}
        for word, name, turn in reads[cycle]:
            wanted = max((author for author in authors[name] if author < turn), default=-1)
            if held.get(word) != (name, wanted):
                return f"another value: {word} {name} {cycle}"
    for word, name, role in ends:
        wanted = max(authors[name], default=-1)
        unwritten = wanted < 0 and role == "output" and held.get(word, (name, -1))[1] < 0
        if held.get(word) != (name, wanted) and not unwritten:
            return f"another value is left: {word} {name}"
    return ""


def _laid_out(
    schedule: BurstSchedule,
) -> tuple[dict[Word, tuple[Named, int]], list[tuple[Word, Named, str]]]:
    """What words hold before the first cycle, and which are looked at after the last."""
    held: dict[Word, tuple[Named, int]] = {}
    ends: list[tuple[Word, Named, str]] = []
    roles = {place.name: place.role for place in schedule.places}
    for region in schedule.regions:
        role = roles[region.tensor]
        for row in range(region.rows):
            word, stripe = divmod(row, len(region.homes))
            for byte, (place, bank, address) in enumerate(region.homes[stripe]):
                at, name = (place, bank, address + word), (region.tensor, region.first + row, byte)
                if role in ("input", "constant", "state") or region.zeros:
                    held[at] = name, -1
                if role in ("output", "state"):
                    ends.append((at, name, role))
    return held, ends
