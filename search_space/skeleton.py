"""Skeletons: what schedules have in common that differ in nothing but settings.

A *setting* is which engine executes a stage, how deep a loop is pipelined, or how many places a
tile takes in turn. None changes a loop or an index, so schedules that differ in nothing else are
lowered once: their skeleton leaves the settings open, and `filled` puts them in.

    skeleton, settings = parted(schedule)
    filled(lower(skeleton), settings) == lower(schedule)

Where knobs are settings themselves (`Knob.setting`), their values need not be scheduled one by one:
the schedule of a `marked` structure has the skeleton of them all.

Invariant: an open setting, number i of a schedule, is `-1 - i` where a number stands (real ones
are positive) and `#i` where an engine does; no schedule or program outside a skeleton has any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from search_space.config import Config, KnobValue
from search_space.program import Allocate, Block, If, Intrinsic, Loop, Program, Statement
from search_space.program import Sequence as Statements
from search_space.schedule import AssignEngine, Pipeline, Primitive, Rotate, Schedule

Setting = int | str
Settings = tuple[Setting, ...]


def parted(schedule: Schedule) -> tuple[Schedule, Settings]:
    """A schedule's skeleton, and its settings in the order of their primitives."""
    primitives: list[Primitive] = []
    settings: list[Setting] = []
    for primitive in schedule.primitives:
        match primitive:
            case Pipeline(stage, loop, depth):
                primitives.append(Pipeline(stage, loop, -1 - len(settings)))
                settings.append(depth)
            case Rotate(stage, places):
                primitives.append(Rotate(stage, -1 - len(settings)))
                settings.append(places)
            case AssignEngine(stage, engine):
                primitives.append(AssignEngine(stage, f"#{len(settings)}"))
                settings.append(engine)
            case _:
                primitives.append(primitive)
    return replace(schedule, primitives=tuple(primitives)), tuple(settings)


def open_number(number: int) -> int | None:
    """Which setting a number of a skeleton stands for; None where it is a number."""
    return -1 - number if number < 0 else None


def open_engine(engine: str) -> int | None:
    """Which setting an engine of a skeleton stands for; None where it is an engine, or none."""
    return int(engine[1:]) if engine.startswith("#") else None


def marked(structure: Config, names: Sequence[str]) -> Config:
    """A structure with the settings of these names left open, each by its place among them."""
    places = {name: place for place, name in enumerate(names)}
    return Config(
        tuple(
            (name, _mark(value, places[name]) if name in places else value)
            for name, value in structure.items_
        )
    )


def _mark(value: KnobValue, place: int) -> KnobValue:
    return -1 - place if isinstance(value, int) else f"#{place}"


def settled(settings: Settings, structure: Config, names: Sequence[str]) -> Settings:
    """Settings of a marked structure's schedule, what is open taken from the structure itself."""
    found: list[Setting] = []
    for setting in settings:
        place = open_number(setting) if isinstance(setting, int) else open_engine(setting)
        found.append(setting if place is None else structure[names[place]])
    return tuple(found)


def filled(program: Program, settings: Sequence[Setting]) -> Program:
    """A skeleton's program with these settings."""
    fill = _Filling(settings)
    prologue = None if program.prologue is None else fill.statement(program.prologue)
    return replace(program, body=fill.statement(program.body), prologue=prologue)


@dataclass(frozen=True)
class _Filling:
    """Puts settings into statements; those that have none open are returned as they are."""

    settings: Sequence[Setting]

    def statement(self, statement: Statement) -> Statement:
        match statement:
            case Block(engine=engine):
                place = open_engine(engine)
                if place is None:
                    return statement
                return replace(statement, engine=str(self.settings[place]))
            case Loop(variable, extent, kind, body, stages):
                return Loop(variable, extent, kind, self.statement(body), self.number(stages))
            case Allocate(buffer, body):
                made = replace(buffer, versions=self.number(buffer.versions))
                return Allocate(made, self.statement(body))
            case Statements(statements):
                return Statements(tuple(map(self.statement, statements)))
            case If(condition, then, otherwise):
                other = None if otherwise is None else self.statement(otherwise)
                return If(condition, self.statement(then), other)
            case Intrinsic(name, body):
                return Intrinsic(name, self.statement(body))

    def number(self, number: int) -> int:
        place = open_number(number)
        return number if place is None else int(self.settings[place])
