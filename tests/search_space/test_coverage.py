"""Elements a program writes are those the interpreter writes."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.families.kit.programs.coverage import written
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.workload import Workload


@pytest.mark.parametrize(
    "text",
    [
        "layout_transform shape=2x19x5x7 src=NCHW dst=NCHW16c",
        "layout_transform shape=1x37x3x5 src=NHWC dst=NCHW8c",
        "layout_transform shape=1x1x1x1 src=NCHW dst=NCHW4c",
        "pad shape=2x9x3 before=0x2x0 after=0x1x0 value=7",
        "slice shape=9x37 starts=1x0 sizes=4x19 steps=2x2",
    ],
)
def test_written_elements_are_those_of_the_interpreter(text):
    workload, target = Workload.parse(text), load_target("trn1")
    space, config = space_of(workload, target), default_of(workload, target)
    schedule = scheduler_of(workload, target).schedule(workload, target, space.structure(config))
    program = lower(schedule).bind(dict(space.tiles(config)))
    inputs = {
        b.name: np.ones([e.evaluate({}) for e in b.shape], dtype=np.float32)
        for b in program.parameters
        if b.role == "input"
    }
    (output,) = [b.name for b in program.parameters if b.role == "output"]
    computed = interpret(program, inputs)[output]
    assert (written(program, output) == ~np.isnan(computed)).all()
