"""Products with weights quantised by blocks: random shapes and configurations, down to native
output, against weights dequantised in numpy."""

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
EPILOGUES = ("", "epilogue=bias,relu", "epilogue=residual", "epilogue=multiply,silu")


def workloads(largest: int) -> st.SearchStrategy[Workload]:
    """Every format; tails of k in the last block; extents up to `largest`."""
    return st.builds(
        lambda m, n, k, bits, block, zeros, activations, scales, epilogue: Workload.parse(
            f"block_quantised_matmul m={m} n={n} k={k} bits={bits} block={block} zeros={zeros} "
            f"activations={activations} scales={scales} "
            f"const=q,scale{',zero' if zeros else ''} {epilogue}"
        ),
        st.integers(1, 9), st.integers(1, largest), st.integers(1, 2 * largest),
        st.sampled_from((4, 8)), st.sampled_from((16, 32, 48, 128)), st.integers(0, 1),
        st.sampled_from(("float32", "int8")), st.sampled_from(("float32", "float16")),
        st.sampled_from(EPILOGUES),
    )  # fmt: skip


def inputs_and_output(
    workload: Workload, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    template = template_of(workload.operator)
    arrays = {
        o.name: rng.integers(0, 256, o.shape).astype(np.uint8)
        if o.dtype == "uint8"
        else rng.standard_normal(o.shape).astype(np.float32)
        for o in template.operands(workload)
    }
    if workload.integer("bits") == 4 and "zero" in arrays:
        arrays["zero"] &= 15
    arrays["scale"] *= 2.0 ** -workload.integer("bits") / workload.integer("k") ** 0.5
    arrays["scale"] = arrays["scale"].astype(workload.text("scales"))
    return arrays, reference(workload.epilogue, _product(workload, arrays), arrays, 1)


def _product(workload: Workload, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Weights dequantised one by one, then one product; activations first, where they are."""
    k, block = workload.integer("k"), workload.integer("block")
    q = arrays["q"].reshape(len(arrays["q"]), -1)
    if workload.integer("bits") == 4:
        wide = np.empty((q.shape[0], 2 * q.shape[1]), np.uint8)
        wide[:, ::2], wide[:, 1::2] = q % 16, q // 16
        q = wide
    zero = arrays.get("zero", np.full_like(arrays["scale"], 2 ** (workload.integer("bits") - 1)))
    weights = (q - np.repeat(zero, block, 1).astype(np.float64)) * np.repeat(
        arrays["scale"].astype(np.float64), block, 1
    )
    a = arrays["a"]
    if workload.text("activations") == "int8":
        a = a.copy()
        for part in (a[:, start : start + block] for start in range(0, k, block)):
            top = np.abs(part).max(1, keepdims=True)
            part[:] = np.rint(part * (np.float32(127) / top)) * (top / np.float32(127))
    return (a @ weights[:, :k].T).astype(np.float32)


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
