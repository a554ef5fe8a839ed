"""A skeleton with its settings put in is the program of the schedule they came from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilesmith.codegen.programs.structures import space_of
from tilesmith.families.kit.programs.skeleton import marked, parted, settled
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    If,
    Intrinsic,
    Loop,
    Sequence,
    Statement,
)
from tilesmith.search_space.ir.settings import Settings, open_engine, open_number
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.workload import Workload

ATTENTIONS = [
    "attention m=128 n=128 k=64 heads=4 dtype=bfloat16",
    "attention m=65 n=600 k=64 heads=2 v=40 mask=row dtype=bfloat16",
    "attention m=40 n=70 k=16 batch=2 heads=2 mask=full",
]
WORKLOADS = [
    "attention m=128 n=128 k=64 heads=4 dtype=bfloat16",
    "attention m=65 n=600 k=64 heads=2 v=40 mask=row dtype=bfloat16",
    "matmul m=256 n=640 k=300 tb=1 epilogue=bias",
    "matmul m=100 n=60 k=40 batch=4",
    "conv2d c=5 h=24 w=24 oc=22 kh=7 kw=7 stride=2 pad=3 const=weight",
    "depthwise_conv2d c=40 h=14 w=14 kh=3 kw=3 pad=1",
    "softmax shape=256x100",
]


def schedules(text: str, count: int) -> list[Schedule]:
    workload, target = Workload.parse(text), load_target("trn1")
    space = space_of(workload, target)
    drawn = dict.fromkeys(map(space.structure, space.sample(np.random.default_rng(3), count)))
    return [
        scheduler_of(workload, target).schedule(workload, target, structure) for structure in drawn
    ]


def filled(statement: Statement, settings: Settings) -> Statement:
    """A skeleton's statement with its settings put in."""

    def number(found: int) -> int:
        place = open_number(found)
        return found if place is None else int(settings[place])

    match statement:
        case Block(engine=engine):
            place = open_engine(engine)
            return statement if place is None else replace(statement, engine=str(settings[place]))
        case Loop(body=body, stages=stages):
            return replace(statement, body=filled(body, settings), stages=number(stages))
        case Allocate(buffer, body):
            made = replace(buffer, versions=number(buffer.versions))
            return Allocate(made, filled(body, settings))
        case Sequence(statements):
            return Sequence(tuple(filled(one, settings) for one in statements))
        case If(condition, then, otherwise):
            other = None if otherwise is None else filled(otherwise, settings)
            return If(condition, filled(then, settings), other)
        case Intrinsic(name, body):
            return Intrinsic(name, filled(body, settings))


@pytest.mark.parametrize("text", WORKLOADS)
def test_a_filled_skeleton_is_the_lowered_schedule(text: str) -> None:
    for schedule in schedules(text, 6):
        skeleton, settings = parted(schedule)
        open_, whole = lower(skeleton), lower(schedule)
        assert filled(open_.body, settings) == whole.body
        assert (open_.parameters, open_.prologue) == (whole.parameters, whole.prologue)


@pytest.mark.parametrize("text", ATTENTIONS)
def test_knobs_that_are_settings_reach_the_schedule_as_they_are(text: str) -> None:
    workload, target = Workload.parse(text), load_target("trn1")
    space = space_of(workload, target)
    names = space.setting_knobs
    assert {"copies", "keys"} <= set(names)
    for config in space.sample(np.random.default_rng(4), 12):
        structure = space.structure(config)
        open_ = scheduler_of(workload, target).schedule(workload, target, marked(structure, names))
        (skeleton, settings), whole = (
            parted(open_),
            scheduler_of(workload, target).schedule(workload, target, structure),
        )
        assert (skeleton, settled(settings, structure, names)) == parted(whole)


def test_schedules_that_differ_in_settings_share_a_skeleton() -> None:
    found = schedules(WORKLOADS[0], 200)
    skeletons = {parted(schedule)[0] for schedule in found}
    assert len({parted(schedule) for schedule in found}) == len(found) > 4 * len(skeletons)
