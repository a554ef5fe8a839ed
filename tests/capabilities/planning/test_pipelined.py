"""Serving through the stages of a pipeline: closed forms of flow shops, and what is conserved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.batching import LLAMA_3_8B
from tests.capabilities.planning.test_batching import REQUESTS, conserved, seconds
from tilesmith.capabilities.planning.batching.events import Engine, Policy, simulate
from tilesmith.capabilities.planning.batching.pipelined import Pipelined
from tilesmith.capabilities.planning.batching.stages import StageTimes
from tilesmith.capabilities.planning.batching.step_times import DeploymentTimes
from tilesmith.capabilities.planning.batching.traffic import Lengths, Traffic, backlog, poisson
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
from tilesmith.capabilities.planning.estimates.estimate import estimate
from tilesmith.capabilities.planning.reading.naming import architecture_of
from tilesmith.capabilities.planning.sizing.disaggregation import first_tokens
from tilesmith.capabilities.planning.sizing.replicas import estimated_seconds, stage_times
from tilesmith.search_space.meshes.mesh import load_mesh

HOST = 3e-4


def constant(*stages: float) -> StageTimes:
    times = {s: DeploymentTimes(lambda sequences, tokens, before, s=s: s) for s in stages}  # type: ignore[misc]
    return StageTimes([times[s] for s in stages], HOST, 0.0)


def linear(count: int, each: float) -> StageTimes:
    """Stages alike, so many seconds a token of a prompt."""
    times = DeploymentTimes(lambda sequences, tokens, before: each * tokens * sequences)
    return StageTimes([times] * count, HOST, 0.0)


def engine(stages: StageTimes, batch: int, policy: Policy, **more: int) -> Engine:
    return Engine(DeploymentTimes(seconds), 10**6, batch, policy, stages=stages, **more)


def at_once(inputs: int, outputs: int, count: int) -> Traffic:
    return backlog(Lengths(inputs, outputs), count, np.random.default_rng(0))


@pytest.mark.parametrize("policy", ["prefill_first", "chunked"])
def test_saturated_prompts_leave_as_fast_as_the_slowest_stage_lets_them(policy: Policy) -> None:
    stages = (1e-3, 2e-3, 5e-4)
    found = simulate(engine(constant(*stages), 8, policy, budget=64), at_once(64, 1, 50))
    assert found.span_s == pytest.approx(sum(stages) + 49 * max(stages) + HOST)
    assert np.sort(found.first)[0] == pytest.approx(sum(stages) + HOST), "alone in the pipeline"
    np.testing.assert_allclose(np.diff(np.sort(found.first)), max(stages))


def test_pieces_of_a_prompt_follow_each_other_through_the_stages() -> None:
    stages, pieces, each = 4, 6, 1e-6 * 128
    one = at_once(128 * pieces, 1, 1)
    found = simulate(engine(linear(stages, 1e-6), 4, "chunked", budget=128), one)
    assert found.ttft_s[0] == pytest.approx((stages + pieces - 1) * each + HOST, rel=1e-6)
    whole = simulate(engine(linear(stages, 1e-6), 4, "prefill_first"), one)
    assert whole.ttft_s[0] == pytest.approx(stages * pieces * each + HOST, rel=1e-6)


@pytest.mark.parametrize("policy", ["prefill_first", "chunked"])
def test_saturated_answers_come_as_fast_as_rounds_do(policy: Policy) -> None:
    stages, answer = 4, 400
    found = simulate(engine(constant(*[1e-3] * stages), 32, policy), at_once(16, answer, 32))
    round_s = stages * 1e-3 + HOST  # each lane's way; the busiest stage has as much work less HOST
    assert found.tokens_per_s == pytest.approx(32 / round_s, rel=0.03)
    np.testing.assert_allclose(found.tpot_s, round_s, rtol=0.03)
    uneven = simulate(engine(constant(1e-3, 3e-3), 32, policy), at_once(16, answer, 32))
    np.testing.assert_allclose(uneven.tpot_s, 2 * 3e-3, rtol=0.03, err_msg="the slowest stage")


@pytest.mark.parametrize("pipeline", [2, 4])
def test_one_request_takes_what_is_estimated(pipeline: int) -> None:
    model = architecture_of(Configuration("llama", "llama", LLAMA_3_8B))
    deployment = Deployment(load_mesh("trn1.32xlarge"), tensor=8, pipeline=pipeline)
    stages = stage_times(model, deployment)
    for tokens in (128, 1024):
        expected = estimate(model, deployment, DeploymentLoad(1, tokens, 2)).ttft_ms / 1e3
        assert stages.alone(tokens) == pytest.approx(expected, rel=1e-4)
        one = simulate(engine(stages, 8, "chunked"), at_once(tokens, 5, 1))
        assert one.ttft_s[0] == pytest.approx(expected, rel=1e-4)
    step = estimated_seconds(model, deployment, 1, 1, 512)
    assert sum(stages.decode(1, 512)) + stages.host == pytest.approx(step, rel=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    REQUESTS,
    st.sampled_from(["prefill_first", "chunked"]),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(150, 600),
)
def test_everybody_is_served_once_through_any_pipeline(
    requests: list[tuple[float, int, int]], policy: Policy, count: int, batch: int, cache: int
) -> None:
    arrivals, inputs, outputs = map(np.array, zip(*sorted(requests), strict=True))
    times = DeploymentTimes(lambda s, t, b: seconds(s, t, b) / count)
    stages = StageTimes([times] * count, 0.0, 0.0)
    served = Engine(DeploymentTimes(seconds), cache + 40, batch, policy, 40, 20, stages)
    found = simulate(served, Traffic(arrivals, inputs, outputs))
    conserved(found, Traffic(arrivals, inputs, outputs))
    if not found.preemptions.any():
        apart, counts = found.gaps
        assert counts.sum() == (outputs - 1).sum()
        assert apart @ counts == pytest.approx((found.last - found.first).sum())


class _StepByStep(Pipelined):
    def runs(self) -> bool:
        return False


@pytest.mark.parametrize("policy", ["prefill_first", "chunked"])
def test_rounds_taken_at_once_are_the_steps_one_by_one(policy: Policy) -> None:
    times = DeploymentTimes(lambda s, t, b: seconds(s, t, b) / 3)
    traffic = poisson(20.0, 150, Lengths(100, 120, 0.5, 0.5), np.random.default_rng(3))
    served = engine(StageTimes([times] * 3, HOST, HOST), 24, policy, budget=256)
    fast, slow = simulate(served, traffic), simulate(served, traffic, _StepByStep)
    np.testing.assert_allclose(fast.first, slow.first, rtol=5e-3)
    np.testing.assert_allclose(fast.last, slow.last, rtol=5e-3)


def test_stages_take_prompts_behind_each_other() -> None:
    """A pipeline of equal stages is as fast for one, and serves as many times more prompts."""
    whole = DeploymentTimes(lambda sequences, tokens, before: 8e-3)
    stages = constant(*[2e-3] * 4)
    traffic = poisson(300.0, 3_000, Lengths(10, 10), np.random.default_rng(0))
    through = first_tokens(whole, traffic, 1, stages) - traffic.arrivals
    waited = (through - 8e-3 - HOST).mean()
    load = 300 * 2e-3
    assert waited == pytest.approx(load * 2e-3 / (2 * (1 - load)), rel=0.1)
    assert (first_tokens(whole, traffic, 1) - traffic.arrivals).max() > 1, "one stage is swamped"
