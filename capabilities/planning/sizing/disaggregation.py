"""Prompts and answers on replicas of their own, as Splitwise and DistServe do.

(Patel et al. 2024, Zhong et al. 2024.) A replica for prompts works on one at a time, in order of
arrival, and gives the first token; the cache then travels to a replica for answers, which joins the
sequence to those that run. So prompts never stall answers. A sequence that has to give way there is
worked on again there.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilesmith.capabilities.planning.batching.events import Engine, PrefillFirst, simulate
from tilesmith.capabilities.planning.batching.pipelined import Pipelined
from tilesmith.capabilities.planning.batching.served import Served
from tilesmith.capabilities.planning.batching.stages import StageAvailability, StageTimes
from tilesmith.capabilities.planning.batching.step_times import DeploymentTimes
from tilesmith.capabilities.planning.batching.traffic import Traffic
from tilesmith.capabilities.planning.sizing.answer import PrefillPool

if TYPE_CHECKING:
    from numpy.typing import NDArray


def first_tokens(
    times: DeploymentTimes, traffic: Traffic, replicas: int, stages: StageTimes | None = None
) -> "NDArray[np.float64]":
    """When each request, dealt to so many replicas in turns, has its first token: seconds.

    Args:
        stages: where a replica is a pipeline: a prompt enters as the one before leaves its first.
    """
    lines = [StageAvailability(1 if stages is None else len(stages)) for _ in range(replicas)]
    host = 0.0 if stages is None else stages.host + stages.host_prompt
    done = []
    pairs = zip(traffic.arrivals.tolist(), traffic.inputs.tolist(), strict=True)
    for number, (arrival, tokens) in enumerate(pairs):
        each = [times.prefill(1, tokens, 0)] if stages is None else stages.prefill(1, tokens, 0)
        done.append(lines[number % replicas].enter(arrival, each) + host)
    return np.array(done)


def serve_split(
    pool: PrefillPool, engine: Engine, traffic: Traffic, replicas: int, most: int
) -> Served:
    """Serve with replicas for prompts, and `replicas` with this engine for answers.

    Args:
        most: how many of the latter are looked at.
    """
    first = first_tokens(pool.candidate.times, traffic, pool.replicas, pool.candidate.stages)
    there = first + pool.transfer_s * traffic.inputs
    order = np.argsort(there, kind="stable")
    pools = []
    for number in range(min(replicas, most, len(traffic))):
        taken = order[number::replicas]
        share = Traffic(there[taken], traffic.inputs[taken], traffic.outputs[taken])
        served = simulate(engine, share, _Answers if engine.stages is None else _PipelinedAnswers)
        last = np.where(share.outputs > 1, served.last, first[taken])
        pools.append(
            replace(served, arrivals=traffic.arrivals[taken], first=first[taken], last=last)
        )
    return Served.together(pools)


class _Answers(PrefillFirst):
    """Prompts come with their caches; only those that were sent away cost a step."""

    def prompts_s(self, requests: list[int]) -> float:
        return super().prompts_s([request for request in requests if self.emitted[request]])


class _PipelinedAnswers(Pipelined):
    """`_Answers` on a pipeline."""

    def fill(self, request: int) -> None:
        if self.emitted[request]:
            super().fill(request)
        else:
            self.join(request)
