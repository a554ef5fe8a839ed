"""`--help`, and the one name that each thing has: walks over all commands there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.end_to_end.command import invoke
from tilesmith.cli.help import EXAMPLES, CommandOption, Explained, group_of
from tilesmith.command_line import command_line


def _walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Explained]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _walk(below, (*path, name))
        return
    assert isinstance(command, Explained), f"{path} has no groups and examples in its help"
    yield " ".join(path), command


COMMANDS = dict(_walk(command_line))


def _options(path: str) -> list[click.Option]:
    return [param for param in COMMANDS[path].params if isinstance(param, click.Option)]


def _written(option: click.Option) -> bool:
    return isinstance(option.type, click.Path)


def test_help_has_groups_defaults_and_examples() -> None:
    said = invoke("tune", "--help").stdout
    headings = [line for line in said.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == [
        "Model and data:", "Hardware:", "Search:", "Workers:", "General:", "Examples:",
    ]  # fmt: skip
    assert "[default: 1000, or as many as --time-limit allows" in " ".join(said.split())
    assert all(f"  {line}\n" in said for line in EXAMPLES["tune"])


def test_no_command_lists_more_options_in_a_row_than_one_can_look_over() -> None:
    for path in COMMANDS:
        groups = [group_of(option) for option in _options(path)]
        assert max(groups.count(group) for group in groups) <= 14, path


@pytest.mark.parametrize("path", COMMANDS)
def test_every_default_is_shown(path: str) -> None:
    said = " ".join(invoke(*path.split(), "--help").stdout.split())
    assert 'default: ""' not in said
    for option in _options(path):
        if option.default not in (None, False, "", ()) and not callable(option.default):
            shown = option.default if not isinstance(option.default, tuple) else option.default[0]
            if option.name not in ("verbose", "log_level") and _is_value(option):
                assert f"[default: {shown}" in said, option.opts


def _is_value(option: click.Option) -> bool:
    return not option.is_flag and "UNSET" not in repr(option.default)


def test_every_command_has_examples_and_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(EXAMPLES) == set(COMMANDS)
    monkeypatch.chdir(tmp_path)
    for name in ("tuning.db", "trials.jsonl.gz", "before.db", "after.db", "other.db"):
        Path(name).touch()
    for path, lines in EXAMPLES.items():
        for line in lines:
            words = shlex.split(line.partition(">")[0])
            assert " ".join(words).startswith(f"tilesmith {path}"), line
            assert len(line) <= 78, line
            COMMANDS[path].make_context(path, words[1 + len(path.split()) :]).close()


MEANINGS = {
    "--output": "FILE",
    "--folder": "FOLDER",
    "--page": "FILE.html",
    "--trace": "FILE.json",
    "--time-limit": "SECONDS",
    "--database": "FILE_OR_URL",
    "--seed": "N",
    "--input": "NAME=FILE.npy",
    "--shape": "NAME=1x3x224x224",
    "--set": "KEY=VALUE",
}


def test_one_name_for_one_thing() -> None:
    """docs/decisions/0111-one-name-for-one-thing.md."""
    for path in COMMANDS:
        for option in _options(path):
            name = option.opts[-1]
            if name in MEANINGS:
                form = option.metavar or option.type.name
                fits = form == MEANINGS[name] or (name == "--output" and "." in form)
                assert fits, f"{path} {name} takes {form}, elsewhere it takes {MEANINGS[name]}"
            if name == "--output":
                assert option.opts == ["-o", "--output"] and _written(option), path
            assert name not in ("--seconds", "--report", "--out", "--html"), path
            if "html" in (option.metavar or ""):
                assert name == "--page", f"{path} writes a page by {name}"
        flags = [option.opts[-1] for option in _options(path) if option.is_flag]
        assert ("--json" in flags) == (path not in ("dashboard", "completion")), path


def test_names_that_options_had_before_still_work_and_are_not_shown() -> None:
    former = {
        (path, old): option
        for path in COMMANDS
        for option in _options(path)
        if isinstance(option, CommandOption)
        for old in option.former
    }
    assert {("report", "-o"), ("profile", "--seconds"), ("plan", "--output")} <= set(former)
    for (path, old), option in former.items():
        said = invoke(*path.split(), "--help").stdout
        assert not re.search(rf"(^| |/){old}(?![\w-])", said.partition("Examples:")[0]), (path, old)
        assert option.opts[-1] in said
    words = ["m", "--mesh", "trn1.2xlarge", "--input", "3", "--output", "5", "--trace", "t.csv"]
    context = COMMANDS["plan"].make_context("plan", words)
    assert context.params["input"] == (3,) and context.params["output"] == (5,)
    assert context.params["trace"] == Path("t.csv")
