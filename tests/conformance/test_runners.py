"""Every registered runner measures in two steps what it measures in one, in any order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import measure
from tilesmith.tuner.measurement.runner import Candidate, Runner, RunnerOptions, runners
from tilesmith.tuner.tasks.cancel import CancelToken

WORKLOADS = [Workload.parse(f"matmul m={m} n=16 k=32 const=b") for m in (8, 24)]
TARGET = host_target()


def batches() -> list[list[Candidate]]:
    rng = np.random.default_rng(0)
    return [[(w, config) for config in space_of(w, TARGET).sample(rng, 3)] for w in WORKLOADS]


@pytest.fixture(scope="module", params=list(runners))
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """One of each kind; what it needs of recorded results is there."""
    recorded = {
        batch[0][0].key: {c: MeasureResult("ok", "simulator", (1e-6,)) for _, c in batch[:2]}
        for batch in batches()
    }
    opened = runners[request.param](RunnerOptions(TARGET, judge=measure, recorded=recorded))
    yield opened
    opened.close()


def told(runner: Runner, results: list[MeasureResult]) -> list[object]:
    """What of results is the same each time."""
    return [(r.status, r.samples if runner.deterministic else r.ok) for r in results]


def test_batches_under_way_come_to_what_measuring_them_does(runner: Runner) -> None:
    first, second = batches()
    expected = [told(runner, runner.measure(batch)) for batch in (first, second)]
    assert [len(found) for found in expected] == [3, 3]
    begun = [runner.begin(batch) for batch in (first, second, first)]
    assert begun[0] != begun[2], "the same batch may be under way twice"
    found = {place: told(runner, runner.finish(begun[place])) for place in (1, 0)}
    runner.abandon(begun[2])
    assert [found[0], found[1]] == expected
    assert told(runner, runner.finish(runner.begin(first))) == expected[0]


def test_an_empty_batch_has_no_results(runner: Runner) -> None:
    assert runner.finish(runner.begin([])) == []


def test_what_is_cancelled_or_late_gives_a_prefix(runner: Runner) -> None:
    batch, token = batches()[0], CancelToken()
    expected = told(runner, runner.measure(batch))
    token.cancel()
    for cancel, deadline in ((token, None), (None, 0.0)):
        found = told(runner, runner.finish(runner.begin(batch), cancel, deadline))
        assert found == expected[: len(found)]


def test_labels_are_told(runner: Runner) -> None:
    assert {r.measured_by for r in runner.measure(batches()[0])} == {runner.measured_by}
    assert runner.batch >= 1 and runner.pace > 0 and runner.drift >= 0
