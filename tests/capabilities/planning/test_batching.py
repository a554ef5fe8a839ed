"""Serving by events: against the same told step by step, and against what queueing theory knows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.capabilities.planning.naive_engine import naive
from tilesmith.capabilities.planning.batching.events import (
    POLICIES,
    Engine,
    Policy,
    serve,
    simulate,
)
from tilesmith.capabilities.planning.batching.served import Served
from tilesmith.capabilities.planning.batching.step_times import DeploymentTimes
from tilesmith.capabilities.planning.batching.traffic import Lengths, Traffic, backlog, poisson
from tilesmith.search_space.support.errors import InputError


def seconds(sequences: int, tokens: int, before: int) -> float:
    """A made-up machine: weights, then arithmetic and attention."""
    rows = sequences * tokens
    return max(3e-3, 2e-5 * rows) + 1e-8 * rows * (before + tokens / 2) + 1e-6 * sequences


def constant(step: float) -> DeploymentTimes:
    return DeploymentTimes(lambda sequences, tokens, before: step)


def conserved(found: Served, traffic: Traffic) -> None:
    """Every request is served once, after it came, and all tokens are there."""
    assert len(found) == len(traffic)
    assert (found.first > found.arrivals).all() and (found.last >= found.first).all()
    several = traffic.outputs > 1
    assert (found.last[several] > found.first[several]).all()
    assert (found.last[~several] == found.first[~several]).all()
    assert found.gaps[1].sum() >= (traffic.outputs - 1).sum() - found.preemptions.sum()
    assert found.peak <= found.blocks


REQUESTS = st.lists(
    st.tuples(st.floats(0, 0.5), st.integers(1, 90), st.integers(1, 60)), min_size=1, max_size=25
)


@settings(max_examples=120, deadline=None)
@given(
    REQUESTS,
    st.sampled_from(["prefill_first", "chunked"]),
    st.integers(1, 12),
    st.integers(1, 20),
    st.integers(150, 600),
)
def test_runs_of_steps_are_the_steps_one_by_one(
    requests: list[tuple[float, int, int]], policy: Policy, batch: int, block: int, cache: int
) -> None:
    arrivals, inputs, outputs = map(np.array, zip(*sorted(requests), strict=True))
    # generic times: an arrival at the very end of a step would be a matter of rounding
    traffic = Traffic(arrivals * 1.000003 + 1.234567e-7, inputs, outputs)
    engine = Engine(
        DeploymentTimes(seconds), cache + 2 * block, batch, policy, budget=40, block=block
    )
    found = simulate(engine, traffic)
    expected, peak = naive(engine, traffic)
    assert found.preemptions.tolist() == [r.sent_away for r in expected]
    np.testing.assert_allclose(found.first, [r.first for r in expected], rtol=1e-9)
    np.testing.assert_allclose(found.last, [r.last for r in expected], rtol=1e-9)
    assert found.peak == peak
    conserved(found, traffic)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_full_cache_sends_away_and_still_serves_everybody(policy: Policy) -> None:
    traffic = poisson(40.0, 400, Lengths(60, 80, 0.5, 0.8, 400), np.random.default_rng(1))
    engine = Engine(DeploymentTimes(seconds), 800, 32, policy, budget=256)
    found = simulate(engine, traffic)
    conserved(found, traffic)
    assert found.peak / found.blocks > 0.8
    assert (found.preemptions.sum() > 0) == (policy != "static")


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_place_and_fixed_answers_wait_as_pollaczek_and_khinchine_say(load: float) -> None:
    step, answer = 1e-3, 20
    service = step * answer
    traffic = poisson(load / service, 60_000, Lengths(7, answer), np.random.default_rng(5))
    found = simulate(Engine(constant(step), 10_000, 1), traffic)
    waited = (found.ttft_s - step).mean()
    assert waited == pytest.approx(load * service / (2 * (1 - load)), rel=0.06)
    assert found.busy_s == pytest.approx(len(traffic) * service)
    np.testing.assert_allclose(found.tpot_s, step)


def test_answers_of_geometric_length_wait_as_second_moments_say() -> None:
    generator, step, load = np.random.default_rng(6), 1e-3, 0.6
    outputs = generator.geometric(1 / 25, 50_000)
    service = step * outputs.mean()
    arrivals = np.cumsum(generator.exponential(service / load, len(outputs)))
    found = simulate(
        Engine(constant(step), 10_000, 1), Traffic(arrivals, np.full_like(outputs, 3), outputs)
    )
    rate, second = 1 / (service / load), ((step * outputs) ** 2).mean()
    waited = (found.ttft_s - step).mean()
    assert waited == pytest.approx(rate * second / (2 * (1 - load)), rel=0.06)


@pytest.mark.parametrize("policy", ["prefill_first", "chunked"])
def test_saturated_throughput_is_the_batch_over_its_step(policy: Policy) -> None:
    lengths, batch = Lengths(32, 400), 16
    traffic = backlog(lengths, 640, np.random.default_rng(0))
    found = simulate(Engine(constant(2e-3), 10**6, batch, policy, budget=1024), traffic)
    # a batch starts together, runs its answers, and ends together: its prompts take one step
    assert found.span_s == pytest.approx(640 / batch * 400 * 2e-3)
    assert found.tokens_per_s == pytest.approx(batch / 2e-3)


def test_the_number_in_the_system_is_rate_times_time() -> None:
    traffic = poisson(12.0, 2_000, Lengths(50, 500, 0.3, 0.7), np.random.default_rng(2))
    found = simulate(Engine(DeploymentTimes(seconds), 60_000, 64), traffic)
    line = found.timeline
    present = line.running + line.waiting
    mean = ((present[1:] + present[:-1]) / 2 * np.diff(line.seconds)).sum() / line.seconds[-1]
    rate = len(traffic) / line.seconds[-1]
    assert mean == pytest.approx(rate * found.whole_s.mean(), rel=0.03)


def test_times_between_tokens_add_up_to_the_times_of_answers() -> None:
    traffic = poisson(25.0, 2_000, Lengths(300, 60, 0.3, 0.7), np.random.default_rng(9))
    for policy in ("prefill_first", "chunked"):
        found = simulate(Engine(DeploymentTimes(seconds), 60_000, 64, policy, budget=500), traffic)
        assert found.preemptions.sum() == 0
        apart, counts = found.gaps
        assert counts.sum() == (traffic.outputs - 1).sum()
        assert apart @ counts == pytest.approx((found.last - found.first).sum())


def test_continuous_batching_beats_batches_that_wait_for_their_longest() -> None:
    traffic = backlog(Lengths(60, 100, 0, 1.0), 600, np.random.default_rng(3))
    spans = {
        policy: simulate(Engine(DeploymentTimes(seconds), 50_000, 16, policy), traffic).span_s
        for policy in POLICIES
    }
    assert spans["static"] > 1.5 * spans["prefill_first"]


def test_pieces_of_prompts_stall_answers_less() -> None:
    traffic = poisson(3.0, 600, Lengths(3000, 100, 0.4, 0.4), np.random.default_rng(4))
    whole, pieces = (
        simulate(Engine(DeploymentTimes(seconds), 200_000, 32, policy, budget=512), traffic)
        for policy in ("prefill_first", "chunked")
    )
    assert pieces.gap_s(99) < 0.5 * whole.gap_s(99)


def test_replicas_share_the_requests_in_turns() -> None:
    traffic = poisson(100.0, 3_001, Lengths(40, 30, 0.2, 0.2), np.random.default_rng(7))
    engine = Engine(DeploymentTimes(seconds), 5_000, 16)
    found = serve(engine, [traffic.share(n, 3) for n in range(3)])
    alone = [simulate(engine, traffic.share(n, 3)) for n in range(3)]
    assert len(found) == 3_001 and found.replicas == 3
    assert sorted(found.last) == sorted(np.concatenate([part.last for part in alone]))
    assert found.busy_s == pytest.approx(sum(part.busy_s for part in alone))


def test_a_request_that_the_cache_never_holds_is_refused() -> None:
    traffic = backlog(Lengths(100, 100), 1, np.random.default_rng(0))
    with pytest.raises(
        InputError, match="a request of 200 tokens needs more than the cache of 192"
    ):
        simulate(Engine(constant(1e-3), 195, 1), traffic)
    with pytest.raises(InputError, match="leaves nothing for prompts"):
        Engine(constant(1e-3), 195, 64, "chunked", budget=64)
