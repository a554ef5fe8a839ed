"""Requests: what the API takes by name is what a request holds, and is looked up once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

import tilesmith as ts
from tilesmith.jobs.requests.request import Asked, AskedOfSearch, Request, TuneRequest
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.search_space.support.errors import TargetError

WORKLOAD = ts.Workload.parse("matmul m=16 n=16 k=16")


@pytest.mark.parametrize(
    ("asked", "request_type"), [(Asked, Request), (AskedOfSearch, TuneRequest)]
)
def test_keywords_of_the_api_are_the_fields_of_a_request(asked: type, request_type: type) -> None:
    named = {field.name for field in fields(request_type)} - {"subject", "target", "database"}
    assert asked.__annotations__.keys() | asked.__optional_keys__ == named


def test_a_keyword_that_nothing_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="trails"):
        ts.tune(WORKLOAD, database=tmp_path / "tuning.db", trails=3)  # type: ignore[call-arg]
    assert not list(tmp_path.iterdir())


def test_a_kernel_has_a_thread() -> None:
    with pytest.raises(ts.InputError, match="threads = 0 is out of range; at least 1"):
        Request(WORKLOAD, threads=0).resolved()


def test_a_request_is_frozen_and_resolved_whole(tmp_path: Path) -> None:
    request = Request(WORKLOAD, "systolic", tmp_path / "a.db", settings={"array.rows": 16})
    with pytest.raises(FrozenInstanceError):
        request.threads = 2  # type: ignore[misc]
    resolved = request.resolved()
    assert resolved.target == ts.resolve_target("systolic", {"array.rows": 16})
    assert (resolved.database, resolved.threads) == (str(tmp_path / "a.db"), 1)
    with pytest.raises(ts.TargetError, match="no such"):
        Request(WORKLOAD, "systolic", settings={"no such": 1}).resolved()


def test_trials_are_unlimited_only_where_time_is_not() -> None:
    assert TuneRequest(WORKLOAD).options(0.0).trials == 1000
    assert TuneRequest(WORKLOAD, time_limit=5.0).options(0.0).trials is None
    assert TuneRequest(WORKLOAD, trials=7, time_limit=5.0).options(0.0).trials == 7
    with pytest.raises(ts.InputError, match="trials = 0 is out of range"):
        TuneRequest(WORKLOAD, trials=0).options(0.0)


def test_a_target_file_of_an_unknown_family_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('family = "sistolic"\n[array]\nrows = 3\n')
    with pytest.raises(TargetError, match=r"unknown family 'sistolic'.*did you mean 'systolic'"):
        resolve_target(str(file))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"subject": None}, "a model is named by its path, or given loaded; NoneType"),
        ({"subject": b"abc"}, "bytes is neither"),
        ({"shapes": [4, 8]}, r"shapes = \[4, 8\] has no names; a dict"),
        ({"settings": "sbuf.mib=3"}, "settings = 'sbuf.mib=3' has no names"),
        ({"threads": "2"}, "threads = '2' is not a whole number"),
        ({"chips": True}, "chips = True is not a whole number"),
    ],
)
def test_what_is_of_the_wrong_kind_is_named(asked: dict[str, object], said: str) -> None:
    with pytest.raises(ts.InputError, match=said):
        Request(**{"subject": WORKLOAD, **asked})  # type: ignore[arg-type]


def test_numbers_out_of_range_are_called_as_python_calls_them() -> None:
    with pytest.raises(ts.InputError, match=r"^time_limit = nan is out of range"):
        TuneRequest(WORKLOAD, time_limit=float("nan")).options(0.0)
    with pytest.raises(ts.InputError, match=r"^seed = -1 is out of range"):
        TuneRequest(WORKLOAD, seed=-1).options(0.0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ts.compile("m.onnx", shap={}), r"compile\(\) has no argument 'shap'; .*'shapes'"),
        (lambda: ts.tune("m.onnx", trails=3), r"tune\(\) has no argument 'trails'; .*'trials'"),
        (lambda: ts.tune("m.onnx", canel=3), "did you mean 'cancel'"),
        (lambda: ts.quantize("m.onnx", metod="mse"), "did you mean 'method'"),
        (lambda: ts.load("m.tsm", maped=False), r"load\(\) has no argument 'maped'; .*'mapped'"),
        (lambda: ts.compile("m.onnx", zzzz=3), "it has model, target, .*precision"),
    ],
)
def test_a_misspelt_argument_is_named_by_the_function_called(
    call: Callable[[], object], said: str
) -> None:
    with pytest.raises(ts.InputError, match=said):
        call()
    with pytest.raises(TypeError):  # what Python's own error for it is, too
        call()
