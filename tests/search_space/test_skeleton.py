"""A skeleton with its settings put in is the program of the schedule they came from."""

from __future__ import annotations

import numpy as np
import pytest

from search_space.lowering import lower
from search_space.program import Allocate, Block, Loop, walk
from search_space.schedule import Schedule
from search_space.skeleton import filled, marked, open_engine, open_number, parted, settled
from search_space.target import load_target
from search_space.template import template_of
from search_space.workload import Workload

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
    template = template_of(workload.operator)
    space = template.space(workload, target)
    drawn = dict.fromkeys(map(space.structure, space.sample(np.random.default_rng(3), count)))
    return [template.schedule(workload, target, structure) for structure in drawn]


@pytest.mark.parametrize("text", WORKLOADS)
def test_a_filled_skeleton_is_the_lowered_schedule(text: str) -> None:
    for schedule in schedules(text, 6):
        skeleton, settings = parted(schedule)
        assert filled(lower(skeleton), settings) == lower(schedule)


@pytest.mark.parametrize("text", ATTENTIONS)
def test_knobs_that_are_settings_reach_the_schedule_as_they_are(text: str) -> None:
    workload, target = Workload.parse(text), load_target("trn1")
    template = template_of(workload.operator)
    space = template.space(workload, target)
    names = space.setting_knobs
    assert {"copies", "keys"} <= set(names)
    for config in space.sample(np.random.default_rng(4), 12):
        structure = space.structure(config)
        open_ = template.schedule(workload, target, marked(structure, names))
        (skeleton, settings), whole = parted(open_), template.schedule(workload, target, structure)
        assert (skeleton, settled(settings, structure, names)) == parted(whole)


def test_schedules_that_differ_in_settings_share_a_skeleton() -> None:
    found = schedules(WORKLOADS[0], 200)
    skeletons = {parted(schedule)[0] for schedule in found}
    assert len({parted(schedule) for schedule in found}) == len(found) > 4 * len(skeletons)


def test_what_is_open_is_told_from_numbers_and_engines() -> None:
    (schedule,) = schedules(WORKLOADS[0], 1)
    skeleton, settings = parted(schedule)
    open_, known = (list(walk(lower(one).body)) for one in (skeleton, schedule))
    for mine, theirs in zip(open_, known, strict=True):
        match mine, theirs:
            case Block(), Block():
                place = open_engine(mine.engine)
                assert theirs.engine == (mine.engine if place is None else settings[place])
            case Loop(), Loop():
                place = open_number(mine.stages)
                assert theirs.stages == (mine.stages if place is None else settings[place])
            case Allocate(), Allocate():
                place = open_number(mine.buffer.versions)
                expected = mine.buffer.versions if place is None else settings[place]
                assert theirs.buffer.versions == expected
