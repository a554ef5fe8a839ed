"""Schedules for LPU-like chips compute their operators, through every part of the path.

The tests walk over the registry, so a new scheduler is covered by being there; products, which are
of float16 and bytes there, beside that on workloads of their own.
"""

from __future__ import annotations

import zlib
from collections import defaultdict

import numpy as np
import pytest

from tests.families.lpu.codegen.selection_checks import TARGET, check
from tilesmith.codegen.programs.structures import default_of, lowered, space_of
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.verification.checker import check as prove
from tilesmith.families.lpu.simulator.selected import selected
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.scheduler import is_scheduled, scheduler_of
from tilesmith.search_space.workloads.template import templates
from tilesmith.search_space.workloads.workload import Workload

EXAMPLES = [
    text
    for name in templates
    for text in templates[name].examples
    if is_scheduled(Workload.parse(text), TARGET)
]

PRODUCTS = [
    "matmul m=50 n=400 k=700 dtype=float16 tb=1",
    "matmul m=40 n=330 k=330 dtype=float16",
    "matmul m=5 n=16 k=7 batch=3 ta=1 dtype=float16",
    "matmul m=700 n=337 k=330 dtype=float16",
    "matmul m=330 n=481 k=350 ta=1 tb=1 dtype=float16 const=b",
    "matmul m=7 n=19 k=8 tb=1 const=b dtype=float16 epilogue=residual,gelu",
    "matmul m=9 n=421 k=13 weights=int8 dtype=uint8 const=b "
    "epilogue=correction,rescale,relu,quantise_int8",
    "conv2d c=5 h=9 w=11 oc=20 kh=3 kw=3 pad=1 const=weight dtype=float16 epilogue=bias,relu",
    "conv2d n=2 c=6 h=9 w=9 oc=9 kh=3 kw=3 groups=3 pad=1x0x0x1 const=weight dtype=float16",
    "conv2d c=3 h=32 w=32 oc=64 kh=7 kw=7 pad=3 stride=2 dtype=int8 const=weight,pad_value",
    "conv2d c=400 h=4 w=4 oc=330 kh=1 kw=1 stride=2 dtype=int8 const=weight",
]

QUANTISED = [
    "matmul m=9 n=21 k=13 weights=int8 dtype=uint8 const=b,correction0,rescale1,quantise_uint83 "
    "epilogue=correction,rescale,relu,quantise_uint8",
    "conv2d c=5 h=8 w=8 oc=20 kh=3 kw=3 pad=1 weights=int8 dtype=uint8 "
    "const=weight,pad_value,quantise_int83 epilogue=correction,rescale,relu,quantise_int8",
]
"""Their numbers are immediates."""

MOVEMENTS = [
    "transpose shape=2x7x3x5 perm=0x2x3x1 dtype=float16",
    "transpose shape=330x40 perm=1x0 dtype=int8",
    "layout_transform shape=1x64x4x8 src=NHW2h2wC dst=NHWC dtype=uint8",
    "layout_transform shape=1x16x19x19 src=NHWC dst=NCHW dtype=float16",
]


ROWS = [
    "softmax shape=2x16x4x400 axis=1 dtype=float16",
    "softmax shape=6x330 axis=0 dtype=float16",
    "softmax shape=5x7x30 axis=0 log=1",
    "elementwise shape=3x200 expression=cos(multiply(x0,30))",
    "elementwise shape=40x20 expression=divide(sin(x0),cos(x0))",
]


@pytest.mark.parametrize("text", [*EXAMPLES, *PRODUCTS, *QUANTISED, *MOVEMENTS, *ROWS])
def test_the_default_computes_the_reference(text: str) -> None:
    workload = Workload.parse(text)
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    check(workload, default_of(workload, TARGET), rng)


def test_few_rows_are_reduced_in_fewer_steps() -> None:
    """They wait for every step, and many rows for units."""
    chains = {}
    for rows in (3, 200):
        workload = Workload.parse(f"softmax shape={rows}x700 axis=1")
        config = default_of(workload, TARGET)
        check(workload, config, np.random.default_rng(rows))
        chains[rows] = len(selected(workload, TARGET, config).dataflow.chains)
    assert chains[3] < chains[200]


@pytest.mark.parametrize("text", PRODUCTS[:6])
def test_sampled_configurations_compute_the_reference(text: str) -> None:
    workload = Workload.parse(text)
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    for config in space_of(workload, TARGET).sample(rng, 2):
        check(workload, config, rng)


@pytest.mark.parametrize("layouts", [("NHWC", "NHW2h2wC"), ("NHW4h4wC", "NHWC")])
def test_blocks_of_input_and_result_may_differ(layouts: tuple[str, str]) -> None:
    """Smaller blocks of results than their stride covers come in phases."""
    text = "conv2d c=6 h=16 w=16 oc=5 kh=3 kw=3 pad=0x0x2x2 dtype=int8 const=pad_value,weight"
    workload = Workload.parse(text)
    chosen = {"input_layout": layouts[0], "output_layout": layouts[1]}
    space = space_of(workload, TARGET)
    config = next(c for c in space if all(c[n] == v for n, v in chosen.items()))
    check(workload, config, np.random.default_rng(5))


@pytest.mark.parametrize(
    "layout, text",
    [
        ("NHW2h2wC", "c=40 h=8 w=12 oc=36 kh=3 kw=3 pad=1 dtype=int8 const=weight,pad_value"),
        ("NHW2hC", "n=2 c=70 h=6 w=5 oc=90 kh=3 kw=3 pad=1 dtype=int8 const=weight,pad_value"),
        ("NHW4h4wC", "c=9 h=8 w=8 oc=12 kh=3 kw=5 pad=1x2x1x2 dtype=float16 const=weight"),
    ],
)
def test_edges_of_blocks_on_both_sides_are_one_row(layout: str, text: str) -> None:
    workload = Workload.parse(f"conv2d {text}")
    layouts = {layout}
    configs = [
        c for c in space_of(workload, TARGET) if {c["input_layout"], c["output_layout"]} == layouts
    ]
    check(workload, configs[-1], np.random.default_rng(9))


@pytest.mark.parametrize(
    "text",
    [
        "conv2d c=3 h=32 w=32 oc=32 kh=3 kw=3 stride=2 pad=1 const=weight dtype=float16",
        "conv2d c=3 h=28 w=28 oc=32 kh=7 kw=7 stride=4 pad=3 const=weight dtype=float16",
    ],
)
def test_blocks_in_phases_stay_in_the_image(text: str) -> None:
    workload = Workload.parse(text)
    layouts = {(c["input_layout"], c["output_layout"]): c for c in space_of(workload, TARGET)}
    assert len(layouts) > 4
    for config in layouts.values():
        verify(lowered(workload, TARGET, config), TARGET)
    check(workload, layouts["NHW4h4wC", "NHWC"], np.random.default_rng(9))


@pytest.mark.parametrize(
    "layout, text",
    [
        ("NHW2h2wC", "c=20 h=12 w=8 kh=3 kw=3 stride=2 pad=1 dtype=uint8"),
        ("NHW2hC", "c=5 h=6 w=7 kh=2 kw=3 stride=2x1 pad=0x1x0x1 dtype=int8"),
        ("NHW4h2wC", "n=2 c=3 h=8 w=10 kh=2 kw=4 stride=4x2 pad=1 dilation=3x1 dtype=float16"),
    ],
)
def test_maxima_are_taken_of_blocks_of_pixels(layout: str, text: str) -> None:
    workload = Workload.parse(f"pool2d kind=max {text}")
    configs = [c for c in space_of(workload, TARGET) if c["input_layout"] == layout]
    check(workload, configs[0], np.random.default_rng(7))


@pytest.mark.parametrize(
    "text, said",
    [
        ("matmul m=4 n=4 k=4", "lpu1 multiplies float16 and int8, not float32; give dtype=float16"),
        ("conv2d c=4 h=4 w=4 oc=4 kh=1 kw=1 dtype=float16", "give const=weight"),
    ],
)
def test_what_has_no_instruction_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        scheduler_of(Workload.parse(text), TARGET)


def test_a_chain_reads_the_frame_from_one_home() -> None:
    """Chains side by side have the quantised zero from several slices; each from one alone."""
    text = "conv2d c=3 h=112 w=112 oc=64 kh=7 kw=7 pad=3 stride=2 dtype=int8 const=weight,pad_value"
    workload = Workload.parse(text)
    chosen = {"input_layout": "NHW8h8wC", "output_layout": "NHWC", "rows": 5, "series": 1}
    space = space_of(workload, TARGET)
    config = next(c for c in space if all(c[n] == v for n, v in chosen.items()))
    made = schedule(selected(workload, TARGET, config).dataflow, Chip.of(TARGET))
    prove(made)
    frame = next(n for n, place in enumerate(made.places) if place.name == "frame")
    homes = defaultdict(set)
    for burst in made:
        if burst["op"] == BurstOp.READ and burst["tensor"] == frame:
            homes[burst["chain"]].add((burst["queue"], burst["bank"], burst["address"]))
    known = {(home,) for r in made.regions if r.tensor == "frame" for (home,) in r.homes}
    assert len(homes) > 20 and all(tuple(used) in known for used in homes.values())
    assert len(set.union(*homes.values())) > 1
