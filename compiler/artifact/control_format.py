"""Loops, branches and moves in an artifact's manifest: written, and read as what nobody trusts.

Invariants: what is read reads as it was written; no move of any iteration, and no flag or number
that a loop looks at, lies outside its region; nothing writes among the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilesmith.compiler.graph.graph import ENDLESS
from tilesmith.compiler.recipe.program import (
    NOWHERE,
    BranchStep,
    DeviceStep,
    LoopStep,
    MoveStep,
    Place,
)
from tilesmith.search_space.support.errors import ModelError


def control_json(
    step: MoveStep | LoopStep | BranchStep, write: Callable[[DeviceStep], Any]
) -> dict[str, Any]:
    """A step as JSON; `write` does the same for steps of every kind."""
    match step:
        case MoveStep():
            return {
                "move": step.nbytes,
                "source": [*_json(step.source), step.source_step],
                "target": [*_json(step.target), step.target_step],
                "counter": _json(step.counter),
                **({"name": step.name} if step.name else {}),
            }
        case LoopStep():
            return {
                "loop": step.name,
                "trips": step.trips,
                "limit": _json(step.limit),
                "test": _json(step.test),
                "counter": _json(step.counter),
                "steps": [write(inner) for inner in step.steps],
                **sources_json(step.sources),
            }
        case BranchStep():
            branches = [[write(inner) for inner in branch] for branch in step.steps]
            test = _json(step.test)
            fields = {"branch": step.name, "test": test, "steps": branches}
            return {**fields, **sources_json(step.sources)}


def sources_json(sources: tuple[str, ...]) -> dict[str, Any]:
    """Names of the model's nodes, where there are any."""
    return {"sources": list(sources)} if sources else {}


def read_sources(raw: Any) -> tuple[str, ...]:
    """What `sources_json` wrote; artifacts of older versions have none."""
    return tuple(map(str, raw.get("sources", ())))


def _json(place: Place) -> list[Any]:
    return [place.region, place.offset]


class ControlReader:
    """Reads steps.

    Args:
        regions: sizes of the memories a place may lie in.
        damaged: makes the error that says what is wrong.
        read: reads a step of any kind inside another.
    """

    def __init__(
        self,
        regions: Mapping[str, int],
        damaged: Callable[[str], ModelError],
        read: Callable[[Any], DeviceStep],
    ) -> None:
        self._regions, self._damaged, self._read = regions, damaged, read

    def step(self, raw: Any) -> DeviceStep:
        """A loop, a branch or a move. Raises `ModelError` if it is damaged."""
        if "move" in raw:
            return self._move(raw)
        if "branch" in raw:
            first, second = (tuple(map(self._read, branch)) for branch in raw["steps"])
            if any(isinstance(s, MoveStep) and s.counter != NOWHERE for s in (*first, *second)):
                raise self._damaged("a move counts with no loop")
            name, test = str(raw["branch"]), self._place(raw["test"], 1)
            return BranchStep(name, test, (first, second), read_sources(raw))
        trips = raw["trips"]
        if not _is_whole(trips) or not 0 <= trips <= ENDLESS:
            raise self._damaged(f"a loop runs {trips!r} times")
        loop = LoopStep(
            str(raw["loop"]),
            trips,
            self._place(raw["limit"], 8, optional=True),
            self._place(raw["test"], 1, optional=True),
            self._place(raw["counter"], 8, written=True),
            tuple(map(self._read, raw["steps"])),
            read_sources(raw),
        )
        self._check_moves(loop)
        return loop

    def _move(self, raw: Any) -> MoveStep:
        nbytes = raw["move"]
        *source, source_step = raw["source"]
        *target, target_step = raw["target"]
        if not all(map(_is_whole, (nbytes, source_step, target_step))) or nbytes < 0:
            raise self._damaged(f"a move of {nbytes!r} bytes")
        counter = self._place(raw["counter"], 8, optional=True)
        if (source_step or target_step) and counter == NOWHERE:
            raise self._damaged("a move goes on, and nothing counts")
        return MoveStep(
            self._place(source, nbytes), self._place(target, nbytes, written=True), nbytes,
            source_step, target_step, counter, str(raw.get("name", "")),
        )  # fmt: skip

    def _check_moves(self, loop: LoopStep) -> None:
        """Every move that counts with the loop stays in its region to the last iteration."""
        for move in loop.steps:
            if not isinstance(move, MoveStep) or move.counter == NOWHERE:
                continue
            if move.counter != loop.counter:
                raise self._damaged("a move counts with another loop than its own")
            for place, step in (
                (move.source, move.source_step),
                (move.target, move.target_step),
            ):
                last = place.offset + step * max(0, loop.trips - 1)
                if last < 0 or last + move.nbytes > self._regions[place.region]:
                    raise self._damaged(f"a loop moves what ends behind the {place.region}")

    def _place(self, raw: Any, nbytes: int, optional: bool = False, written: bool = False) -> Place:
        region, offset = raw
        if optional and (region, offset) == ("none", 0):
            return NOWHERE
        if region not in self._regions or (written and region != "arena"):
            raise self._damaged(f"a loop or branch names the region {region!r}")
        if not _is_whole(offset) or not 0 <= offset <= self._regions[region] - nbytes:
            raise self._damaged(f"a loop or branch uses what lies behind the {region}")
        return Place(str(region), offset)  # type: ignore[arg-type]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
