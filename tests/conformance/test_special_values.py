"""What is not a number, or infinite, ends where the reference has it, whoever computes.

One NaN or infinity in one operand of an example, under the default schedule. (A Winograd
convolution and a product with the identity spread it over a tile; no default here is one of them.)
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conformance import accelerator_checks, template_checks
from tests.conformance.test_accelerator_templates import RUN
from tests.conformance.test_templates import EXAMPLES
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

Arrays = dict[str, NDArray[Any]]
Runner = Callable[[Workload, Config, Arrays], NDArray[Any]]


def check(text: str, target: Target, run: Runner, special: float) -> None:
    workload, rng = Workload.parse(text), np.random.default_rng(zlib.crc32(text.encode()))
    config = default_of(workload, target)
    for operand in template_of(workload.operator).operands(workload):
        inputs = template_checks.random_inputs(workload, rng)
        if inputs[operand.name].dtype.kind != "f":
            continue
        inputs[operand.name].flat[rng.integers(inputs[operand.name].size)] = special
        found = run(workload, config, inputs)
        with np.errstate(all="ignore"):
            wanted = template_checks.expected(workload, inputs)
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(test(found), test(wanted), err_msg=operand.name)


FLOATS = [text for text in EXAMPLES if Workload.parse(text).dtype == "float32"]
ACCELERATED = [text for text in RUN if Workload.parse(text).dtype == "float32"]


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("text", FLOATS)
def test_native_code(text: str, special: float) -> None:
    check(text, host_target(), template_checks.run, special)


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("text", ACCELERATED)
def test_simulated_accelerators(text: str, special: float) -> None:
    check(text, accelerator_checks.TARGET, accelerator_checks.run, special)
