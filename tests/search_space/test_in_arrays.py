"""Programs evaluated nest by nest give what the interpreter does, point by point."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.families.kit.programs import in_arrays
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.workload import Workload

WORKLOADS = (
    "matmul m=5 n=7 k=9 dtype=float16 epilogue=bias,gelu",
    "softmax shape=3x10 axis=1",
    "layer_norm shape=3x12 axes=1",
    "conv2d n=1 c=3 h=5 w=5 oc=4 kh=3 kw=3 pad=1 dtype=float16 const=weight epilogue=bias",
    "pool2d kind=max c=3 h=5 w=5 kh=3 kw=3 stride=2 pad=1",
    "elementwise shape=4x6 expression=where(less(x0,x1),multiply(x0,x1),exp(x0))",
)


def program_of(text: str, target: str) -> Program:
    workload, machine = Workload.parse(text), load_target(target)
    return lowered(workload, machine, default_of(workload, machine))


@pytest.mark.parametrize("target", ["trn1", "lpu1"])
@pytest.mark.parametrize("text", WORKLOADS)
def test_what_is_written_is_the_interpreters(text: str, target: str) -> None:
    program, rng = program_of(text, target), np.random.default_rng(0)
    arrays = {
        buffer.name: rng.standard_normal([e.constant or 0 for e in buffer.shape]).astype(
            to_numpy(buffer.dtype)
        )
        for buffer in program.parameters
        if buffer.role == "input"
    }
    wanted = interpret(program, arrays)
    given = {b.name: wanted[b.name] for b in program.parameters if b.role != "output"}
    told: list[str] = []
    found = in_arrays.run(
        program, given, lambda _: True, lambda *nest: told.append(nest[2].block.buffer)
    )
    name = program.parameters[-1].name
    np.testing.assert_allclose(
        found[name].astype(np.float64), wanted[name].astype(np.float64), rtol=2e-3, atol=1e-4
    )
    assert name in told


def test_a_program_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_arrays, "POINTS", 10)
    program = program_of(WORKLOADS[1], "trn1")
    given = {"x": np.zeros((3, 10), np.float32)}
    with pytest.raises(JobError, match="too many points"):
        in_arrays.run(program, given, lambda _: True, lambda *_: None)
