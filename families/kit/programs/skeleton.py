"""Skeletons: what schedules have in common that differ in nothing but settings.

A *setting* is which engine executes a stage, how deep a loop is pipelined, or how many places a
tile takes in turn. None changes a loop or an index, so schedules that differ in nothing else are
lowered once: the program of their skeleton leaves the settings open (`search_space.ir.settings`).

    skeleton, settings = parted(schedule)
    lower(skeleton) == lower(schedule), but for settings[i] where setting i is open

Where knobs are settings themselves (`Knob.setting`), their values need not be scheduled one by one:
the schedule of a `marked` structure has the skeleton of them all.

Invariant: no schedule or program outside a skeleton has an open setting.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir import program as ir
from tilesmith.search_space.ir.settings import Setting, Settings, open_engine, open_number
from tilesmith.search_space.ir.verification.machine_rules import MachineRules
from tilesmith.search_space.scheduling.schedule import (
    AssignEngine,
    Pipeline,
    Primitive,
    Rotate,
    Schedule,
)
from tilesmith.search_space.spaces.config import Config, KnobValue


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


def verify_settings(program: ir.Program, target: Target, settings: Settings) -> None:
    """Check what settings decide of a verified program: places, depths, engines.

    Raises:
        VerificationError: naming the block, buffer or loop, and the rule or limit that is broken.
    """
    rules = MachineRules(target, settings)
    for statement in ir.walk(program.body):
        match statement:
            case ir.Loop():
                rules.loop(statement)
            case ir.Allocate(buffer, _):
                rules.buffer(buffer)
                rules.place(buffer)
                rules.leave(buffer)
            case ir.Block():
                rules.engine(statement)
            case _:
                pass


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
    values: list[Setting] = []
    for setting in settings:
        place = open_number(setting) if isinstance(setting, int) else open_engine(setting)
        values.append(setting if place is None else structure[names[place]])
    return tuple(values)
