"""What a search starts from: other machines' bests only where they promise something."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from problems import cost, state

from benchmarks.search import transfer
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.search.task_search import starting_points
from tilesmith.tuner.tasks.task import TuningState


def told(state: TuningState, configs: Sequence[Config]) -> NDArray[np.float64]:
    return np.log([cost(config) for config in configs])


def unknown(state: TuningState, configs: Sequence[Config]) -> NDArray[np.float64]:
    return np.zeros(len(configs))


def test_bests_elsewhere_that_score_clearly_worse_take_no_trial() -> None:
    searched = state(0)
    ordered = sorted(searched.space, key=cost)
    middle = len(ordered) // 2
    searched.default = ordered[middle]
    fast, slow, similar, screened = ordered[3], ordered[-1], ordered[-2], ordered[7]
    searched.seeds, searched.proven = (slow, fast, similar), 2
    assert starting_points(searched, told, [screened]) == (fast, screened, similar)
    assert starting_points(searched, unknown, [screened]) == (slow, fast, screened, similar)
    searched.proven = 0
    assert starting_points(searched, told, [fast]) == (fast, slow, similar)


def test_what_another_machine_found_is_tried_first() -> None:
    plan = transfer.Plan(trials=2, seed=0)
    workload = Workload.parse("conv2d c=32 h=3 w=3 oc=32 kh=1 kw=1 const=weight")
    there = space_of(workload, transfer.machine("skylake"))
    here = space_of(workload, transfer.machine("zen"))
    best = next(c for c in there if c["output_layout"] == c["input_layout"] == "NCHW16c")
    (_, default), (_, second) = transfer.search(workload.key, "zen", [best], plan)
    assert default != second == carried_over(best, here)
    assert second["output_layout"] == second["input_layout"] == "NCHW8c"


def test_savings_are_summed_up() -> None:
    found = transfer.summary([(9, 2), (3, 4), (5, 5)])
    assert (found["without"], found["with"], found["saved_median"]) == (5, 4, 0)
    assert (found["fewer"], found["more"], found["most_lost"]) == (1, 1, 1)
