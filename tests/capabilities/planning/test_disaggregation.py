"""Prompts and answers apart: closed forms of both queues, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.capabilities.planning.test_batching import seconds
from tests.capabilities.planning.test_sizing import CANDIDATES, DEMAND, candidate
from tilesmith.capabilities.planning.batching.events import Engine, serve
from tilesmith.capabilities.planning.batching.step_times import DeploymentTimes
from tilesmith.capabilities.planning.batching.traffic import Lengths, poisson
from tilesmith.capabilities.planning.sizing.answer import PrefillPool, ReplicaOptions
from tilesmith.capabilities.planning.sizing.demand import Bounds
from tilesmith.capabilities.planning.sizing.disaggregation import first_tokens, serve_split
from tilesmith.capabilities.planning.sizing.fewest_chips import smallest
from tilesmith.capabilities.planning.sizing.split_sizing import fewest, smallest_split
from tilesmith.search_space.support.errors import InputError


def test_prompts_wait_as_in_a_queue_of_one_server() -> None:
    times = DeploymentTimes(lambda sequences, tokens, before: 4e-3)
    traffic = poisson(150.0, 60_000, Lengths(10, 10), np.random.default_rng(0))
    waited = (first_tokens(times, traffic, 1) - traffic.arrivals - 4e-3).mean()
    load = 150 * 4e-3
    assert waited == pytest.approx(load * 4e-3 / (2 * (1 - load)), rel=0.05)


def test_first_tokens_are_the_prompts_and_answers_follow_their_caches() -> None:
    traffic = poisson(20.0, 1_500, Lengths(400, 60, 0.4, 0.6), np.random.default_rng(1))
    one = candidate(4)
    pool = PrefillPool(one, 2, transfer_s=1e-6)
    engine = Engine(one.times, 50_000, 64)
    found = serve_split(pool, engine, traffic, 3, most=3)
    assert len(found) == 1_500
    expected = first_tokens(one.times, traffic, 2)
    assert sorted(found.first) == sorted(expected)
    several = found.outputs > 1
    lag = found.last - found.first - (found.outputs - 1) * one.times.decode(1, 1)
    assert (lag[several] > 1e-6 * found.inputs[several]).all()
    assert (found.last[~several] == found.first[~several]).all()


def test_prompts_never_stall_answers() -> None:
    lengths = Lengths(2_000, 100, 0.4, 0.4)
    traffic = poisson(14.0, 900, lengths, np.random.default_rng(2))
    engine = Engine(DeploymentTimes(seconds), 200_000, 64)
    together = serve(engine, [traffic.share(n, 3) for n in range(3)])
    pool = PrefillPool(candidate(1), 2, 0.0)
    apart = serve_split(pool, engine, traffic, 1, most=1)
    assert apart.gap_s(99) < 0.3 * together.gap_s(99)


def test_pools_are_the_smallest_that_keep_the_bounds() -> None:
    bounds = Bounds(ttft_p99=40, tpot_p99=2.2)
    found = smallest_split(CANDIDATES, DEMAND, bounds, ReplicaOptions())
    assert found.prefill is not None and not bounds.missed(found.served)
    assert found.chips == sum(fleet.chips(n) for fleet, n in found.pools)
    assert found.usd_per_hour == sum(fleet.usd_per_hour(n) or 0 for fleet, n in found.pools)
    with pytest.raises(InputError, match="nothing serves"):
        smallest(CANDIDATES[:1], DEMAND, Bounds(tpot_p99=2.2), ReplicaOptions())
    with pytest.raises(InputError, match="no replicas for prompts"):
        smallest_split(CANDIDATES[:1], DEMAND, Bounds(tpot_p99=2.2), ReplicaOptions())
    with pytest.raises(InputError, match="more than the 1 allowed"):
        smallest_split(CANDIDATES, DEMAND, bounds, ReplicaOptions(chips=1))


def test_the_fewest_are_found_by_galloping_and_bisection() -> None:
    for needed in range(1, 40):
        assert fewest(1, 64, lambda n, needed=needed: n >= needed) == needed
    assert fewest(1, 64, lambda n: False) is None
