"""Printing: JSON stays standard JSON, tables stay aligned."""

from __future__ import annotations

import json

import pytest

from tilesmith.display.output import duration, print_json, table


def test_numbers_that_are_not_finite_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("inf"), "b": [1.5, float("nan")], "c": {"d": (1, None)}})
    assert json.loads(capsys.readouterr().out) == {
        "a": None,
        "b": [1.5, None],
        "c": {"d": [1, None]},
    }


def test_numeric_columns_align_right_and_text_left() -> None:
    printed = table(("name", "ms"), [("a", 1.5), ("longer", 12.25), ("none", None)])
    assert printed.splitlines() == [
        "name       ms",
        "a         1.5",
        "longer  12.25",
        "none        -",
    ]


def test_durations_come_in_the_unit_that_suits_them() -> None:
    assert [duration(s) for s in (2.5e-6, 0.0123, 3.0)] == ["2.5 us", "12.3 ms", "3 s"]


def test_an_empty_table_is_its_header() -> None:
    assert table(("name", "ms"), []) == "name  ms"
