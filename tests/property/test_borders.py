"""Sums that leave out frames of zeros, and tails in narrow vectors: drawn shapes against numpy."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.codegen.kernels import narrowed
from tests.conformance.template_checks import check_config
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native.toolchain import emit_assembly
from tilesmith.codegen.programs.structures import default_of, lowered, space_of
from tilesmith.search_space.ir.program import If, Loop, Program, blocks, walk
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

HOST = host_target()
NO_SHRINK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Every example compiles: what fails is small already."""

framed = st.builds(
    lambda c, image, taps, steps, dilation, pad: Workload.parse(
        f"depthwise_conv2d c={c} h={image[0]} w={image[1]} kh={taps[0]} kw={taps[1]} "
        f"stride={steps[0]}x{steps[1]} dilation={dilation}x1 pad={pad} const=weight"
    ),
    st.sampled_from([5, 16, 21]), st.tuples(st.integers(5, 9), st.integers(5, 21)),
    st.tuples(st.integers(1, 3), st.integers(1, 5)),
    st.tuples(st.integers(1, 2), st.integers(1, 3)), st.integers(1, 2),
    st.sampled_from(["1", "2", "3", "0x1", "1x0x0x2", "0x4x0x0"]),
)  # fmt: skip


@settings(deadline=None, phases=NO_SHRINK, max_examples=7)
@given(framed, st.integers(0, 999))
def test_sums_leave_out_a_frame(workload: Workload, seed: int) -> None:
    space, rng = space_of(workload, HOST), np.random.default_rng(seed)
    drawn = [c for c in space.sample(rng, 40) if c.text("algorithm") == "frameless"]
    for config in (default_of(workload, HOST), *drawn[:1]):
        assert config.text("algorithm") == "frameless"
        for program in (bound := lowered(workload, HOST, config), finish(bound)):
            verify(program, HOST)
        check_config(workload, config, rng)


@settings(deadline=None, phases=NO_SHRINK, max_examples=4)
@given(framed, st.integers(1, 35), st.integers(0, 999))
def test_convolutions_of_few_channels_leave_out_a_frame(
    image: Workload, out: int, seed: int
) -> None:
    text = image.key.replace("depthwise_conv2d", "conv2d").replace("c=16", "c=3")
    workload = Workload.parse(f"{text.replace('c=21', 'c=2')} oc={out} epilogue=bias,relu")
    space, rng = space_of(workload, HOST), np.random.default_rng(seed)
    drawn = [c for c in space.sample(rng, 80) if c.text("algorithm") == "frameless"]
    for config in drawn[:2]:
        verify(finish(lowered(workload, HOST, config)), HOST)
        check_config(workload, config, rng)


def _finished(width: int, tile: int) -> Program:
    workload = Workload.parse(f"depthwise_conv2d c=16 h=9 w={width} kh=3 kw=3 pad=1 const=weight")
    config = {**dict(default_of(workload, HOST)), "x_tile": tile, "y_tile": 1}
    return finish(lowered(workload, HOST, Config.of(config)))


def test_tiles_inside_an_image_have_no_tests_of_columns() -> None:
    """The first and the last tile are apart; those between them only ask for rows."""
    body = _finished(width=40, tile=4).body
    (tiles,) = (s for s in walk(body) if isinstance(s, Loop) and s.variable == "xt")
    assert tiles.extent.constant == 8
    tests = [s for s in walk(tiles) if isinstance(s, If)]
    assert len(tests) == 1 and all("r" in e.variables() for e in tests[0].condition)
    copies = [s for s in walk(body) if isinstance(s, Loop) and s.variable == "r"]
    assert len(copies) == 3
    assert not any("if" in str(block.value) for block in blocks(body)), "a test for each element"


@pytest.mark.parametrize("m", [1, 5])
def test_tails_of_all_lengths(m: int) -> None:
    """Columns fill vectors, halves and quarters of them, and none."""
    rng = np.random.default_rng(m)
    for n in range(1, 36):
        workload = Workload.parse(f"matmul m={m} n={n} k=7 const=b epilogue=bias,relu")
        check_config(workload, default_of(workload, HOST), rng)


@pytest.mark.parametrize(("isa", "n", "narrow", "wide"), [
    ("avx512", 24, "ymm", "zmm"), ("avx512", 36, "xmm", "zmm"), ("avx2", 12, "xmm", "ymm"),
])  # fmt: skip
def test_a_tail_costs_what_it_computes(isa: str, n: int, narrow: str, wide: str) -> None:
    """Two multiply-adds of whole vectors and one of the tail's for each row, or one of each."""
    target = narrowed(isa)
    workload = Workload.parse(f"matmul m=4 n={n} k=64 const=b")
    config = Config.of({**dict(default_of(workload, target)), "n_vectors": 3 if n == 36 else 2})
    text = emit_assembly(emit_module(lowered(workload, target, config), target).text, target)
    products = re.findall(r"vfmadd\S+\s.*%([xyz]mm)\d+\n", text)
    assert products.count(wide) == (2 if n == 36 else 1) * products.count(narrow) > 0
    assert set(products) == {narrow, wide}
    assert "{%k" not in text, "no masks"
