"""Scores beside Kernel Tuner, on a made-up space: against the same worked out here by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("autotuning_methodology", reason="pip install 'tilesmith[autotuners]'")
pytest.importorskip("kernel_tuner", reason="pip install 'tilesmith[autotuners]'")

from benchmarks.search import hub, hub_runs, hub_scores
from benchmarks.search.hub_runs import Run

pytestmark = pytest.mark.extra

SECONDS = 2.0
"""What every evaluation of the made-up space costs."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T4 file; each 11th configuration fails."""
    results = []
    for number, (x, y, z) in enumerate(itertools.product(range(1, 17), range(1, 17), (0, 1))):
        time = 1.0 + 0.1 * (x - 11) ** 2 + 0.05 * abs(y - 4) + 0.5 * z + 0.01 * ((7 * x * y) % 5)
        failed = number % 11 == 5
        results.append(
            {
                "configuration": {"x": x, "y": y, "z": z},
                "times": {"compilation": SECONDS - 0.5, "runtimes": [0.5], "framework": 0.0}
                | {"search_algorithm": 0.0, "validation": 0.0},
                "invalidity": "compile" if failed else "correct",
                "correctness": 1,
                "measurements": [{"name": "time", "value": "InvalidConfig" if failed else time}],
                "objectives": ["time"],
            }
        )
    found = tmp_path_factory.mktemp("hub") / "made_up" / "NOWHERE_T4.json"
    found.parent.mkdir()
    found.write_text(json.dumps({"metadata": {}, "results": results, "schema_version": "1.0.0"}))
    return found


def best_of_random(values: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """The calculated baseline: of N values, descending, the one at M (N + 1) / (M + 1)."""
    size = len(values)
    places = np.round(draws * (size + 1) / (draws + 1)).astype(int)
    return np.asarray(np.sort(values)[::-1][np.minimum(places, size - 1)])


def test_scores_are_those_worked_out_by_hand(path: Path, tmp_path: Path) -> None:
    known = hub_runs.recorded(path)
    valid = np.array([v for v in known.values.values() if not np.isnan(v)])
    evaluations, end = hub_scores.budget(path, tmp_path)
    target = valid.min() + 0.05 * (np.median(valid) - valid.min())
    reached = int(np.argmax(np.sort(valid)[::-1] <= target))
    assert evaluations == -(-reached // (len(valid) + 1 - reached))
    assert end == pytest.approx(evaluations * SECONDS)
    moments = SECONDS * np.arange(1.0, evaluations + 8)
    at_once = Run(moments.tolist(), [valid.min()] * len(moments))
    worst = Run(moments.tolist(), [valid.max()] * len(moments))
    limit = hub_scores.allowed(path, tmp_path)
    random = [hub_runs.run_ours(path, "random", limit, seed) for seed in range(8)]
    found = hub_scores.scores(
        path, tmp_path, {"at once": [at_once] * 4, "worst": [worst] * 4, "random": random}
    )
    assert found["at once"] == pytest.approx(1.0)
    times = np.linspace(2 * SECONDS, end, 1000)
    base = best_of_random(valid, np.round(times / SECONDS))
    expected = np.mean((valid.max() - base) / (valid.min() - base))
    assert found["worst"] == pytest.approx(expected, rel=0.1)
    assert -1 < found["random"] < 1


@pytest.mark.parametrize("strategy", ["random_sample", "genetic_algorithm", "simulated_annealing"])
def test_kernel_tuners_strategies_search_the_same_space(path: Path, strategy: str) -> None:
    known = hub_runs.recorded(path)
    run = hub_runs.run_theirs(path, strategy, 60 * SECONDS, 3)
    assert len(run.values) == len(run.seconds) >= 20 and run.choosing > 0
    assert (np.diff(run.seconds) >= 0).all()
    assert {v for v in run.values if not np.isnan(v)} <= set(known.values.values())
    assert run.seconds[-1] < 70 * SECONDS


def test_ours_pays_for_each_evaluation_and_is_carried_on(path: Path) -> None:
    run = hub_runs.run_ours(path, "evolutionary", 30 * SECONDS, 1)
    count = len(run.seconds)
    assert run.seconds[-1] >= 30 * SECONDS and 0 < run.choosing < 60
    assert run.seconds[-1] == pytest.approx(count * SECONDS, rel=0.2)
    again = hub_runs.run_ours(path, "evolutionary", 30 * SECONDS, 1)
    assert again.values[:20] == run.values[:20]


def test_runs_are_kept_and_taken_up_again(path: Path, tmp_path: Path) -> None:
    names, found = ["random"], hub.spaces(path.parent.parent, "")
    assert list(found) == ["made_up/NOWHERE"]
    shares = list(hub.missing(names, found, 7, tmp_path))
    assert [seeds for *_, seeds, _ in shares] == [[0, 1, 2, 3, 4], [5, 6]]
    hub.done(*shares[1])
    file = shares[1][-1]
    with file.open("a") as opened:
        opened.write('{"seed": 0, "seconds": [1.')  # cut short by a kill
    assert set(hub.kept(file)) == {5, 6}
    assert [s for *_, s, _ in hub.missing(names, found, 7, tmp_path)] == [[0, 1, 2, 3, 4]]
