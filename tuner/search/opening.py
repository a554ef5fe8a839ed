"""What a search of a task begins with: its space, where it starts, and what earlier jobs leave it.

An operator's scheduler tells the space and the default; a task that was given a space (of results
that others recorded) brings both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.search_space.workloads.template import template_of
from tilesmith.tuner.search.strata import Stratum, strata
from tilesmith.tuner.tasks.ledger import Ledger
from tilesmith.tuner.tasks.task import TuningState, TuningTask

Score = Callable[[TuningState, Sequence[Config]], NDArray[np.float64]]
"""Predicted logarithms of seconds of a task's configurations, shape (n,)."""

_CARRIED_OVER = 8
_CLEARLY_WORSE = math.log(1.1)
"""How far behind the untuned default another machine's best may score and still be measured."""


def opened_state(
    task: TuningTask, target: Target, measured_by: MeasuredBy, seed: int, ledger: Ledger
) -> TuningState:
    """A task's state before anything is measured; nothing predicts in it yet."""
    workload, given = task.workload, task.given
    space = space_of(workload, target) if given is None else given.space
    default = default_of(workload, target) if given is None else given.default
    label = 0 if measured_by == "simulator" else 1
    rng = np.random.default_rng([seed, label, int(workload.digest, 16)])
    state = TuningState(task, space, default, measured_by, rng)
    if given is None:
        state.layouts = partial(template_of(workload.operator).layouts, workload)
    elsewhere = _carried(ledger.elsewhere(workload, measured_by), space)
    similar = _carried(ledger.similar(workload, measured_by), space)
    state.seeds = tuple(dict.fromkeys([*elsewhere, *similar]))[:_CARRIED_OVER]
    state.proven = len(elsewhere)
    state.excluded = {c for c in ledger.quarantined(workload) if c in space}
    return state


def _carried(configs: Sequence[Config], space: SearchSpace) -> list[Config]:
    """Configurations moved into a space, each once."""
    moved = dict.fromkeys(carried_over(config, space) for config in configs)
    return [config for config in moved if config is not None]


def starting_points(
    state: TuningState, score: Score, more: Sequence[Config] = ()
) -> tuple[Config, ...]:
    """Other machines' bests that promise something, then `more`, then those of similar workloads.

    A best of another machine that scores clearly worse than the untuned default takes no trial:
    what made it fast is not here. Where nothing is known, all score the same, and all stay.
    """
    proven, others = list(state.seeds[: state.proven]), state.seeds[state.proven :]
    if proven:
        default, *scores = score(state, [state.default, *proven]).tolist()
        limit = default + _CLEARLY_WORSE
        proven = [c for c, score in zip(proven, scores, strict=True) if score <= limit]
    return tuple(dict.fromkeys([*proven, *more, *others]))


def parts_of(state: TuningState, layout_trials: int) -> list[Stratum]:
    """The parts of a task's space that are to be looked into; of a given space none is known."""
    given = state.task.given
    return [] if given is not None else strata(state.space, state.layouts, layout_trials)


def flops_of(task: TuningTask) -> int:
    """Floating-point operations of a task's workload, 0 where nobody knows."""
    return 0 if task.given else template_of(task.workload.operator).flops(task.workload)
