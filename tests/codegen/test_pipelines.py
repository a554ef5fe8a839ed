"""Which of LLVM's pipelines a module takes: where tests are dense, they imply each other."""

from __future__ import annotations

import pytest

from tilesmith import resolve_target
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.programs.structures import lowered
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

LAYOUTS = {"input_layout": "NCHW16c", "output_layout": "NCHW16c"}
POOL = {"algorithm": "channels", "w_tile": 8, "window": "unrolled", **LAYOUTS}
WINOGRAD = {"algorithm": "winograd4", "product_order": "t,o", "c_unroll": 4, "n_vectors": 3,
            "t_block": 16, "t_tile": 9}  # fmt: skip


@pytest.mark.parametrize(
    ("workload", "knobs", "standard"),
    [
        ("pool2d kind=max c=16 h=14 w=14 kh=5 kw=5 pad=2", POOL, True),
        ("conv2d c=32 h=14 w=14 oc=48 kh=3 kw=3 pad=1 const=weight", WINOGRAD | LAYOUTS, False),
    ],
    ids=["hardly anything but tests", "tests among products"],
)
def test_dense_tests_take_the_standard_pipeline(
    workload: str, knobs: dict[str, str | int], standard: bool
) -> None:
    target = resolve_target("cpu:avx512")
    text = emit_module(lowered(Workload.parse(workload), target, Config.of(knobs)), target).text
    assert text.count("br i1") > toolchain.MANY_BRANCHES
    whole = str(toolchain.optimise(text, target, standard=True))
    assert (str(toolchain.optimise(text, target)) == whole) == standard
