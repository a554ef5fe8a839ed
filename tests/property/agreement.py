"""What a lowered configuration computes, natively and step by step, against expected values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilesmith.codegen.native.kernel import NativeKernel, compile_program
from tilesmith.codegen.programs.structures import lowered, space_of, structure_program
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

Arrays = Mapping[str, np.ndarray]
Draw = Callable[[Workload, np.random.Generator], tuple[Arrays, np.ndarray]]
"""Random inputs of a workload, and what comes of them."""


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


def check_sampled_native(workload: Workload, target: Target, draw: Draw, seed: int) -> None:
    """Two configurations drawn from the space, as `check_native`."""
    rng = np.random.default_rng(seed)
    arrays, expected = draw(workload, rng)
    for config in space_of(workload, target).sample(rng, 2):
        check_native(workload, target, config, arrays, expected)


def check_sampled_loops(workload: Workload, target: Target, draw: Draw, seed: int) -> None:
    """A configuration drawn from the space, as `check_loops`."""
    rng = np.random.default_rng(seed)
    arrays, expected = draw(workload, rng)
    (config,) = space_of(workload, target).sample(rng)
    check_loops(workload, target, config, arrays, expected)


def check_sampled_verify(workload: Workload, target: Target, seed: int) -> None:
    """Two configurations drawn from the space verify, symbolic and bound; nothing is run."""
    space = space_of(workload, target)
    for config in space.sample(np.random.default_rng(seed), 2):
        verify(structure_program(workload, target, space.structure(config)), target)
        verify(lowered(workload, target, config), target)
