"""Prompts and answers on replicas of their own, as Splitwise and DistServe do.

(Patel et al. 2024, Zhong et al. 2024.) A replica for prompts works on one at a time, in order of
arrival, and gives the first token; the cache then travels to a replica for answers, which joins the
sequence to those that run. So prompts never stall answers. A sequence that has to give way there is
worked on again there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilesmith.planning.serving.answer import PrefillPool
from tilesmith.planning.serving.batching import Engine, PrefillFirst, simulate
from tilesmith.planning.serving.served import Served
from tilesmith.planning.serving.step_times import StepTimes
from tilesmith.planning.serving.traffic import Traffic

if TYPE_CHECKING:
    from numpy.typing import NDArray


def first_tokens(times: StepTimes, traffic: Traffic, replicas: int) -> NDArray[np.float64]:
    """When each request, dealt to so many replicas in turns, has its first token: seconds."""
    free = [0.0] * replicas
    done = []
    pairs = zip(traffic.arrivals.tolist(), traffic.inputs.tolist(), strict=True)
    for number, (arrival, tokens) in enumerate(pairs):
        one = number % replicas
        free[one] = max(free[one], arrival) + times.prefill(1, tokens, 0)
        done.append(free[one])
    return np.array(done)


def serve_split(
    pool: PrefillPool, engine: Engine, traffic: Traffic, replicas: int, most: int
) -> Served:
    """Serve with replicas for prompts, and `replicas` with this engine for answers.

    Args:
        most: how many of the latter are looked at.
    """
    first = first_tokens(pool.candidate.times, traffic, pool.replicas)
    there = first + pool.transfer_s * traffic.inputs
    order = np.argsort(there, kind="stable")
    found = []
    for number in range(min(replicas, most, len(traffic))):
        taken = order[number::replicas]
        share = Traffic(there[taken], traffic.inputs[taken], traffic.outputs[taken])
        served = simulate(engine, share, _Answers)
        last = np.where(share.outputs > 1, served.last, first[taken])
        found.append(
            replace(served, arrivals=traffic.arrivals[taken], first=first[taken], last=last)
        )
    return Served.together(found)


class _Answers(PrefillFirst):
    """Prompts come with their caches; only those that were sent away cost a step."""

    def prompts_s(self, requests: list[int]) -> float:
        return super().prompts_s([request for request in requests if self.emitted[request]])
