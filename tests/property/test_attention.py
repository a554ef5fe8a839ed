"""Random configurations of attention, every mask, odd and prime shapes, down to native output."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.property.agreement import check_sampled_loops, check_sampled_native, check_sampled_verify
from tilesmith.codegen.host.machine import cpu_target, host_target
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.operator_parts.attention_masks import MASKS
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

HOST = host_target()
NARROW = cpu_target("cpu", "avx2", "x86_64-unknown-linux-gnu")


def workloads(largest: int) -> st.SearchStrategy[Workload]:
    """Every mask, scales of either sign, values narrower and wider than keys."""
    extent = st.integers(1, largest)
    return st.builds(
        lambda m, n, k, v, heads, batch, mask, scale: Workload.parse(
            f"attention m={m} n={n} k={k} v={v} heads={heads} batch={batch} mask={mask} {scale}"
        ),
        extent, extent, extent, st.integers(0, largest), st.integers(1, 2), st.integers(1, 2),
        st.sampled_from(("none", *MASKS)), st.sampled_from(("", "scale=-0.5", "scale=2")),
    )  # fmt: skip


def inputs_and_output(
    workload: Workload, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Masks shut out a third of the keys, but never all of a query's."""
    template = template_of("attention")
    arrays = {
        o.name: rng.standard_normal(o.shape).astype(np.float32) for o in template.operands(workload)
    }
    if "mask" in arrays:
        shut = rng.random(arrays["mask"].shape) < 0.3
        shut[..., 0] = False
        arrays["mask"][shut] = -np.inf
    return arrays, template.reference(workload, arrays)


@given(workloads(67), st.integers(0, 2**32 - 1))
def test_native_output_equals_numpy(workload: Workload, seed: int) -> None:
    check_sampled_native(workload, HOST, inputs_and_output, seed)


@given(workloads(5), st.integers(0, 2**32 - 1))
def test_lowering_is_right_before_and_after_the_passes(workload: Workload, seed: int) -> None:
    check_sampled_loops(workload, NARROW, inputs_and_output, seed)


@given(workloads(600), st.integers(0, 2**32 - 1))
def test_every_configuration_verifies(workload: Workload, seed: int) -> None:
    """Large shapes, without running them; the default is in the space of narrow cores, too."""
    for target in (HOST, NARROW):
        space_of(workload, target).validate(default_of(workload, target))
        check_sampled_verify(workload, target, seed)
