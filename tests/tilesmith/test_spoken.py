"""What a caller may change is named as they would write it: options, or Python's arguments."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import tilesmith as ts
from tilesmith.capabilities.quantisation import jobs as quantising
from tilesmith.capabilities.sharding import jobs as sharding
from tilesmith.command_line import command_line
from tilesmith.jobs.requests import request
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.spoken import (
    _OPTION,
    _QUOTED,
    OTHERWISE,
    SHELL_ONLY,
    argument,
    as_arguments,
    on_a_command_line,
)

ROOT = Path(__file__).parents[2]
FLOORS = ("search_space", "codegen", "simulator", "records", "tuner", "compiler", "tilesmith")


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ("leave --threads out", "leave threads= out"),
        ("give --time-limit 5", "give time_limit= 5"),
        ("without --resume", "without resume=True"),
        ("write --shape x=1x3x224", 'write shapes={"x": (1, 3, 224)}'),
        ("or --shape n=8.", 'or shapes={"n": (8,)}.'),
        ("a range, --shape n=1..8", 'a range, shapes={"n": (1, 8)}'),
        ("or --shape x=1..4x8.", 'or shapes={"x": ((1, 4), 8)}.'),
        ("--time-limit = nan is out of range", "time_limit = nan is out of range"),
        ("try --set sbuf.mib=48, or", 'try settings={"sbuf.mib": "48"}, or'),
        ("name one with --op", "name one with Workload.parse(...)"),
        ("'tilesmith db query --status failed' says why", None),
        ("a -- b, x--y, ---", None),
        ("'ray start --head', or --workers 2", "'ray start --head', or workers= 2"),
    ],
)  # fmt: skip
def test_options_are_arguments_in_python(options: str, arguments: str | None) -> None:
    assert as_arguments(options) == (arguments or options)
    with on_a_command_line():
        assert str(InputError(options)) == options
    assert str(InputError(options)) == (arguments or options)


def test_both_sides_of_one_mistake(tmp_path: Path) -> None:
    path = tmp_path / "space.json"
    path.write_text("{}")
    wrong = "matmul m=8 n=8 k=8"
    database = str(tmp_path / "t.db")
    with pytest.raises(InputError, match="leave workers= out"):
        ts.tune(
            ts.Workload.parse(wrong), database=database, measure="replay", workers=2, trials=1
        )  # fmt: skip
    arguments = ["tune", "--op", wrong, "--database", database, "--measure", "replay"]
    result = CliRunner().invoke(command_line, [*arguments, "--workers", "2"])
    assert result.exit_code == 2 and "leave --workers out" in result.stderr


def messages() -> Iterator[tuple[str, str]]:
    """Text of every error in the sources, with the place it stands at; formats as {}."""
    for floor in FLOORS:
        folder = ROOT / floor
        for path in sorted(folder.rglob("*.py")):
            if path.is_symlink() or "--" not in (text := path.read_text(encoding="utf-8")):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    for given in node.exc.args:
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", _text(given)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return " ".join(str(part.value) for part in parts)


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        yield from (name for name in parameter.opts if name.startswith("--"))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from options(found, context)


def test_every_option_an_error_names_is_there_and_an_argument() -> None:
    context = click.Context(command_line, **command_line.context_settings)
    known = set(options(command_line, context))
    arguments = {
        name
        for owner in (getattr(ts, name) for name in ts.__all__)
        if inspect.isfunction(owner)
        for name in inspect.signature(owner).parameters
    }
    for module in (request, quantising, sharding):
        for owner in vars(module).values():
            arguments |= set(getattr(owner, "__annotations__", ()))
    wrong = []
    for where, text in messages():
        for match in _OPTION.finditer(_QUOTED.sub("", text)):
            name = match[1]
            there = f"--{name}" in known or name == "head"
            alone = name in SHELL_ONLY or name in OTHERWISE
            shell = where.startswith(("tilesmith/commands/", *ONLY_COMMANDS))
            if not there or not (alone or shell or argument(name).partition("=")[0] in arguments):
                wrong.append(f"{where}: --{name}")
    assert not wrong, "\n".join(wrong)


ONLY_COMMANDS = ("capabilities/planning/", "capabilities/exploration/", "capabilities/dashboard/")
"""What has no function in the Python API; `--tp` is `tp=` there for consistency alone."""


def test_a_replay_may_always_be_told_to_resume(tmp_path: Path) -> None:
    database, workload = str(tmp_path / "t.db"), "matmul m=8 n=8 k=8"
    arguments = ["tune", "--op", workload, "--database", database, "--trials", "4", "--resume"]
    runner = CliRunner()
    first = runner.invoke(command_line, [*arguments, "--measure", "simulator"])
    assert first.exit_code == 0, first.stderr
    again = runner.invoke(command_line, [*arguments, "--measure", "replay", "--json"])
    assert again.exit_code == 0 and "nothing to resume" in again.stderr, again.stderr
    assert json.loads(again.stdout)["trials"] > 0
