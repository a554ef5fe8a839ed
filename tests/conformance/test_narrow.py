"""Every operator's examples in floating types of 16 bits, against numpy in float64, rounded.

The tests walk over the registries: new operators and schedulers are covered by being there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.conformance.template_checks import check_config
from tests.conformance.test_templates import EXAMPLES
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of, lowered, space_of
from tilesmith.compiler.numerics.precision import in_precision
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.scheduler import is_scheduled
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

DTYPES = ("bfloat16", "float16")

SMALL = 100_000
"""Operations up to which a second configuration is tried."""

WIDE = {"block_quantised_matmul"}
"""Operators whose templates have one floating type."""


def narrow() -> Iterator[str]:
    """Examples of float32, each in one of the narrow types."""
    for position, text in enumerate(EXAMPLES):
        workload = Workload.parse(text)
        changed = in_precision(workload, DTYPES[position % 2])
        if changed != workload and workload.operator not in WIDE:
            yield changed.key


@pytest.mark.parametrize("text", list(narrow()))
def test_sums_are_float32_and_results_are_rounded(text: str) -> None:
    workload, target = Workload.parse(text), host_target()
    assert is_scheduled(workload, target), text
    rng = np.random.default_rng(len(text))
    configs = [default_of(workload, target)]
    if template_of(workload.operator).flops(workload) < SMALL:
        configs += space_of(workload, target).sample(rng, 1)
    for config in configs:
        verify(lowered(workload, target, config), target)
        with np.errstate(divide="ignore"):  # of whole numbers
            check_config(workload, config, rng)


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize(
    "text",
    [
        "matmul m=5 n=19 k=7 const=b epilogue=bias,relu",
        "elementwise shape=1009 expression=gelu(x0)",
        "transpose shape=18x1x34 perm=2x1x0",
        "pad shape=2x21x3 before=0x2x0 after=0x1x0 value=7",
        "softmax shape=5x37",
    ],
)
def test_eight_bits_are_read_and_written(text: str, dtype: str) -> None:
    workload = Workload.parse(f"{text} dtype={dtype}")
    check_config(workload, default_of(workload, host_target()), np.random.default_rng(0))


def test_narrow_operands_are_those_that_are_asked_for() -> None:
    workload = in_precision(Workload.parse("matmul m=2 n=3 k=4"), "float16")
    assert workload.key == Workload.parse("matmul m=2 n=3 k=4 dtype=float16").key
    with pytest.raises(WorkloadError, match="unknown dtype"):
        Workload.parse("matmul m=2 n=3 k=4 dtype=nibble")
