"""Every epilogue step: the compiled formula agrees with its numpy reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search_space.programs import result
from tilesmith.search_space.epilogue import STEPS, EpilogueStep, operand_name, reference
from tilesmith.search_space.errors import WorkloadError
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.template import template_of
from tilesmith.search_space.workload import Workload


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3), st.integers(0, 9999))
def test_compiled_and_reference_formulas_agree(names: list[str], seed: int) -> None:
    workload = Workload.parse(f"matmul m=3 n=4 k=2 epilogue={','.join(names)}")
    template, rng = template_of("matmul"), np.random.default_rng(seed)
    arrays = {
        o.name: rng.uniform(0.1, 1.0, o.shape).astype(np.float32)
        for o in template.operands(workload)
    }
    found = result(lower(Schedule(template.compute(workload))), arrays)  # type: ignore[attr-defined]
    product = template.reference(workload, arrays)
    expected = reference(workload.epilogue, product, arrays, template.channel_axis(workload))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STEPS)
def test_negative_inputs_too(name: str) -> None:
    if name == "sqrt":
        return
    workload = Workload.parse(f"matmul m=2 n=3 k=2 epilogue={name}")
    template, rng = template_of("matmul"), np.random.default_rng(1)
    arrays = {
        o.name: rng.uniform(-3, 3, o.shape).astype(np.float32) for o in template.operands(workload)
    }
    found = result(lower(Schedule(template.compute(workload))), arrays)  # type: ignore[attr-defined]
    product = template.reference(workload, arrays)
    expected = reference(workload.epilogue, product, arrays, template.channel_axis(workload))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_steps_print_as_they_are_typed() -> None:
    assert str(EpilogueStep.parse("clip:0:6")) == "clip"
    assert str(EpilogueStep.parse("clip:-1:1")) == "clip:-1:1"
    assert str(EpilogueStep("leaky_relu")) == "leaky_relu"
    assert EpilogueStep.parse("clip:-1:1") == EpilogueStep("clip", (-1.0, 1.0))


def test_operands_are_named_by_step_and_position() -> None:
    steps = [EpilogueStep(name) for name in ("relu", "bias", "residual")]
    assert [operand_name(s, i) for i, s in enumerate(steps)] == [None, "bias1", "residual2"]


@pytest.mark.parametrize("text", ["relu:1", "clip:1", "clip:a:b", "nothing", ""])
def test_bad_steps_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="epilogue step"):
        EpilogueStep.parse(text)
