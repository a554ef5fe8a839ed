"""Laws that hold on the programs of scheduled operators, whatever the configuration."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesmith.codegen.programs.structures import space_of
from tilesmith.families.trainium.codegen.isa.core import ENGINES, Core
from tilesmith.families.trainium.codegen.isa.verification import (
    verify_dataflow,
    verify_synchronisation,
)
from tilesmith.families.trainium.simulator.estimation.roofline import compulsory_bytes, roofline
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.workloads.scheduler import is_scheduled
from tilesmith.search_space.workloads.template import templates
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge

TARGET = load_target("trn1")
CORE = Core.of(TARGET)
WORKLOADS = (
    "matmul m=256 n=640 k=512 epilogue=bias,gelu_tanh",
    "matmul m=130 n=520 k=200 tb=1 dtype=bfloat16",
    "conv2d c=64 h=14 w=14 oc=64 kh=3 kw=3 pad=1 const=weight dtype=bfloat16",
    "conv2d c=130 h=10 w=9 oc=72 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
    "softmax shape=300x256",
    "elementwise shape=256x512 expression=relu(add(x0,x1))",
)
FASTER = {
    "tensor.ghz": "5.6",
    "vector.ghz": "2.2",
    "scalar.ghz": "2.8",
    "gpsimd.ghz": "2.8",
    "dma.gbps_practical": "25",
    "dma.start_ns": "600",
    "dma.transfer_floor_ns": "200",
    "hbm.gbps_core": "820",
    "semaphore.ns": "20",
}


def sampled(text: str, seed: int):
    workload = Workload.parse(text)
    space = space_of(workload, TARGET)
    (config,) = space.sample(np.random.default_rng(seed))
    return workload, config, instruction_stream(workload, TARGET, config)


@given(
    st.sampled_from(WORKLOADS), st.integers(0, 10_000), st.sampled_from(sorted(FASTER))
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_a_faster_part_never_makes_an_operators_program_slower(text, seed, setting):
    _, _, stream = sampled(text, seed)
    faster = Core.of(TARGET.with_settings({setting: FASTER[setting]}))
    before, after = timeline(stream), timeline(stream, faster)
    assert (after.end <= before.end + 1e-6).all()


@given(st.sampled_from(WORKLOADS), st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_an_operators_program_keeps_the_bounds(text, seed):
    workload, config, stream = sampled(text, seed)
    played, floor = timeline(stream), roofline(workload, CORE).latency
    judged = judge(workload, TARGET, [config]).latency[0] * 1e9
    assert floor <= judged * 1.01
    assert floor <= played.makespan
    assert played.costs.total_bytes >= compulsory_bytes(workload)
    for i, name in enumerate(ENGINES):
        issued = played.costs.issue[stream.rows["queue"] == i].sum()
        assert issued <= played.active[i] + 1e-6
        assert played.active[i] <= played.makespan + 1e-6, name
    for row in range(len(stream)):  # stalls: never before what it waits for
        for earlier in stream.waits[stream.wait_start[row] : stream.wait_start[row + 1]]:
            assert played.start[row] - played.end[earlier] >= -1e-6


EXAMPLES = [
    text
    for name in sorted(templates)
    for text in templates[name].examples
    if is_scheduled(Workload.parse(text), TARGET)
]


@given(st.sampled_from(EXAMPLES), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_data_flows_and_is_waited_for_in_the_order_that_is_granted(text, seed):
    _, _, stream = sampled(text, seed)
    verify_dataflow(stream, wanted=())
    verify_synchronisation(stream)
