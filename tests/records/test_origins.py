"""How schedules were found, what was gained and how many trials there were: the definitions."""

from __future__ import annotations

import pytest

from tilesmith.codegen.programs import structures
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.records import Database, TuningRecord
from tilesmith.records.trials.counting import MEASURED_AGAIN, TIMED_IN_MODEL, TrialCounts, count
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.results.gain import gain_of, times_of
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.origin import SEARCH, Origin, counted, origin_named, origin_of
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.workload import Workload

TARGET = load_target("trn1")
PRODUCT = Workload.parse("matmul m=64 n=64 k=64")
COMMAND = "tilesmith tune m.onnx --threads 1 --measure both  # trn1, workloads 0"


def trials(count: int) -> list[TuningRecord]:
    """The default, and others slower than it."""
    configs = [c for c in space_of(PRODUCT, TARGET) if c != default_of(PRODUCT, TARGET)]
    return [
        TuningRecord.of(PRODUCT, TARGET, config, MeasureResult("ok", "simulator", (1e-6 + n,)))
        for n, config in enumerate([default_of(PRODUCT, TARGET), *configs[: count - 1]])
    ]


@pytest.mark.parametrize(
    ("tried", "whole", "stale", "expected"),
    [
        (0, False, False, Origin.UNMEASURED),
        (0, True, False, Origin.UNMEASURED),
        (1, False, False, Origin.MEASURED),
        (SEARCH, False, False, Origin.MEASURED),
        (SEARCH + 1, False, False, Origin.SEARCHED),
        (2, True, False, Origin.SEARCHED),
        (SEARCH + 1, False, True, Origin.STALE),
    ],
)
def test_the_word_follows_from_what_was_tried(
    tried: int, whole: bool, stale: bool, expected: Origin
) -> None:
    assert origin_of(tried, lambda _: whole, stale) is expected
    assert expected.is_tuned == (expected in ("searched", "stale"))
    assert expected.meaning


def test_words_of_older_artifacts_are_understood() -> None:
    assert [origin_named(word) for word in ("tuned", "fallback", "default", "stale")] == [
        "searched", "neighbour", "unmeasured", "stale",
    ]  # fmt: skip
    assert counted({"measured": 2, "searched": 1}) == "1 searched, 2 measured"
    assert counted({}) == "none"


def test_a_default_that_won_a_search_is_searched_and_a_lone_one_is_not(database: Database) -> None:
    assert database.origin(PRODUCT, TARGET, 1) is None
    for number, expected in ((1, "measured"), (SEARCH, "measured"), (SEARCH + 1, "searched")):
        database.add(trials(number))
        database.add(trials(number))  # measured again, which is no other configuration
        best = database.best(PRODUCT, TARGET)
        assert best is not None and best.record.config == default_of(PRODUCT, TARGET)
        assert database.origin(PRODUCT, TARGET, 1) == expected
    assert database.origin(PRODUCT, TARGET, 2) is None, "other threads"


def test_a_space_that_was_tried_whole_is_searched(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.register_target(TARGET)
    database.add(trials(2))
    assert database.origin(PRODUCT, TARGET, 1) == "measured"
    whole = SearchSpace((Subspace((), (tile("x", (1, 2)),)),))
    monkeypatch.setattr(structures, "space_of", lambda workload, target: whole)
    assert database.origin(PRODUCT, TARGET, 1) == "searched"


def test_other_layouts_and_failures_are_of_the_same_search(database: Database) -> None:
    database.add(trials(2))
    configs = list(space_of(PRODUCT, TARGET))[20 : 20 + SEARCH]
    for number, config in enumerate(configs):
        result = MeasureResult("wrong", "simulator", message="it is")
        record = TuningRecord(PRODUCT.key, TARGET.identity, config, result, 1, f"layout{number}")
        database.add([record])
    assert database.origin(PRODUCT, TARGET, 1) == "searched"


def test_a_gain_is_of_what_is_known_and_never_below_one() -> None:
    assert times_of(2.0, 1.0) == 2.0
    assert times_of(1.0, 1.005) == 1.0, "a tie"
    assert times_of(None, 1.0) is None and times_of(1.0, None) is None
    found = gain_of([(2.0, 3.0, 1.0), (1.0, 2.0, 2.0), (9.0, None, 1.0)])
    assert found is not None
    assert (found.default_s, found.best_s, found.missing) == (8.0, 4.0, 1)
    assert (found.times, found.seconds) == (2.0, 4.0)
    assert gain_of([]) is None


def test_rows_say_what_is_no_trial(database: Database) -> None:
    job = database.start_job(COMMAND, seed=0, strategy="random", targets=[TARGET])
    results = [
        ("hardware", ""), ("hardware", MEASURED_AGAIN), ("hardware", TIMED_IN_MODEL),
        ("hardware", f"{MEASURED_AGAIN}: it crashed"), ("simulator", ""), ("simulator", ""),
    ]  # fmt: skip
    for (label, message), record in zip(results, trials(6), strict=True):
        result = MeasureResult("ok", label, (1e-6,), message)  # type: ignore[arg-type]
        database.add([TuningRecord.of(PRODUCT, TARGET, record.config, result)], job=job)
    with database.reading() as connection:
        found = count(connection, job, COMMAND)
        assert count(connection, job, "tilesmith tune --measure simulator").trials == 2
    assert found == TrialCounts(1, 2, 2)
    assert str(found) == "1 trial (2 simulated before, 2 measured again)"
    assert database.trial_counts(database.job(job)) == found
