"""Configurations of a workload with sums=same compute equal bits, on any number of threads, and for
a part of a batch what they compute for all of it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.subjects.bound_kernels import VaryingKernel
from tests.codegen.kernels import HOST
from tests.conformance.template_checks import random_inputs, run
from tilesmith.codegen.programs.structures import KernelSpec, default_of, space_of
from tilesmith.search_space.expressions.sizes import Size
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

WORKLOADS = (
    "matmul m=3 n=37 k=70 const=b epilogue=bias,gelu",
    "conv2d n=2 c=37 h=8 w=9 oc=20 kh=3 kw=3 pad=1 stride=2 const=weight epilogue=bias,relu",
    "conv2d n=2 c=24 h=7 w=9 oc=24 kh=3 kw=3 pad=1 const=weight epilogue=residual",
    "depthwise_conv2d n=2 c=20 h=9 w=11 kh=5 kw=5 pad=2 const=weight",
    "attention m=9 n=70 k=20 batch=2 heads=2 mask=row",
    "softmax shape=3x131",
    "layer_norm shape=3x200",
    "rms_norm shape=3x77",
    "reduce shape=3x237 axes=1",
    "pool2d kind=average n=2 c=20 h=9 w=9 global=1",
)
BATCHES = {"matmul": "m", "attention": "batch"}
"""By operator, the parameter that is a batch; n of convolutions and pools."""


def same(text: str) -> Workload:
    return Workload.parse(f"{text} sums=same")


def drawn(workload: Workload, count: int) -> list[Config]:
    """The default, and random configurations beside it."""
    rng = np.random.default_rng(1)
    return [default_of(workload, HOST), *space_of(workload, HOST).sample(rng, count)]


@pytest.mark.parametrize("text", WORKLOADS)
def test_configurations_and_threads_compute_equal_bits(text: str) -> None:
    workload = same(text)
    inputs = random_inputs(workload, np.random.default_rng(0))
    first, *others = drawn(workload, 3)
    expected = run(workload, first, inputs).tobytes()
    for threads, config in enumerate(others, 1):
        assert run(workload, config, inputs, threads).tobytes() == expected, str(config)


@pytest.mark.parametrize("text", [w for w in WORKLOADS if w.split()[0] in BATCHES or " n=2" in w])
def test_parts_of_a_batch_are_equal_bits(text: str) -> None:
    whole = same(text)
    part = whole.with_parameters(**{BATCHES.get(whole.operator, "n"): 1})
    inputs = random_inputs(whole, np.random.default_rng(0))
    shapes = {operand.name: operand.shape for operand in template_of(part.operator).operands(part)}
    first = {
        name: array if array.shape == shapes[name] else array[:1] for name, array in inputs.items()
    }
    computed = run(whole, drawn(whole, 1)[-1], inputs)
    assert computed[:1].tobytes() == run(part, drawn(part, 1)[-1], first).tobytes()


@pytest.mark.parametrize(
    "text, knobs",
    [
        ("layer_norm shape=3x200", {"accumulators": 1}),
        ("conv2d c=40 h=8 w=9 oc=20 kh=3 kw=3 pad=1 stride=2", {"reduction_order": "r,s,c"}),
    ],
)
def test_another_order_gives_other_bits_and_is_not_in_the_space(
    text: str, knobs: dict[str, str | int]
) -> None:
    usual, workload = Workload.parse(text), same(text)
    first = default_of(workload, HOST)
    other = Config.of({**dict(first.items()), **knobs})
    assert other in space_of(usual, HOST)
    assert other not in space_of(workload, HOST)
    inputs = random_inputs(usual, np.random.default_rng(0))
    assert run(usual, other, inputs).tobytes() != run(workload, first, inputs).tobytes()


def test_rows_of_a_product_add_alike_in_bfloat16() -> None:
    """Dot products add pairs: few rows, which would not take them, add as many do."""
    workload = same("matmul m=20 n=37 k=70 dtype=bfloat16 const=b")
    row = workload.with_parameters(m=1)
    inputs = random_inputs(workload, np.random.default_rng(0))
    one = {name: array if name == "b" else array[:1] for name, array in inputs.items()}
    rows = run(workload, default_of(workload, HOST), inputs)
    assert rows[:1].tobytes() == run(row, default_of(row, HOST), one).tobytes()


def test_sizes_that_vary_add_alike() -> None:
    """A kernel for all lengths of rows takes accumulators of its own; whichever configuration it is
    made of, they are the same."""
    workload = same("softmax shape=[rows]x[length]")
    typical = {"rows": 6, "length": 64}
    usual, target = workload.at(typical), HOST
    sizes = (Size("rows", 1, 9), Size("length", 1, 700))
    x = np.random.default_rng(0).standard_normal((9, 601)).astype(np.float32)
    outputs = set()
    for config in [default_of(usual, target), *space_of(usual, target)]:
        kernel = VaryingKernel(KernelSpec(workload, target, config, sizes, typical))
        outputs.add(kernel.at({"rows": 9, "length": 601}, {"x": x}).tobytes())
    assert len(outputs) == 1
