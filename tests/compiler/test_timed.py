"""Steps that write down when they ran: which steps, on every thread."""

from __future__ import annotations

import numpy as np

from tests.compiler.model_builder import model_of, random
from tilesmith.codegen.host import host_target
from tilesmith.codegen.memory import aligned_bytes
from tilesmith.compiler.areas import Memory
from tilesmith.compiler.backend import backend_of
from tilesmith.compiler.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.program import DeviceStep, HostStep, LoopStep
from tilesmith.compiler.timed import AROUND, BEGUN, RAN, STARTED, numbered


def test_notes_name_the_steps_of_bodies_as_often_as_they_ran() -> None:
    model = model_of(
        """g (float[5,1,3] x) => (float[5,1,1,4] y, float[5,1,3] z)
        { y = LSTM <hidden_size=4> (x, w, r, b)  z = Tanh(x) }""",
        w=random(1, 16, 3), r=random(1, 16, 4), b=random(1, 32),
    )  # fmt: skip
    recipe = build(import_model(model), host_target()).recipe
    memory = Memory(aligned_bytes(max(64, recipe.arena_bytes)), recipe.constants)
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
