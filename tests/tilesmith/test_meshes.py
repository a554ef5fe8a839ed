"""`tilesmith targets` of meshes, and `tilesmith collectives`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilesmith.command_line import command_line


def asked(*words: str) -> str:
    result = CliRunner().invoke(command_line, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str) -> str:
    result = CliRunner().invoke(command_line, list(words))
    assert result.exit_code == 2, result.output
    return result.output


def test_targets_lists_and_explains_meshes() -> None:
    assert "trn1.32xlarge" in asked("targets")
    text = asked("targets", "trn1.32xlarge")
    assert "16 chips of 2 cores (trn1), 512 GiB" in text and "NeuronLink-v2" in text
    told = json.loads(asked("targets", "trn2u.48xlarge", "--json"))
    (mesh,) = told["meshes"]
    assert (mesh["chips"], mesh["cores"], mesh["memory_gib"]) == (64, 512, 6144)
    assert [level["name"] for level in mesh["levels"]] == [
        "pair", "chip", "torus", "ultraserver", "instances",
    ]  # fmt: skip
    changed = json.loads(asked("targets", "trn1.32xlarge", "--set", "torus.members=2x4", "--json"))
    assert changed["meshes"][0]["chips"] == 8


def test_a_mesh_may_be_a_file(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "families/trainium/meshes/trn1.2xlarge.toml"
    (tmp_path / "mine.toml").write_text(source.read_text())
    assert "1 chips of 2 cores" in asked("targets", str(tmp_path / "mine.toml"))


def test_collectives_are_costed_by_size() -> None:
    words = ("collectives", "--mesh", "trn1.32xlarge", "--cores", "8", "--from", "1KiB")
    told = json.loads(asked(*words, "--to", "1MiB", "--factor", "1024", "--timeline", "--json"))
    small, large = told["rows"]
    assert told["group"] == list(range(8)) and (small["bytes"], large["bytes"]) == (1024, 2**20)
    assert large["busbw_gbps"] == pytest.approx(large["algbw_gbps"] * 2 * 7 / 8)
    assert large["algbw_gbps"] == pytest.approx(2**20 / large["us"] / 1e3)
    assert large["timeline_us"] == pytest.approx(large["us"], rel=0.3)
    assert "busbw" in asked(*words, "--kind", "send", "--cores", "2")


def test_all_groups_at_once_take_longer_where_they_share_links() -> None:
    words = ("collectives", "--mesh", "trn1.32xlarge", "--kind", "all_gather", "--cores", "4")
    words += ("--stride", "8", "--from", "16MiB", "--to", "16MiB", "--timeline", "--json")
    (alone,), (together,) = (
        json.loads(asked(*words, *more))["rows"] for more in ((), ("--all-groups",))
    )
    assert together["us"] > 1.5 * alone["us"]
    assert together["timeline_us"] > 1.5 * alone["timeline_us"]


def test_what_cannot_be_meant_is_refused() -> None:
    assert "allowed: 1, 2, 4" in refused("collectives", "--mesh", "trn1.32xlarge", "--cores", "5")
    assert "unknown mesh 'trn1'" in refused("collectives", "--mesh", "trn1")
    assert "no size" in refused("collectives", "--mesh", "trn1.2xlarge", "--from", "2KB2")
    assert "larger" in refused("collectives", "--mesh", "trn1.2xlarge", "--from", "2K", "--to", "1")
    assert "a mesh (" in refused("targets", "trn9")
    large = ("--mesh", "trn1.32xlarge", "--set", "torus.members=200x200")
    assert "too large to be costed" in refused("collectives", *large)
    larger = (*large[:-1], "torus.members=1000x1000")
    assert "more members than the 65,536" in refused("collectives", *larger)


def test_a_core_alone_sends_nothing() -> None:
    words = ("--mesh", "trn1.32xlarge", "--cores", "1", "--to", "1KiB", "--json")
    (row,) = json.loads(asked("collectives", *words))["rows"]
    assert (row["us"], row["busbw_gbps"], row["algorithm"]) == (0, 0, "none")
