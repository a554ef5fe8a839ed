"""What a lowered configuration computes, natively and step by step, against expected values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilesmith.codegen.native.kernel import NativeKernel, compile_program
from tilesmith.codegen.programs.structures import lowered
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

Arrays = Mapping[str, np.ndarray]


def check_native(
    workload: Workload, target: Target, config: Config, arrays: Arrays, expected: np.ndarray
) -> None:
    """A configuration verifies, and its native code computes what is expected."""
    program = lowered(workload, target, config)
    verify(program, target)
    found = NativeKernel(compile_program(program, target))(arrays)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4, err_msg=str(config))


def check_loops(
    workload: Workload, target: Target, config: Config, arrays: Arrays, expected: np.ndarray
) -> None:
    """Its loops verify and compute that before and after the passes: what native code is compared
    with elsewhere.
    """
    bound = lowered(workload, target, config)
    for program in (bound, finish(bound)):
        verify(program, target)
        found = interpret(program, arrays)[program.parameters[-1].name]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=str(config))
