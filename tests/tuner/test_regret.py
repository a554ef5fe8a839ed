"""The regret benchmark's yardsticks: random search in closed form, its summary of curves, tables of
what is measured and what is judged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import hypergeom

from benchmarks.search.regret import padded, random_median, search, summary
from benchmarks.search.spaces import Case, measured_table
from tilesmith.simulator import judge, measure


@pytest.mark.parametrize("size, good", [(50, 1), (1000, 7), (12_345, 40), (10, 10), (10, 9)])
def test_half_of_all_random_searches_met_a_good_one_by_the_median(size: int, good: int) -> None:
    median = random_median(size, good)
    missed = [hypergeom(size, good, trials).pmf(0) for trials in (median - 1, median)]
    assert missed[0] > 0.5 - 1e-9 and missed[1] <= 0.5 + 1e-9


def test_a_summary_counts_trials_to_five_percent_and_who_gave_up() -> None:
    curves = [np.array([2.0, 1.04, 1.0]), np.array([1.5, 1.5, 1.05]), np.array([3.0, 3.0, 3.0])]
    found = summary(curves)
    assert found["trials_to_5_percent"] == 3 and found["gave_up"] == 1
    assert found["slowest_seed"] is None and found["regret_32"] == pytest.approx(0.05)
    assert padded(curves, 5).shape == (3, 5) and padded(curves, 5)[1, -1] == 1.05


def test_a_table_on_an_accelerator_measures_by_the_timeline_and_judges_otherwise(
    tmp_path: Path,
) -> None:
    fixed = (("algorithm", "tiled"), ("outer", "m"), ("turn", "vector"), ("evacuate", "scalar"))
    case = Case("trn1", "matmul m=100 n=200 k=300", fixed)
    workload, target, table = measured_table(case, tmp_path)
    configs = list(table.space)
    assert 1 < len(configs) < 40
    np.testing.assert_array_equal(
        table.measured(configs), measure(workload, target, configs).latency
    )
    judged = table(workload, target, configs)
    np.testing.assert_array_equal(judged.latency, judge(workload, target, configs).latency)
    assert not np.allclose(judged.latency, table.latency), "two fidelities"
    again = measured_table(case, tmp_path)[2]
    np.testing.assert_array_equal(again.measured(configs[::-1]), table.latency[::-1])
    for hidden in (False, True):
        limits = (len(configs), len(configs), hidden)
        curve = search(workload, target, table, "evolutionary", *limits, seed=0)
        assert len(curve) == len(configs) and curve[-1] == 1.0
