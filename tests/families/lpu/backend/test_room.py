"""Programs whose chains find no room in MEM once they are joined are placed with chains apart."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of, random
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import HostStep
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.families.lpu.backend.programs import program as programs
from tilesmith.families.lpu.backend.programs.program import ChipProgram, segments
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Dataflow
from tilesmith.families.lpu.codegen.isa.bursts import BurstSchedule
from tilesmith.families.lpu.codegen.scheduling.scheduler import SchedulerOptions, ordered
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import CodegenError, ModelError, NoRoomError

TARGET = load_target("lpu1")
MODEL = model_of(
    "net (float[40, 320] x) => (float[40, 320] y) "
    "{ h = MatMul(x, w) s = Sigmoid(h) t = Mul(s, h) y = Softmax(t) }",
    w=random(320, 320) / 18,
)


def built() -> Executable:
    return build(import_model(MODEL), TARGET)


def linked(executable: Executable) -> ChipProgram:
    (found,) = segments(executable.recipe)
    assert isinstance(found, ChipProgram)
    return found


def room_for(
    monkeypatch: pytest.MonkeyPatch, chains: range, error: type[CodegenError]
) -> list[int]:
    """Let only programs of so many chains have a schedule; notes how many others have."""
    asked: list[int] = []

    def limited(
        flow: Dataflow, chip: Chip, options: SchedulerOptions
    ) -> tuple[BurstSchedule, SchedulerOptions]:
        asked.append(len(flow.chains))
        if len(flow.chains) not in chains:
            raise error(f"nothing holds {len(flow.chains)} chains")
        return ordered(flow, chip, options)

    monkeypatch.setattr(programs, "ordered", limited)
    return asked


def test_chains_stay_apart_where_joined_ones_find_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = len(linked(built()).joined.flow.chains)
    asked = room_for(monkeypatch, range(joined + 1, 2 * joined), NoRoomError)
    executable = built()
    assert len(linked(executable).joined.flow.chains) > joined
    assert asked.count(joined) == 1  # other ways to schedule them hardly ever find room
    x = random(40, 320)
    (want,) = ReferenceEvaluator(MODEL).run(None, {"x": x})
    assert np.abs(executable.run({"x": x})["y"] - want).max() <= 4e-3 * np.abs(want).max()


@pytest.mark.parametrize(("error", "forms"), [(NoRoomError, 2), (CodegenError, 1)])
def test_what_has_no_schedule_says_so_of_chains_joined(
    monkeypatch: pytest.MonkeyPatch, error: type[CodegenError], forms: int
) -> None:
    """Chains apart are tried for want of room alone."""
    joined = len(linked(built()).joined.flow.chains)
    asked = room_for(monkeypatch, range(0), error)
    with pytest.raises(ModelError, match=f"nothing holds {joined} chains"):
        linked(built())
    assert len(set(asked)) == forms


@pytest.mark.parametrize(("stride", "size", "on_the_host"), [(1, 222, True), (3, 74, False)])
def test_a_pool_that_leaves_mem_no_room_for_sums_runs_on_the_host(
    stride: int, size: int, on_the_host: bool
) -> None:
    model = model_of(
        f"net (float[1, 64, 224, 224] x) => (float[1, 64, {size}, {size}] y) "
        f"{{ y = AveragePool <kernel_shape = [3, 3], strides = [{stride}, {stride}]> (x) }}"
    )
    steps = build(import_model(model), TARGET).recipe.steps
    assert any(isinstance(step, HostStep) for step in steps) is on_the_host
