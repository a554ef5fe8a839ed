"""Steps that write down when they ran: which steps, on every thread."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.backends.timed import AROUND, BEGUN, PASSED, RAN, STARTED, Notes, numbered
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import NOWHERE, DeviceStep, HostStep, LoopStep, MoveStep
from tilesmith.compiler.runtime.step_times import mean_of, step_times, sums_of


def test_notes_name_the_steps_of_bodies_as_often_as_they_ran() -> None:
    model = model_of(
        """g (float[5,1,3] x) => (float[5,1,1,4] y, float[5,1,3] z)
        { y = LSTM <hidden_size=4> (x, w, r, b)  z = Tanh(x) }""",
        w=random(1, 16, 3), r=random(1, 16, 4), b=random(1, 32),
    )  # fmt: skip
    recipe = build(import_model(model), host_target()).recipe
    memory = RunMemory(aligned_bytes(max(64, recipe.arena_bytes)), recipe.constants)
    steps: list[DeviceStep] = [s for s in recipe.steps if not isinstance(s, HostStep)]
    timed = backend_of(recipe.target).link_timed(recipe, steps, memory)
    assert timed is not None
    timed.run()
    (notes,) = timed.notes()
    ran = notes.steps[notes.kinds == RAN]
    whole = list(numbered(steps))
    loops = [step for step in whole if isinstance(step, LoopStep)]
    inside = {id(step) for loop in loops for step in numbered(loop.steps)}
    for number, step in enumerate(whole):
        assert np.count_nonzero(ran == number) == (5 if id(step) in inside else 1)
    assert (notes.steps[notes.kinds == STARTED] == AROUND).all()
    (begun,) = set(notes.steps[notes.kinds == BEGUN])
    assert whole[begun] in loops
    assert (np.diff(notes.times) >= 0).all()


def test_what_passed_unseen_is_shared_out_as_what_was_seen() -> None:
    def step(name: str) -> MoveStep:
        return MoveStep(NOWHERE, NOWHERE, 4, name=name)

    inner = LoopStep("inner", 4, NOWHERE, NOWHERE, NOWHERE, (step("c"),))
    loop = LoopStep("loop", 6, NOWHERE, NOWHERE, NOWHERE, (step("a"), inner))
    steps = list(numbered([loop, step("z")]))  # loop, a, inner, c, z
    outer, a, within, c, z = range(5)
    told = [  # step, kind, nanoseconds since the note before, iterations
        (AROUND, STARTED, 0, 0),
        (outer, BEGUN, 10, 0), (a, RAN, 100, 0), (within, BEGUN, 10, 0), (c, RAN, 60, 0),
        (within, PASSED, 140, 3), (within, RAN, 10, 0), (outer, PASSED, 990, 5),
        (outer, RAN, 20, 0), (z, RAN, 50, 0),
    ]  # fmt: skip
    which, kinds, took, passed = (np.array(column) for column in zip(*told, strict=True))
    notes = Notes(which, kinds, np.cumsum(took).astype(np.float64), 0, passed)
    sums = sums_of(notes, 1, len(steps))
    found, off = step_times(steps, mean_of([sums], np.array([0])), 0.0)
    by_name = {one.step.name: one for one in found}
    assert off == 0.0 and sum(one.us for one in found) == pytest.approx(took.sum() / 1e3)
    assert {name: one.calls for name, one in by_name.items()} == {
        "loop": 1, "a": 6, "inner": 6, "c": 24, "z": 1
    }  # fmt: skip
    assert by_name["c"].us / by_name["inner"].us == pytest.approx(60 / 20)
    assert by_name["a"].us / by_name["c"].us == pytest.approx(100 / (60 * (80 + 140) / 80))
    assert by_name["z"].us == pytest.approx(0.05)
