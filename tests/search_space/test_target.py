"""Targets as data: ranges, types and names are checked, and identity ignores calibration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilesmith.search_space.hardware.target import Target, load_target, parse_target, target_names
from tilesmith.search_space.support.errors import TargetError

TEXT = """
family = "cpu"
doc = "a toy"
[l1]
kib = {value = 32, minimum = 1, maximum = 1024, source = "S", trust = "V"}
[core]
ghz = {value = 2.5, calibratable = true}
fast = true
kind = {value = "ws", choices = ["ws", "os"]}
"""


def test_shipped_targets_load_and_round_trip() -> None:
    assert {"systolic", "trn1", "trn2"} <= set(target_names())
    for name in target_names():
        target = load_target(name)
        assert target.name == name
        assert type(target).from_json(target.to_json()) == target


def test_facts_are_read_by_dotted_name() -> None:
    target = parse_target("toy", TEXT)
    assert target.integer("l1.kib") == 32
    assert target.number("core.ghz") == 2.5
    assert target.number("l1.kib") == 32.0
    assert target.text("core.kind") == "ws"
    assert target.fact("l1.kib").source == "S"
    assert "l1.kib" in target and "l2.kib" not in target
    assert list(target) == ["core.fast", "core.ghz", "core.kind", "l1.kib"]


def test_settings_keep_types_and_ranges() -> None:
    target = parse_target("toy", TEXT)
    changed = target.with_settings({"l1.kib": "48", "core.ghz": "3", "core.fast": "false"})
    assert changed.integer("l1.kib") == 48
    assert changed.number("core.ghz") == 3.0
    assert changed.fact("core.fast").value is False
    assert target.integer("l1.kib") == 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"l1.kib": "0"}, "l1.kib = 0 is out of range; allowed: 1 to 1024"),
        ({"l1.kib": "4.5"}, r"l1.kib = '4.5' is not of type int \(it is 32 now\); allowed: \d+ to"),
        ({"l2.kib": "4"}, "has no 'l2.kib'; it has core.fast"),
        ({"core.ghz": "fast"}, "core.ghz = 'fast' is not of type float"),
        ({"core.ghz": "-1"}, "core.ghz = -1.0 is out of range"),
        ({"core.fast": "maybe"}, "not of type bool"),
        ({"core.kind": "is"}, "core.kind = 'is' is unknown; one of ws, os"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, str], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        parse_target("toy", TEXT).with_settings(settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("family = ", "target 'bad' is not valid TOML"),
        ("a = " + "[" * 50_000, "target 'bad' is not valid TOML"),
        ("[l1]\nkib = 3", "names no family"),
        ('family = "cpu"\nx = {value = 1, minimun = 0}', "x has the unknown key 'minimun'"),
        ('family = "cpu"\nx = {value = 9, maximum = 3}', "x = 9 is out of range; allowed: 0 to 3"),
        (f'family = "cpu"\nx = 1{"0" * 400}', "is out of range"),
        ('family = "cpu"\nx = {value = {}}', "the value of x is {}; a number, a text or a list"),
        ('family = "cpu"\nx = {value = 1, choices = 3}', "the choices of x is 3"),
        ('family = "cpu"\nx = {value = 1, minimum = "a"}', "the minimum of x is 'a'"),
    ],
)
def test_wrong_files_are_named(text: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        parse_target("bad", text)


def test_asking_for_the_wrong_type_is_an_error() -> None:
    target = parse_target("toy", TEXT)
    with pytest.raises(TargetError, match=r"core.ghz = 2.5 is not an integer"):
        target.integer("core.ghz")
    with pytest.raises(TargetError, match=r"core.fast = True is not an integer"):
        target.integer("core.fast")
    with pytest.raises(TargetError, match=r"core.kind = 'ws' is not a number"):
        target.number("core.kind")


def test_identity_covers_what_calibration_may_not_change() -> None:
    target = parse_target("toy", TEXT)
    assert target.with_settings({"core.ghz": "9"}).identity == target.identity
    assert target.with_settings({"l1.kib": "48"}).identity != target.identity
    assert target.identity.startswith("toy-")


def test_files_are_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    assert load_target(str(path)).name == "mine"
    with pytest.raises(TargetError, match=r"'.*absent.toml' cannot be read"):
        load_target(str(tmp_path / "absent.toml"))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TargetError, match="cannot be read"):
        load_target(str(path))
    with pytest.raises(TargetError, match="unknown target 'trn9'; one of cpu, "):
        load_target("trn9")
    with pytest.raises(TargetError, match="found out by 'host_target'"):
        load_target("cpu")


@pytest.mark.parametrize("key", ["name", "family"])
def test_a_written_target_whose_family_or_name_was_changed_is_refused(key: str) -> None:
    raw = json.loads(load_target("trn1").to_json()) | {key: ["x"]}
    with pytest.raises(TargetError, match=rf"the {key} of a target is \['x'\], no text"):
        Target.from_json(json.dumps(raw))
