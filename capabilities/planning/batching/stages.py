"""How long the stages of a pipeline take for one step, and what flows through them.

Stages take steps in one order. A step enters a stage when it has left the one before and the stage
is free: `exit = max(exit before, free) + seconds`, the recurrence of a permutation flow shop. So
steps follow each other as fast as the slowest stage lets them, and one that is alone takes the sum
of all stages. The host's part (sampling) is waited for, and holds up nobody else.
"""

import math
from collections.abc import Sequence

from tilesmith.capabilities.planning.batching.step_times import DeploymentTimes, next_knot


class StageTimes:
    """Seconds of steps of a pipeline, stage by stage.

    Args:
        stages: of each, without the host; the same object for stages that are alike.
        host: seconds of the host for a step, and `host_prompt` more for one with prompts.
    """

    def __init__(self, stages: Sequence[DeploymentTimes], host: float, host_prompt: float) -> None:
        self.host, self.host_prompt = host, host_prompt
        self._distinct = list(dict.fromkeys(stages))
        self._which = [self._distinct.index(times) for times in stages]

    def __len__(self) -> int:
        return len(self._which)

    def decode(self, sequences: int, context: float) -> list[float]:
        """A step that gives each of so many sequences a token."""
        return self._all([times.decode(sequences, context) for times in self._distinct])

    def prefill(self, sequences: int, tokens: int, before: int) -> list[float]:
        """A step over parts of prompts."""
        return self._all([times.prefill(sequences, tokens, before) for times in self._distinct])

    def mixed(self, decoding: tuple[int, float], prompts: tuple[int, int, int]) -> list[float]:
        """A step that decodes and works on prompts; see `DeploymentTimes.mixed`."""
        return self._all(
            [t.mixed(t.decode(*decoding), t.prefill(*prompts)) for t in self._distinct]
        )

    def knot(self, context: float) -> int:
        """Tokens from a context on over which times of decoding are on one line; at least one."""
        return max(1, math.ceil(next_knot(context) - context))

    def alone(self, tokens: int) -> float:
        """Seconds of a prompt that passes in one step through an idle pipeline."""
        return sum(self.prefill(1, tokens, 0)) + self.host + self.host_prompt

    def each_prompt(self, tokens: int) -> float:
        """Seconds that a prompt keeps the slowest stage, beyond what other work there pays."""
        return max(max(0.0, times.prefill(1, tokens, 0) - times.shared) for times in self._distinct)

    def _all(self, distinct: list[float]) -> list[float]:
        return [distinct[number] for number in self._which]


class StageAvailability:
    """When each stage is free.

    Args:
        stages: how many.
    """

    def __init__(self, stages: int) -> None:
        self.free = [0.0] * stages

    @property
    def entrance(self) -> float:
        """When a step may enter."""
        return self.free[0]

    def enter(self, clock: float, seconds: Sequence[float]) -> float:
        """A step enters at `clock` or as soon as it can; returns when it leaves the last stage."""
        for number, taken in enumerate(seconds):
            clock = max(clock, self.free[number]) + taken
            self.free[number] = clock
        return clock

    def shift(self, seconds: float) -> None:
        """Delay everything that is under way."""
        self.free = [free + seconds for free in self.free]
