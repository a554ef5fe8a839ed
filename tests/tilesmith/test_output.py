"""Printing: JSON stays standard JSON, tables stay aligned."""

from __future__ import annotations

import json

import pytest

from tilesmith.cli.failures import explain
from tilesmith.display.output import aligned, duration, print_json, table
from tilesmith.display.printable import printable
from tilesmith.search_space.support.errors import InputError


def test_numbers_that_are_not_finite_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("inf"), "b": [1.5, float("nan")], "c": {"d": (1, None)}})
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
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


STEERING = "a\nb\x1b[31mred\u202eturned \x07日本"


def test_names_do_not_steer_the_terminal_or_the_page() -> None:
    assert printable(STEERING) == "a b [31mred turned  日本"
    assert len(table(("name", "ms"), [(STEERING, 1.0)]).splitlines()) == 2
    assert explain(InputError(f"no '{STEERING}'")).message.isprintable()


LONG = "conv2d n=1 c=64 h=56 w=56 oc=64 kh=3 kw=3 stride=1 pad=1 const=w epilogue=bias,relu"
WIDE = (["id", "workload", "us", "configuration"], [["1", LONG, "2.50", "tile=1 " * 20 + "end=1"]])


def test_off_a_terminal_a_row_is_one_plain_line() -> None:
    header, row = aligned(*WIDE, [True, False, True, False], None)
    assert LONG in row and row.endswith("end=1") and "\033" not in header + row
    assert header.split() == ["id", "workload", "us", "configuration"]
    printed = table(("a", "b"), [("", 1), (None, 2)])
    assert [line.split() for line in printed.splitlines()[1:]] == [["-", "1"], ["-", "2"]]


@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_terminal_shows_every_word_within_its_width(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines = aligned(*WIDE, [True, False, True, False], width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert all(word in words for row in WIDE[1] for cell in row for word in cell.split())
    assert any({"1", "2.50"} <= set(line.split()) for line in lines), "numbers stay together"
    wide, whole = (aligned(*WIDE, [True, False, True, False], size) for size in (400, None))
    assert wide == whole
