"""How many chips: against trying every number of replicas, one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from tests.capabilities.planning.test_batching import seconds
from tilesmith.capabilities.planning.batching.events import Engine, serve
from tilesmith.capabilities.planning.batching.step_times import DeploymentTimes
from tilesmith.capabilities.planning.batching.traffic import Lengths, Traffic
from tilesmith.capabilities.planning.sizing.answer import ReplicaCandidate, ReplicaOptions
from tilesmith.capabilities.planning.sizing.demand import Bounds, Demand
from tilesmith.capabilities.planning.sizing.fewest_chips import smallest
from tilesmith.capabilities.planning.sweeps.fleet import InstanceFleet
from tilesmith.capabilities.planning.sweeps.prices import Price
from tilesmith.search_space.support.errors import InputError


def candidate(cores: int) -> ReplicaCandidate:
    """More cores: faster, but not in proportion."""
    times = DeploymentTimes(lambda s, t, b: seconds(s, t, b) / cores**0.7 + 2e-4)
    return ReplicaCandidate(
        f"tp={cores}", InstanceFleet("box", 4, 2, cores, Price(8.0)), times, 4_000 * cores
    )


CANDIDATES = tuple(candidate(cores) for cores in (1, 2, 4, 8))
DEMAND = Demand(30.0, Lengths(200, 100, 0.5, 0.5), requests=600)


def test_replicas_fill_chips_and_chips_fill_instances() -> None:
    small, large, odd = (
        InstanceFleet("box", 4, 2, 1),
        InstanceFleet("box", 4, 2, 8),
        InstanceFleet("box", 4, 2, 3),
    )
    assert [small.chips(n) for n in (1, 2, 3, 8, 9)] == [1, 1, 2, 4, 5]
    assert [small.instances(n) for n in (1, 8, 9)] == [1, 1, 2]
    assert [large.chips(n) for n in (1, 2)] == [4, 8]
    assert (odd.replicas_each, odd.chips(2), odd.chips(3), odd.instances(3)) == (2, 3, 5, 2)
    assert InstanceFleet("box", 4, 2, 1, Price(8.0)).usd_per_hour(9) == 16.0
    with pytest.raises(InputError, match="a replica of 9 cores is larger than box, which has 8"):
        InstanceFleet("box", 4, 2, 9)


@pytest.mark.parametrize(
    "bounds",
    [Bounds(), Bounds(ttft_p99=150), Bounds(ttft_p99=60, tpot_p99=4), Bounds(ttft_p50=12)],
    ids=str,
)
def test_nothing_smaller_serves(bounds: Bounds) -> None:
    options = ReplicaOptions(policies=("prefill_first",), batch=64)
    found = smallest(CANDIDATES, DEMAND, bounds, options)
    assert not bounds.missed(found.served)
    assert DEMAND.rate < found.replicas * found.capacity
    for one in CANDIDATES:
        for replicas in range(1, 40):
            if one.fleet.chips(replicas) >= found.chips:
                break
            engine = Engine(one.times, one.cache_tokens, found.engine.batch)
            served = serve(engine, DEMAND.shares(replicas))
            half = served.from_second(float(np.median(served.arrivals)))
            grows = half.ttft_s.mean() > 1.5 * served.ttft_s.mean()
            assert bounds.missed(served.from_second(float(served.whole_s.mean()))) or grows, (
                f"{one.label} x {replicas}"
            )


def test_the_cheapest_may_have_more_chips() -> None:
    times = DeploymentTimes(seconds)
    dear = ReplicaCandidate("dear", InstanceFleet("new", 1, 1, 1, Price(50.0)), times, 10_000)
    slower = DeploymentTimes(lambda s, t, b: 2.5 * seconds(s, t, b))
    cheap = ReplicaCandidate("cheap", InstanceFleet("old", 1, 1, 1, Price(1.0)), slower, 10_000)
    assert smallest([dear, cheap], DEMAND, Bounds(), ReplicaOptions()).candidate is dear
    by_cost = smallest([dear, cheap], DEMAND, Bounds(), ReplicaOptions(by_cost=True))
    assert by_cost.candidate is cheap


def test_a_trace_is_served_as_it_comes() -> None:
    burst = np.concatenate([np.zeros(200), np.arange(200.0)])
    trace = Traffic(np.sort(burst), np.full(400, 100), np.full(400, 50))
    demand = Demand.of_trace(trace)
    slow = smallest(CANDIDATES[:1], demand, Bounds(), ReplicaOptions())
    fast = smallest(CANDIDATES[:1], demand, Bounds(ttft_p99=300), ReplicaOptions())
    assert fast.replicas > slow.replicas == 1
    assert len(fast.served) == 400
    assert np.percentile(fast.served.ttft_s, 99) <= 0.3


def test_what_nothing_serves_is_one_sentence() -> None:
    with pytest.raises(
        InputError, match=r"nearest, tp=8 has a time per output token of 0.9\d* ms even"
    ):
        smallest(CANDIDATES, DEMAND, Bounds(tpot_p99=0.5), ReplicaOptions())
    with pytest.raises(
        InputError, match=r"nothing serves 30 requests .* time to first token .* even"
    ):
        smallest(CANDIDATES, DEMAND, Bounds(ttft_p99=1), ReplicaOptions())
    with pytest.raises(InputError, match=r"need at least \d+ chips .*, more than the 2 allowed"):
        smallest(
            CANDIDATES[:1], Demand(400.0, DEMAND.lengths, 300), Bounds(), ReplicaOptions(chips=2)
        )
