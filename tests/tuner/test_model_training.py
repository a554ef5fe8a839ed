"""Training on records: held-out kin, honest scores, the same model wherever it was fitted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.records import Database, Toolchain, TuningRecord
from tilesmith.records.learning.samples import Lesson, Sample, lessons
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge
from tilesmith.tuner.pretrained.model_corpus import Corpus, Subject, corpus, judged
from tilesmith.tuner.pretrained.model_fitting import FittingRecipe
from tilesmith.tuner.pretrained.model_training import Quality, train
from tilesmith.tuner.surrogates.cost_model import Floats

TARGET = cpu_target("made-up", "avx512", "x86_64-unknown-linux-gnu")
SIZES = ((64, 64, 64), (128, 48, 96), (32, 256, 64), (96, 96, 32), (48, 128, 128), (160, 64, 48))
WORKLOADS = [Workload.parse(f"matmul m={m} n={n} k={k} const=b") for m, n, k in SIZES]
SMALL = (FittingRecipe("trees", 3, 40, 0.2), FittingRecipe("trees", 2, 10, 0.2))

Machine = Callable[[Sequence[Any], Floats], Floats]


def unlike_the_judge(configs: Sequence[Any], judged: Floats) -> Floats:
    """A machine that dislikes packing far more than the judge thinks."""
    slow = np.array([3.0 if config["pack_b"] == "panels" else 1.0 for config in configs])
    return judged * slow


def noise(configs: Sequence[Any], judged: Floats) -> Floats:
    """A machine as the judge thinks, seen through noise: there is nothing to learn."""
    rng = np.random.default_rng(int(judged.sum() * 1e12))  # another one for each workload
    return np.asarray(judged * np.exp(rng.normal(0.0, 0.3, len(judged))))


def records(machine: Machine, count: int = 40) -> list[TuningRecord]:
    found = []
    for workload in WORKLOADS:
        configs = list(dict.fromkeys(
            space_of(workload, TARGET).sample(np.random.default_rng(3), count)
        ))  # fmt: skip
        latencies = machine(configs, judge(workload, TARGET, configs).latency)
        found += [
            TuningRecord.of(workload, TARGET, c, MeasureResult("ok", "hardware", (float(s),)))
            for c, s in zip(configs, latencies, strict=True)
        ]
    return found


@cache
def corpus_of(machine: Machine) -> Corpus:
    found: dict[str, list[Sample]] = {}
    for record in records(machine):
        assert record.latency is not None
        found.setdefault(record.workload_key, []).append(Sample(record.config.key, record.latency))
    facts = TARGET.to_json()
    data, left_out = corpus(
        [Lesson(k, TARGET.identity, "cpu", facts, 1, "", tuple(s)) for k, s in found.items()],
        "hardware",
    )
    assert data is not None and not left_out
    return data


def test_a_model_of_a_machine_the_judge_is_wrong_about_ranks_better() -> None:
    made = train(corpus_of(unlike_the_judge), SMALL)
    scores = made.scores[TARGET.identity]
    assert scores.better and scores.instead == "analytical" and scores.workloads == len(SIZES)
    assert scores.model.accuracy > scores.others["analytical"].accuracy + 0.05
    assert scores.others["none"].accuracy == 0.5
    assert "ranks better than 'analytical'" in scores.sentence


def test_a_model_of_noise_is_no_better() -> None:
    scores = train(corpus_of(noise), SMALL).scores[TARGET.identity]
    assert not scores.better and "no better than" in scores.sentence


def test_it_is_the_same_wherever_its_parts_were_fitted() -> None:
    data = corpus_of(unlike_the_judge)

    def backwards(function: Callable[..., Any], asked: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [function(*arguments) for arguments in asked[::-1]][::-1]

    here, there = train(data, SMALL), train(data, SMALL, backwards)
    assert here.model.to_text({}) == there.model.to_text({})
    assert here.scores == there.scores


def test_kin_is_held_out_together() -> None:
    keys = [w.key for w in WORKLOADS]
    keys += [f"{key} dtype=bfloat16" for key in keys]
    keys += [f"{w.key} epilogue=bias" for w in WORKLOADS]
    keys += ["matmul m=64 n=64 k=64 ta=1", "matmul m=64 n=64 k=64"]
    subjects = {number: Subject(Workload.parse(key), "t") for number, key in enumerate(keys)}
    count = len(keys)
    rows = np.zeros((count, 1))
    data = Corpus(
        rows.astype(np.float32), [], rows[:, 0], rows[:, 0], np.arange(count),
        np.zeros(count, np.bool_), {}, subjects,
    )  # fmt: skip
    folds = data.folds(5)
    by_shape: dict[tuple[int, ...], set[int]] = {}
    for number, subject in subjects.items():
        shape = tuple(subject.workload.integer(name) for name in "mnk")
        by_shape.setdefault(shape, set()).add(int(folds[number]))
    assert len(by_shape) == len(SIZES) and all(len(found) == 1 for found in by_shape.values())
    assert len(set(folds.tolist())) == 5


def test_too_few_workloads_say_so() -> None:
    data = corpus_of(noise)
    with pytest.raises(InputError, match="3 kinds of workloads are too few"):
        train(data.of(data.groups < 3), SMALL)


def test_what_drawing_comes_to_is_the_mean_over_all_draws() -> None:
    latencies = np.array([5.0, 1.0, 2.0, 2.5, 7.0, 3.0, 3.5, 1.5, 9.0, 4.0])
    for picked, name in ((1, "regret_1"), (8, "regret_8")):
        draws = [min(draw) for draw in combinations(latencies.tolist(), picked)]
        expected = np.mean(draws) / latencies.min() - 1
        assert getattr(Quality.of_chance(latencies), name) == pytest.approx(expected)


def test_lessons_are_fresh_of_one_label_and_bounded(tmp_path: Path) -> None:
    now, then = Toolchain("1", "1", "1", "1", "1"), Toolchain("1", "1", "0", "1", "0")
    with Database.open(str(tmp_path / "t.db"), toolchain=now) as database:
        database.register_target(TARGET)
        database.add(records(noise, 30))
        stale = records(noise, 50)[:40]
        database.add([TuningRecord(**{**vars_of(r), "toolchain": then}) for r in stale])
        found = list(lessons(database, "hardware", most=16))
        assert {lesson.workload for lesson in found} == {w.key for w in WORKLOADS}
        assert all(len(lesson.samples) == 16 for lesson in found)
        for lesson in found:
            kept = {s.latency for s in lesson.samples}
            all_ = sorted(
                r.latency for r in records(noise, 30)
                if r.workload_key == lesson.workload and r.latency is not None
            )  # fmt: skip
            assert set(all_[:4]) <= kept <= set(all_)
        assert not list(lessons(database, "simulator"))
        assert not list(lessons(database, "hardware", family="trainium"))


def vars_of(record: TuningRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"facts": ""}, "nothing is known of its target"),
        ({"facts": "[1]"}, "damaged"),
        ({"workload": "matmul m=2"}, "needs n="),
        ({"samples": (Sample("{", 1.0),)}, "damaged|JSON|configuration"),
        ({"samples": (Sample('{"no": 1}', 1.0),)}, "none of its configurations"),
    ],
)
def test_what_nothing_can_be_learned_from_is_left_out(change: dict[str, Any], because: str) -> None:
    whole = Lesson(WORKLOADS[0].key, TARGET.identity, "cpu", TARGET.to_json(), 1, "", ())
    found = judged({**whole._asdict(), **change}, "hardware")
    assert isinstance(found, str)
    assert re.search(because, found), found
