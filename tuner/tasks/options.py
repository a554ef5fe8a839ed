"""What a tuning job may be told."""

import math
from dataclasses import dataclass

from tilesmith.search_space.support.errors import InputError

DRIFT_LIMIT = 0.03
"""Relative change of a baseline kernel's time above which a machine counts as unsteady."""


@dataclass(frozen=True)
class TuneOptions:
    """Settings of a job.

    Attributes:
        trials: measurements of the job's last runner, all tasks together; None: no limit.
        time_limit_s: seconds for the whole job, publishing included; None: no limit.
        early_stopping: a task ends after so many trials without improvement; None: never.
        seed: of all randomness.
        strategy, scheduler: registered names.
        cost_model: registered name; "" chooses by the way of measuring.
        screening_trials: simulated trials a task gets before hardware measures it.
        layout_trials: trials every promising layout pair of a task gets at least.
        in_flight: rounds under way while the results of one are waited for; a proposal knows the
            results of all before those. Trials depend on it, and a job is resumed with the same.
            None: as many as the runner likes; what measures elsewhere needs as many as keep it
            busy.
        choosing: of the rounds in flight, how many may be chosen at once, by whoever the runner
            knows for that; 0: each is chosen here, knowing all before it. As for `in_flight`.
        rivals: top candidates measured again in turns before one is published.
        started: when the caller began to prepare the job (`time.monotonic`), which its time limit
            counts from; None: when it is handed over.
    """

    trials: int | None = 1000
    time_limit_s: float | None = None
    early_stopping: int | None = None
    seed: int = 0
    strategy: str = "evolutionary"
    scheduler: str = "expected_gain"
    cost_model: str = ""
    screening_trials: int = 64
    layout_trials: int = 3
    in_flight: int | None = None
    choosing: int = 0
    rivals: int = 4
    started: float | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "time_limit_s", "early_stopping"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                shown = name.removesuffix("_s").replace("_", "-")
                raise InputError(f"--{shown} = {value} is out of range; it is above 0 and finite")
        if self.seed < 0:
            raise InputError(f"--seed = {self.seed} is out of range; it is 0 or more")
        in_flight = self.in_flight or 0
        if in_flight < 0:
            raise InputError(f"--in-flight = {in_flight} is out of range; it is 0 or more")
        if not 0 <= self.choosing <= in_flight:
            raise InputError(
                f"--choosing = {self.choosing} is out of range; it is at least 0 and at most as "
                f"many as the rounds in flight, {in_flight}"
            )
