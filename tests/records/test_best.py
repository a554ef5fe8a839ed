"""Best-of questions, against a brute-force answer and rule by rule."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tilesmith.records import Database, TuningRecord
from tilesmith.records.questions.likeness import distance
from tilesmith.search_space.hardware.target import Fact, Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload


def brute_force(records, key, layouts=(None, None), measured_by=None):
    """The rule in plain Python: each last word, hardware first, near-ties by key."""
    last = {}
    for record in records:
        by = record.result.measured_by
        if record.workload_key == key and record.threads == 1:
            last[by, record.layouts, record.config] = record
    pool = [
        r
        for r in last.values()
        if r.latency is not None
        and measured_by in (None, r.result.measured_by)
        and all(asked in (None, has) for asked, has in zip(layouts, r.layouts, strict=True))
    ]
    pool = [r for r in pool if r.result.measured_by == "hardware"] or pool
    if not pool:
        return None
    tolerance = 0.02 if pool[0].result.measured_by == "hardware" else 1e-6
    bound = min(r.latency for r in pool) * (1 + tolerance)
    return min((r for r in pool if r.latency <= bound), key=lambda r: (r.config.key, r.latency))


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_brute_force(database, target, seed):
    rng = np.random.default_rng(seed)
    keys = [f"matmul m={m} n=8 k=8" for m in (1, 2, 3)]
    records = []
    for _ in range(300):
        failed = rng.random() < 0.1
        by = str(rng.choice(["hardware", "simulator"]))
        layout = ["", "NCHW16c"][int(rng.integers(2))]
        latency = float(np.round(rng.uniform(1e-3, 1.05e-3), 6))
        result = (
            MeasureResult("crash", by, message="boom")
            if failed
            else MeasureResult("ok", by, (latency,))
        )
        records.append(
            TuningRecord(
                str(rng.choice(keys)),
                target,
                Config.of(tile=int(rng.integers(40)), layout=layout),
                result,
                threads=int(rng.integers(1, 3)),
                input_layout=layout,
                output_layout=layout,
            )
        )
    for start in range(0, 300, 37):
        database.add(records[start : start + 37])
    for by in (None, "hardware", "simulator"):
        together = database.bests([*keys, "matmul m=9 n=8 k=8"], target, measured_by=by)
        pairs = database.layout_bests(keys, target, measured_by=by)
        assert set(together) == set(pairs) == set(keys)
        for key in keys:
            expected = brute_force(records, key, measured_by=by)
            assert together[key].record.config == expected.config
            assert together[key].latency == expected.latency
            assert not together[key].stale
            for layouts in itertools.product(["", "NCHW16c"], repeat=2):
                expected = brute_force(records, key, layouts, by)
                found = pairs[key].get(layouts)
                assert (found and found.record.config) == (expected and expected.config)
                single = database.best(
                    key,
                    target,
                    input_layout=layouts[0],
                    output_layout=layouts[1],
                    measured_by=by,
                )
                assert (single and single.record) == (found and found.record)


def test_nothing_known_is_none(database, key, target, make_record):
    assert database.best(key, target) is None
    database.add([make_record(1, status="crash")])
    assert database.best(key, target) is None
    assert database.bests([key], target) == {}


def test_near_ties_fall_to_the_lowest_key_in_any_order(tmp_path, key, target, make_record):
    trials = [make_record(tile, 1e-3 * (1 + 0.002 * tile)) for tile in (5, 3, 1, 4, 2)]
    for number, order in enumerate(itertools.permutations(trials, 5)):
        if number % 40:
            continue
        with Database.open(str(tmp_path / f"{number}.db")) as database:
            for trial in order:
                database.add([trial])
            assert database.best(key, target).record.config == Config.of(tile=1)


def test_a_difference_beyond_noise_decides(database, key, target, make_record):
    database.add([make_record(1, 1.03e-3), make_record(2, 1.0e-3)])
    assert database.best(key, target).record.config == Config.of(tile=2)


def test_simulated_latencies_have_no_noise(database, key, target, make_record):
    database.add(
        [
            make_record(1, 1.001e-3, measured_by="simulator"),
            make_record(2, 1.0e-3, measured_by="simulator"),
            make_record(3, 1.0e-3, measured_by="simulator"),
        ]
    )
    assert database.best(key, target).record.config == Config.of(tile=2)


def test_hardware_beats_a_faster_simulation(database, key, target, make_record):
    database.add([make_record(1, 1e-9, measured_by="simulator"), make_record(2, 1e-3)])
    assert database.best(key, target).record.config == Config.of(tile=2)
    simulated = database.best(key, target, measured_by="simulator")
    assert simulated.record.config == Config.of(tile=1)


def test_bests_of_layout_pairs_never_mix_measured_and_simulated(database, key, target, make_record):
    def layout(name):
        return {"input_layout": name, "output_layout": name}

    database.add(
        [
            make_record(1, 1e-3, **layout("NCHW")),
            make_record(1, 2e-3, measured_by="simulator", **layout("NCHW")),
            make_record(2, 1e-9, measured_by="simulator", **layout("NHWC")),
        ]
    )
    assert list(database.layout_bests([key], target)[key]) == [("NCHW", "NCHW")]
    simulated = database.layout_bests([key], target, measured_by="simulator")[key]
    assert {pair[0]: best.latency for pair, best in simulated.items()} == {
        "NCHW": 2e-3,
        "NHWC": 1e-9,
    }


def test_the_last_word_counts(database, key, target, make_record):
    database.add([make_record(1, 1e-3), make_record(2, 2e-3)])
    database.add([make_record(1, 5e-3)])
    assert database.best(key, target).record.config == Config.of(tile=2)
    database.add([make_record(2, status="wrong")])
    assert database.best(key, target).latency == 5e-3
    assert [r.latency for r in database.top(key, target)] == [5e-3]
    assert len(database.query()) == 4


def test_an_older_trial_that_comes_later_is_not_the_last_word(
    database, key, target, make_record, at
):
    database.add([make_record(1, 2e-3, created_at=at(60))])
    database.add([make_record(1, 1e-3, created_at=at(0))])
    assert database.best(key, target).latency == 2e-3


def test_a_clock_set_back_does_not_undo_the_last_word(
    database, key, target, make_record, monkeypatch, at
):
    database.add([make_record(1, 1e-3)])
    before = database.query()[0].created_at

    class SetBack:
        @staticmethod
        def now(zone):
            return at(0)

    monkeypatch.setattr("tilesmith.records.database.datetime", SetBack)
    database.add([make_record(1, 2e-3)])
    assert database.best(key, target).latency == 2e-3
    assert [r.created_at for r in database.query()] == [before, before]


def test_stale_records_are_marked_and_yield_to_fresh_ones(
    database, key, target, make_record, versions
):
    _, old = versions
    database.add([make_record(1, 1e-3, toolchain=old)])
    best = database.best(key, target)
    assert best.stale and "codegen was 0, is 1" in best.stale_because
    assert "simulator" not in " ".join(best.stale_because)
    assert database.tried(key, target) == set()
    assert len(database.tried(key, target, fresh_only=False)) == 1
    database.add([make_record(2, 9e-3)])
    best = database.best(key, target)
    assert best.record.config == Config.of(tile=2) and not best.stale


def test_a_fresh_failure_overrules_a_stale_success(database, key, target, make_record, versions):
    _, old = versions
    database.add([make_record(1, 1e-3, toolchain=old), make_record(2, 3e-3, toolchain=old)])
    database.add([make_record(1, status="crash")])
    best = database.best(key, target)
    assert best.record.config == Config.of(tile=2) and best.stale
    database.add([make_record(2, status="wrong")])
    assert database.best(key, target) is None


def test_stale_hardware_overruled_everywhere_leaves_the_simulator(
    database, key, target, make_record, versions
):
    _, old = versions
    database.add([make_record(1, 1e-3, toolchain=old), make_record(1, status="crash")])
    database.add([make_record(4, 1e-3, measured_by="simulator")])
    assert database.best(key, target).record.config == Config.of(tile=4)


def test_a_new_calibration_makes_simulations_stale(sqlite, key):
    def described(bandwidth: float) -> Target:
        facts = {"lanes": Fact(16), "bandwidth": Fact(bandwidth, calibratable=True)}
        return Target.of("cpu", "cpu", facts)

    from tilesmith.search_space.workloads.workload import Workload

    before, after = described(1.0), described(2.0)
    assert before.identity == after.identity
    workload = Workload.parse(key)
    for by in ("simulator", "hardware"):
        result = MeasureResult("ok", by, (1e-3,))
        sqlite.add([TuningRecord.of(workload, before, Config.of(tile=1), result)])
    assert not sqlite.best(workload, before, measured_by="simulator").stale
    again = sqlite.best(workload, after, measured_by="simulator")
    assert again.stale_because == ("the target was calibrated anew",)
    assert not sqlite.best(workload, after).stale, "a measured time needs no calibration"


def test_threads_and_targets_are_kept_apart(database, key, target, make_record):
    database.add([make_record(1, 1e-3, threads=2)])
    assert database.best(key, target) is None
    assert database.best(key, target, threads=2).latency == 1e-3
    assert database.best(key, "cpu-ffffffff", threads=2) is None


def test_overview_has_one_best_for_each_subject(database, make_record):
    database.add(
        make_record(tile, tile * 1e-3, workload=f"matmul m={m} n=8 k=8", threads=threads)
        for m in (3, 1, 2)
        for threads in (1, 2)
        for tile in (2, 1)
    )
    found = [(b.record.workload_key, b.record.threads) for b in database.overview()]
    assert found == [(f"matmul m={m} n=8 k=8", t) for m in (1, 2, 3) for t in (1, 2)]
    assert all(best.latency == 1e-3 for best in database.overview())
    assert len(database.overview(target="cpu", threads=2)) == 3
    assert database.overview(target="trn1") == database.overview(operator="conv2d") == []


def test_nearest_offers_other_shapes_of_the_operator_first_the_nearest(
    database, target, make_record
):
    from tilesmith.search_space.workloads.workload import Workload

    for key in (
        "matmul m=64 n=64 k=64",
        "matmul m=96 n=64 k=64",
        "matmul m=640 n=64 k=64",
        "matmul m=96 n=64 k=64 dtype=bfloat16",
        "matmul m=96 n=64 k=64 epilogue=relu",
        "conv2d n=1 c=64 h=56 w=56 oc=64 kh=3 kw=3",
        "operator_of_the_future x=1",
    ):
        database.add([make_record(1, 1e-3, workload=key)])
    asked = Workload.parse("matmul m=64 n=64 k=64")
    found = [best.record.workload_key for best in database.nearest(asked, target)]
    assert found == [
        "matmul m=96 n=64 k=64",
        "matmul m=96 n=64 k=64 epilogue=relu",
        "matmul m=640 n=64 k=64",
    ]
    assert len(database.nearest(asked, target, limit=1)) == 1
    assert database.nearest(asked, target, threads=2) == []


def test_a_key_that_names_a_type_of_sums_is_near_to_nothing():
    workload = Workload.parse("matmul m=8 n=8 k=8")
    assert distance(workload, "matmul m=8 n=8 k=9") < math.inf
    assert distance(workload, "matmul m=8 n=8 k=8 accumulate=float64") == math.inf
