"""What is used untuned lowers and verifies, or is refused in a sentence, whatever the machine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesmith.codegen.programs.structures import default_of, inside_of, lowered, space_of
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.support.errors import ConfigError
from tilesmith.search_space.workloads.scheduler import find_scheduler
from tilesmith.search_space.workloads.workload import Workload

TARGETS = {
    name: load_target(name.split()[0]).with_settings(dict(s.split("=") for s in name.split()[1:]))
    for name in (
        "trn1", "trn2", "trn3", "inf2", "lpu1", "systolic", "tpu_v6e",
        "trn1 sbuf.mib=8", "trn2 sbuf.mib=12 psum.mib=1", "systolic sbuf.mib=1",
        "lpu1 mem.words=2048",
    )
}  # fmt: skip

ODD = st.sampled_from((1, 2, 3, 7, 16, 31, 64, 65, 128, 129, 197, 256, 300, 513, 768, 1500, 2048))
LONG = st.one_of(ODD, st.sampled_from((8192, 30522, 65536, 65537, 100003)))
FLOATS = st.sampled_from(("float32", "bfloat16", "float16"))
ANY = st.sampled_from(("float32", "bfloat16", "float16", "int32", "int64", "int8"))
WINDOW = st.sampled_from((1, 2, 3, 5, 7, 11))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """One of the operators that models spend their time in, of any size."""

    def pick(*of: object) -> object:
        return draw(st.sampled_from(of))

    rows, long, small = draw(ODD), draw(LONG), draw(st.sampled_from((1, 2, 3, 7, 12)))
    dtype, side, window = draw(FLOATS), draw(st.sampled_from((7, 14, 56, 113))), draw(WINDOW)
    shape = f"shape={pick(f'{rows}x{long}', f'{long}x{rows}', f'{small}x{rows}x{long}', f'{long}')}"
    axis = f"{draw(st.integers(0, shape.count('x')))}"
    image = f"c={rows} h={max(side, window)} w={max(side, window)} kh={window} kw={window}"
    spaced = f"stride={pick(1, 2)} pad={pick(0, window // 2)}"
    kind = pick("sum", "max", "min", "product")
    text = pick(
        f"attention m={rows} n={draw(ODD)} k={pick(16, 40, 64, 128)} heads={small} "
        f"guard={pick(0, 1)} mask={pick('none', 'row', 'shared')} dtype={dtype}",
        f"matmul m={rows} n={draw(ODD)} k={long} batch={pick(1, 3)} tb={pick(0, 1)} dtype={dtype}",
        f"matmul m={rows} n={draw(ODD)} k={draw(ODD)} const=b dtype={dtype} epilogue=bias,gelu",
        f"conv2d {image} oc={draw(ODD)} {spaced} const=weight dtype={dtype}",
        f"depthwise_conv2d {image} {spaced} const=weight dtype={dtype}",
        f"pool2d kind=max {image} {spaced} dtype={dtype}",
        f"reduce {shape} axes={axis} kind={kind} dtype={draw(ANY)}",
        f"softmax {shape} axis={axis} log={pick(0, 1)} dtype={dtype}",
        f"layer_norm {shape} dtype={dtype} epilogue={pick('gelu', 'residual')}",
        f"rms_norm {shape} dtype={dtype}",
        f"elementwise {shape} expression=gelu(x0) dtype={dtype}",
    )
    return Workload.parse(str(text))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=4)
@given(workloads())
def test_the_default_lowers_and_verifies(name: str, workload: Workload) -> None:
    target = TARGETS[name]
    scheduler = find_scheduler(workload.operator, target.family)
    reason = scheduler.refusal(workload, target) if scheduler else "there is no scheduler"
    if reason is not None:
        assert len(reason.split()) > 3
        return
    for usual in (default_of, inside_of):
        try:
            config = usual(workload, target)
        except ConfigError as limit:
            assert "=" in name, "a whole machine has room"
            assert space_of(workload, target).empty and "exceeds the limit" in str(limit)
        else:
            verify(lowered(workload, target, config), target)
