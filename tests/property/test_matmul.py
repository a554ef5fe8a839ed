"""Random configurations of matrix products, odd and prime shapes, down to native output."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.property.agreement import check_sampled_loops, check_sampled_native, check_sampled_verify
from tilesmith.codegen.host.machine import host_target
from tilesmith.search_space.workloads.epilogue import reference
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

HOST = host_target()
EPILOGUES = ("", "epilogue=bias,relu", "epilogue=scale,residual", "epilogue=multiply,gelu")


def workloads(largest: int) -> st.SearchStrategy[Workload]:
    """Every transpose, batched or not, constants and epilogues; extents up to `largest`."""
    extent = st.integers(1, largest)
    return st.builds(
        lambda m, n, k, batch, ta, tb, const, epilogue: Workload.parse(
            f"matmul m={m} n={n} k={k} batch={batch} ta={ta} tb={tb} {const} {epilogue}"
        ),
        extent, extent, extent, st.sampled_from((1, 1, 3)), st.integers(0, 1), st.integers(0, 1),
        st.sampled_from(("", "const=b", "const=a,b")), st.sampled_from(EPILOGUES),
    )  # fmt: skip


def inputs_and_output(
    workload: Workload, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    template = template_of("matmul")
    arrays = {
        o.name: rng.standard_normal(o.shape).astype(np.float32) for o in template.operands(workload)
    }
    product = template.reference(workload, arrays)
    axis = template.channel_axis(workload)
    return arrays, reference(workload.epilogue, product, arrays, axis)


@given(workloads(67), st.integers(0, 2**32 - 1))
def test_native_output_equals_numpy(workload: Workload, seed: int) -> None:
    check_sampled_native(workload, HOST, inputs_and_output, seed)


@given(workloads(9), st.integers(0, 2**32 - 1))
def test_lowering_is_right_before_and_after_the_passes(workload: Workload, seed: int) -> None:
    check_sampled_loops(workload, HOST, inputs_and_output, seed)


@given(workloads(600), st.integers(0, 2**32 - 1))
def test_every_configuration_verifies(workload: Workload, seed: int) -> None:
    """Large shapes, without running them: indices are proved inside, symbolic and bound."""
    check_sampled_verify(workload, HOST, seed)
