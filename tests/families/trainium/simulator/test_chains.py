"""What interleaved loops take: lives of tiles bound chains, and estimates rank as the timeline."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from tilesmith.codegen.programs.structures import default_of, space_of, structure_program
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.simulator.estimation.analytical import Analysis
from tilesmith.families.trainium.simulator.estimation.chains import LoopChains
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.program import Loop, walk
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge, measure

TARGET = load_target("trn1")


def chains_of(text: str, **knobs: int) -> LoopChains:
    """The chains of a workload's default configuration, some knobs changed."""
    workload = Workload.parse(text)
    space = space_of(workload, TARGET)
    config = Config.of({**default_of(workload, TARGET), **knobs})
    program = structure_program(workload, TARGET, space.structure(config))
    analysis = Analysis(program, Core.of(TARGET))
    tiles = {name: np.array([n]) for name, n in space.tiles(config).items()}
    analysis.evaluate(tiles, 1)
    loops = [s for s in walk(program.body) if isinstance(s, Loop) and s.kind == "interleaved"]
    return LoopChains(analysis, analysis.statement, 1, loops[0], dict(tiles))


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_blocks_wait_for_the_places_of_their_tiles(copies):
    """24 blocks of rows in d places: the longest life passes 24 / d - 1 times."""
    found = chains_of("softmax shape=3072x128", copies=copies, fold=1)
    alone = chains_of("softmax shape=128x128", copies=copies, fold=1)
    assert alone.waiting == 0.0
    life = float(found.waiting[0]) / (24 / copies - 1)
    assert 0.3 * found.chain < life < found.chain
    assert found.chain == pytest.approx(alone.chain)


def test_a_chain_is_as_long_as_what_depends_on_each_other():
    """Queries and keys load at once: a chain is shorter than its statements one after the other,
    and longer than the four transfers' starts that follow each other: load and store."""
    one = chains_of("attention m=128 n=128 k=64 heads=1 dtype=bfloat16")
    assert 2 * Core.of(TARGET).dma_start_ns < one.chain < 8000
    assert one.waiting == 0.0


@pytest.mark.parametrize("text", [
    "attention m=128 n=128 k=64 heads=12 dtype=bfloat16",
    "attention m=128 n=200 k=32 heads=4",
])  # fmt: skip
def test_attention_is_ranked_as_the_timeline_does(text):
    workload = Workload.parse(text)
    space = space_of(workload, TARGET)
    configs = list(dict.fromkeys(space.sample(np.random.default_rng(0), 24)))
    judged = judge(workload, TARGET, configs).latency
    played = measure(workload, TARGET, configs).latency
    assert spearmanr(judged, played).statistic >= 0.7
    assert (np.abs(np.log(judged / played)) < np.log(1.6)).mean() > 0.9


@pytest.mark.parametrize("text", [
    "softmax shape=1536x128",
    "layer_norm shape=4096x1024",
    "elementwise shape=1x256x56x56 expression=relu(add(x0,x1))",
    "elementwise shape=512x1024 expression=where(greater_equal(x0,x1),x0,x1)",
    "transpose shape=512x768 perm=1x0",
    "reduce shape=2048x49 kind=mean axes=1",
])  # fmt: skip
def test_interleaved_rows_are_estimated_closely(text):
    workload = Workload.parse(text)
    default = default_of(workload, TARGET)
    judged = judge(workload, TARGET, [default]).latency[0]
    played = measure(workload, TARGET, [default]).latency[0]
    assert judged / played == pytest.approx(1.0, abs=0.3)
