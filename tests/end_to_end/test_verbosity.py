"""What is done is told on stderr where it is asked for, by the channel `tilesmith` of `logging`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tilesmith as ts
from tests.end_to_end.command import SMALL, invoke
from tilesmith.command_line import command_line


def test_stages_are_told_in_detail(model: Path, tmp_path: Path) -> None:
    artifact, database = tmp_path / "model.tsm", tmp_path / "tuning.db"
    done = invoke("compile", model, "-o", artifact, "--database", "none", "-vv", "--json")
    assert json.loads(done.stdout)["artifact"], "stdout is the result's alone"
    told = done.stderr
    assert f"imported {model}" in told or f"imported {model.stem}" in told
    assert (
        "pass fuse-" in told
        and " nodes, " in told
        and "DEBUG compiler.driver.build: code of " in told
    )
    words = ("--trials", 8, "--measure", "simulator", "--database", database)
    told = invoke("tune", "--op", SMALL, *words, "-vv").stderr
    assert f"opened database {database}" in told and "trials 7 ok; best" in told


def test_one_v_tells_the_course_of_a_job_alone(tmp_path: Path) -> None:
    words = ("--trials", 2, "--measure", "simulator", "--database", tmp_path / "tuning.db")
    told = invoke("tune", "--op", SMALL, *words, "-v").stderr
    assert "INFO: 2 trials done" in told and "DEBUG" not in told


def test_levels_have_names(model: Path) -> None:
    told = invoke("run", model, "--database", "none", "--log-level", "DEBUG").stderr
    assert "INFO compiler.onnx.importer: imported " in told and "DEBUG" in told
    told = invoke("run", model, "--database", "none", "--log-level", "warning").stderr
    assert "INFO" not in told


def test_one_v_tells_what_a_search_for_a_fault_looks_at(model: Path) -> None:
    told = invoke("bisect", model, "--database", "none", "-v").stderr
    assert "ran it on cpu beside " in told and "imported " in told and "DEBUG" not in told


def test_nothing_is_told_unless_it_is_asked_for(model: Path, tmp_path: Path) -> None:
    """Nor by a command that follows one which was asked."""
    log = logging.getLogger("tilesmith")
    handlers, level = list(log.handlers), log.level
    assert "INFO" in invoke("run", model, "--database", "none", "-v", "--log-level", "info").stderr
    assert (log.handlers, log.level) == (handlers, level)
    told = invoke("compile", model, "-o", tmp_path / "model.tsm", "--database", "none").stderr
    assert "DEBUG" not in told and "INFO" not in told


def test_every_command_takes_v() -> None:
    def leaves(command: click.Command) -> Iterator[click.Command]:
        if not isinstance(command, click.Group):
            yield command
            return
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found)

    for command in leaves(command_line):
        assert sum("-v" in param.opts for param in command.params) == 1, command.name


def test_python_reads_the_same_lines(caplog: pytest.LogCaptureFixture, model: Path) -> None:
    with caplog.at_level("DEBUG", logger="tilesmith"):
        ts.compile(model, database=None)
    names = {record.name for record in caplog.records}
    assert {"tilesmith.compiler.rewriting.graph_pass", "tilesmith.compiler.driver.build"} <= names
