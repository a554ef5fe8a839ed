"""The three fidelities agree with each other, and a tuned product reaches what it should."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.families.trainium.codegen.isa.instructions import Opcode, Space
from tilesmith.families.trainium.codegen.timing.costs import costs
from tilesmith.families.trainium.simulator.estimation.estimate import COLUMNS
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import ConfigError, TargetError, WorkloadError
from tilesmith.search_space.workloads.scheduler import find_scheduler, schedulers
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge, judges_as_measured, measure, simulate

TRN1, TRN2 = load_target("trn1"), load_target("trn2")
PRODUCTS = [
    "matmul m=512 n=512 k=512",
    "matmul m=1024 n=1024 k=512 dtype=bfloat16",
    "matmul m=128 n=3072 k=768 dtype=bfloat16 epilogue=bias,gelu_tanh",
    "matmul m=384 n=640 k=200 batch=2 tb=1",
]


def sampled(text, count):
    workload = Workload.parse(text)
    space = space_of(workload, TRN1)
    return workload, list(dict.fromkeys(space.sample(np.random.default_rng(0), count)))


@pytest.mark.parametrize("text", PRODUCTS)
def test_fidelities_agree(text):
    workload, configs = sampled(text, 8)
    judged = judge(workload, TRN1, configs)
    floor = simulate(workload, TRN1, None, "roofline").latency_us
    for index, config in enumerate(configs):
        played = simulate(workload, TRN1, config, "timeline")
        assert floor <= judged.latency[index] * 1e6 * 1.01
        assert floor <= played.latency_us
        assert 0.5 <= judged.latency[index] * 1e6 / played.latency_us <= 2.0
        assert all(0 <= share <= 1 + 1e-9 for share in played.engines.values())
        assert played.details["bytes_moved"] >= 0.999 * compulsory(workload)


def compulsory(workload):
    template = template_of(workload.operator)
    operands = (*template.operands(workload), template.output(workload))
    size = 2 if workload.dtype == "bfloat16" else 4
    return sum(int(np.prod(o.shape)) * size for o in operands)


def test_analytical_ranks_as_the_timeline_does():
    workload, configs = sampled("matmul m=2048 n=2048 k=1024 dtype=bfloat16", 24)
    judged = judge(workload, TRN1, configs).latency
    played = measure(workload, TRN1, configs).latency
    assert spearmanr(judged, played).statistic >= 0.9


@pytest.mark.parametrize("name, alike", [("trn1", False), ("cpu", True)])
def test_a_family_says_whether_it_judges_as_it_measures(name, alike):
    target = TRN1 if name == "trn1" else cpu_target("cpu", "avx512", "x86_64-unknown-linux-gnu")
    workload = Workload.parse("matmul m=128 n=256 k=64")
    configs = space_of(workload, target).sample(np.random.default_rng(0), 8)
    judged, measured = (by(workload, target, configs).latency for by in (judge, measure))
    assert judges_as_measured(target) == alike == np.array_equal(judged, measured)


def test_engines_and_places_are_judged_together_as_each_alone():
    workload, configs = sampled("attention m=128 n=256 k=64 heads=4 dtype=bfloat16", 20)
    together = judge(workload, TRN1, configs)
    assert len(set(together.latency)) > 12
    for index, config in enumerate(configs):
        alone = judge(workload, TRN1, [config])
        assert alone.latency[0] == together.latency[index]
        assert np.array_equal(alone.features[0], together.features[index])


def test_a_batch_is_judged_as_each_alone():
    workload, configs = sampled(PRODUCTS[1], 20)
    together = judge(workload, TRN1, configs)
    for index, config in enumerate(configs):
        alone = judge(workload, TRN1, [config])
        assert alone.latency[0] == pytest.approx(together.latency[index], rel=1e-9)
        np.testing.assert_allclose(alone.features[0], together.features[index], rtol=1e-5)
        assert alone.bound[0] == together.bound[index]


@pytest.mark.parametrize("text", [PRODUCTS[1], PRODUCTS[3]])
def test_features_count_what_the_stream_does(text):
    """Columns against the instruction stream that each configuration becomes."""
    workload, configs = sampled(text, 6)
    found = 2.0 ** judge(workload, TRN1, configs).features.astype(np.float64) - 1
    column = {name: found[:, i] for i, name in enumerate(COLUMNS)}
    for index, config in enumerate(configs):
        stream = instruction_stream(workload, TRN1, config)
        op, moved = stream.rows["op"], costs(stream).bytes
        assert column["bytes"][index] == pytest.approx(moved.sum(), rel=1e-3)
        assert column["stored"][index] == pytest.approx(moved[op == Opcode.STORE].sum(), rel=1e-3)
        assert column["matmuls"][index] == pytest.approx((op == Opcode.MATMUL).sum(), rel=1e-3)
        assert column["transposes"][index] == pytest.approx(
            (op == Opcode.TRANSPOSE).sum(), rel=1e-3
        )
        tensor = costs(stream).issue[stream.rows["queue"] == 0].sum()
        assert column["tensor"][index] == pytest.approx(tensor, rel=1e-3)
        space = {s: [a for a in stream.allocations if a.space == s] for s in Space}
        for name, memory in (("SBUF", Space.SBUF), ("PSUM", Space.PSUM)):
            places = {a.offset: a.bytes for a in space[memory]}
            assert column[f"{name} bytes a partition"][index] >= 0.99 * sum(places.values())


def test_pieces_whose_last_is_shorter_are_judged():
    """Tiles as long as a piece of a row, of which the last may be shorter."""
    text = "elementwise shape=21x128x128 expression=where(or(equal(x0,x1),is_nan(x0)),x2,21) "
    workload = Workload.parse(text + "x1=1x128x128 x2=21x1x1")
    judged = simulate(workload, TRN1, None, "analytical").latency_us
    assert judged == pytest.approx(simulate(workload, TRN1, None, "timeline").latency_us, rel=0.3)


def test_no_configurations():
    judged = judge(Workload.parse(PRODUCTS[0]), TRN1, [])
    assert judged.latency.shape == (0,) and judged.features.shape[0] == 0


def test_more_sbuf_never_makes_the_best_worse():
    workload = Workload.parse("matmul m=256 n=512 k=1024 ta=1")
    best = []
    for size in ("4", "24"):
        target = TRN1.with_settings({"sbuf.mib": size})
        configs = list(space_of(workload, target))
        best.append(measure(workload, target, configs).latency.min())
    assert best == sorted(best, reverse=True)


def test_trn2_and_settings():
    workload, (config, *_) = sampled(PRODUCTS[0], 1)
    assert simulate(workload, TRN2, None, "timeline").latency_us > 0
    faster = TRN1.with_settings({"dma.engines": "32"})
    times = [simulate(workload, t, config, "timeline").latency_us for t in (TRN1, faster)]
    assert times[1] <= times[0]


@pytest.mark.parametrize("fidelity", ["roofline", "analytical", "timeline"])
def test_result_has_the_keys_scripts_rely_on(fidelity):
    result = simulate(Workload.parse(PRODUCTS[0]), TRN1, None, fidelity)
    found = json.loads(json.dumps(result.to_json()))
    assert found["fidelity"] == fidelity and found["latency_us"] > 0
    for key in ("cycles", "compute_cycles", "bound", "engines", "ops", "roofline_us"):
        assert key in found
    assert found["ops"][0]["workload"] == PRODUCTS[0]
    if fidelity != "roofline":
        assert found["bytes_moved"] > 0 and found["transposes"] == 16


def test_traces_are_written(tmp_path):
    workload = Workload.parse("matmul m=128 n=128 k=128")
    plain = simulate(workload, TRN1, None, "timeline", tmp_path / "trace.json")
    noted = simulate(workload, TRN1, None, "analytical", tmp_path / "trace.html")
    assert noted.latency_us == plain.latency_us and plain.notes == ()
    assert "not analytical ones" in noted.notes[0]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "<svg" in (tmp_path / "trace.html").read_text()


def test_an_operator_without_a_schedule_is_named(monkeypatch):
    workload = Workload.parse("transpose shape=5x7 perm=1x0")
    monkeypatch.setattr(schedulers, "find", lambda name: None)
    with pytest.raises(TargetError, match="operator 'transpose' has no schedule for target 'trn1'"):
        simulate(workload, TRN1.with_settings({"dma.engines": "15"}), None, "timeline")


def test_a_fact_misspelt_in_a_scheduler_is_named(monkeypatch):
    workload = Workload.parse("transpose shape=5x7 perm=1x0")
    scheduler = find_scheduler("transpose", "trainium")
    monkeypatch.setattr(type(scheduler), "space", lambda *_: TRN1.integer("sbuf.partitons"))
    with pytest.raises(TargetError, match=r"has no 'sbuf\.partitons'"):
        simulate(workload, TRN1.with_settings({"sbuf.mib": "25"}), None, "timeline")


def test_an_operator_whose_smallest_tile_does_not_fit_is_named():
    text = "layer_norm shape=640x64000"
    small = TRN1.with_settings({"sbuf.mib": "1"})
    with pytest.raises(WorkloadError, match=rf"'{text}' fits .*: bytes of SBUF .* limit of 8192"):
        simulate(Workload.parse(text), small)


def test_attention_is_for_accelerators():
    workload = Workload.parse("attention m=5 n=7 k=3")
    with pytest.raises(TargetError, match=r"no schedule for target 'systolic'.*use matmul"):
        space_of(workload, load_target("systolic"))


def test_tensors_larger_than_hbm():
    workload = Workload.parse("matmul m=65536 n=65536 k=1024")
    with pytest.raises(WorkloadError, match=r"needs 16\.5 GiB; a core of target 'trn1' has 16\.0"):
        simulate(workload, TRN1, None, "timeline")


def test_wrong_configurations_and_targets():
    workload, (config, *_) = sampled(PRODUCTS[0], 1)
    with pytest.raises(ConfigError, match="m_tiles"):
        simulate(workload, TRN1, type(config).of({**config, "m_tiles": 999}), "timeline")
    with pytest.raises(TargetError, match="out of range"):
        TRN1.with_settings({"sbuf.mib": "0"})


def test_a_product_reaches_the_tensor_engines_peak():
    """4096^3 in bf16, the best of the space by the analytical model, played on the timeline."""
    workload = Workload.parse("matmul m=4096 n=4096 k=4096 dtype=bfloat16")
    usual = {"copies_inner": 2, "evacuate": "scalar", "turn": "vector", "load_tiles": 2}
    space = space_of(workload, TRN1)
    configs = [
        config
        for subspace in space.subspaces
        if usual.items() >= {n: v for n, v in subspace.fixed if n in usual}.items()
        for config in SearchSpace((subspace,))
        if config["load_tiles"] == usual["load_tiles"]
    ]
    order = np.argsort(judge(workload, TRN1, configs).latency)[:4]
    played = [simulate(workload, TRN1, configs[i], "timeline") for i in order]
    assert max(p.details["tensor_peak_share"] for p in played) >= 0.88
