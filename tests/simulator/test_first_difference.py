"""One instruction of a kernel is changed: it is the one that is named."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from tests.simulator.trainium_defects import KERNELS, KINDS, TARGET, changed, kernel_of
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.selection.tracing import trace
from tilesmith.families.trainium.simulator.execution.first_difference import first_difference


@pytest.mark.parametrize("text", KERNELS)
def test_a_changed_instruction_is_named(text: str) -> None:
    rng = np.random.default_rng(7)
    kernel = kernel_of(text, rng)
    traced = trace(kernel.program, Core.of(TARGET))
    assert len(traced.owners) == len(kernel.stream)
    asked = kernel.hbm, traced, kernel.program, kernel.arrays
    assert first_difference(kernel.stream, *asked) is None
    tried = 0
    for kind in KINDS:
        for number, stream in islice(changed(kernel, kind, rng), 2):
            found = first_difference(stream, *asked)
            assert found is not None, (kind, number)
            assert number in found.among, (kind, number, found)
            assert len(found.among) <= 4 and found.row == found.among[0]
            tried += 1
    assert tried >= 3


def test_what_is_wrong_with_it_is_said() -> None:
    rng = np.random.default_rng(3)
    kernel = kernel_of(KERNELS[3], rng)
    traced = trace(kernel.program, Core.of(TARGET))
    number, stream = next(changed(kernel, "number", rng))
    found = first_difference(stream, kernel.hbm, traced, kernel.program, kernel.arrays)
    assert found is not None and found.row == number
    assert found.repair.startswith("right with ")
