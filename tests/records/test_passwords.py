"""Passwords of database URLs are printed by no command, in no answer, no error and no traceback."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from urllib.parse import quote

import click
import onnx
import pytest
from click.testing import CliRunner

import tilesmith as ts
from tests.capabilities.fault_finding.defects import cleared, code_without_a_tail
from tests.compiler.model_builder import model_of, random
from tests.end_to_end.command import SMALL, save_model
from tilesmith.command_line import command_line
from tilesmith.jobs.databases import located
from tilesmith.jobs.requests.request import TuneRequest
from tilesmith.records.schema.engine import parse_url
from tilesmith.records.schema.urls import without_password

PASSWORD = "S3cr'et P@ss/w:rd"
SPELLED = (PASSWORD, quote(PASSWORD, safe=""), "S3cr", "w:rd", "w%3Ard")

COMMANDS = [
    "tune --op OP --measure simulator --trials 2",
    "tune --op OP --measure simulator --trials 2 --resume --json",
    "tune --op OP --measure nothing",
    "compile MODEL -o FOLDER/model.tsm",
    "compile MODEL -o FOLDER/model.tsm --json",
    "compile MODEL -o FOLDER/model.tsm --require-tuned",
    "run MODEL", "simulate MODEL --json", "simulate --op OP",
    "db top", "db top --json", "db query --csv", "db show 1", "db show 99999", "db stats",
    "db jobs", "db jobs --json", "db machines", "db diff DATABASE DATABASE", "db diff OTHER",
    "db merge DATABASE --json", "db export -o FOLDER/trials.jsonl", "db export --json",
    "db import FOLDER/trials.jsonl --json", "db import FOLDER/none.jsonl",
    "db verify --only-check", "db prune --keep 3 --json", "db compact --older-than 3",
    "models list", "models show 77", "report -o FOLDER/report.html --json",
    "--traceback db show 99999", "dashboard --port 1 --host 203.0.113.1",
]  # fmt: skip


ON_MODELS = [
    "bench MODEL --seconds 0.1 --json", "profile MODEL --seconds 0.1", "space --op OP",
    "compare MODEL --json", "measure --op OP --config m_tile=2", "bisect MODEL",
    "run MODEL --precision int8 --calibration FOLDER/none.npy",
]  # fmt: skip
"""What takes longer, and says most of what it does where it is asked to."""

BRIEFLY = [command for command in COMMANDS if "--json" not in command]


def takes_database(command: str) -> bool:
    """Whether a command has an option that names the database."""
    found: click.Command | None = command_line
    for word in command.replace("--traceback ", "").split():
        if not isinstance(found, click.Group):
            break
        found = found.get_command(click.Context(found), word)
    assert found is not None, command
    return any("--database" in param.opts for param in found.params)


def said_by(words: list[str], environment: dict[str, str]) -> str:
    result = CliRunner().invoke(command_line, words, env=environment)
    return f"{result.output}\n{result.stderr}\n{result.exception!r}"


def leaks(text: str) -> list[str]:
    return [spelled for spelled in SPELLED if spelled in text]


@pytest.mark.parametrize("by", ["option", "variable", "parameter"])
def test_no_command_prints_a_password(postgres: str, tmp_path: Path, by: str) -> None:
    secret = quote(PASSWORD, safe="")
    url = postgres.replace("tester@", f"tester:{secret}@")
    if by == "parameter":
        url = f"{postgres}&password={secret}"
    assert url != postgres
    model = save_model(tmp_path / "small.onnx")
    names = {"OP": SMALL, "MODEL": str(model), "DATABASE": url, "OTHER": url + "x"}
    assert all(map(takes_database, ON_MODELS))
    commands = {"option": COMMANDS, "variable": BRIEFLY, "parameter": [*BRIEFLY[:4], *ON_MODELS]}
    for command in commands[by]:
        words = [names.get(w, w.replace("FOLDER", str(tmp_path))) for w in command.split()]
        takes = takes_database(command) and words[:2] != ["db", "diff"]
        words += ["--database", url] if by != "variable" and takes else []
        words += ["-vv"] if by == "parameter" else []  # what the logging channel says, too
        said = said_by(words, {"TILESMITH_DATABASE": url if by == "variable" else ""})
        assert leaks(said) == [], command
    for file in tmp_path.glob("*"):
        assert leaks(file.read_bytes().decode(errors="replace")) == [], file.name


def test_a_folder_that_shows_a_fault_holds_no_password(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path / "cache"))
    cleared()
    code_without_a_tail(monkeypatch)
    layers = "g (float[4, 12] x) => (float[4, 50] y) { y = Gemm(x, w) }"
    onnx.save(model_of(layers, w=random(12, 50)), str(tmp_path / "layers.onnx"))
    url = postgres.replace("tester@", f"tester:{quote(PASSWORD, safe='')}@")
    folder = tmp_path / "found"
    words = ["bisect", str(tmp_path / "layers.onnx"), "--output", str(folder), "--database", url]
    said = said_by(words, {})
    cleared()
    assert "at fault: code generation" in said and "--database" in said
    written = {file.name: file.read_bytes().decode(errors="replace") for file in folder.iterdir()}
    assert "tester:***@" in written["README.txt"] and "finding.json" in written
    assert leaks(said) == leaks("".join(written.values())) == []


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{quote(PASSWORD, safe='')}@127.0.0.1:1/db", "mysql://me:S3cr@et@h/db",
        "postgresql://me:S3cr'et@127.0.0.1:1/db", "postgresql://me:S3cr@h:port/db",
        "postgresql+nothing://me:S3cr@h/db", "sqlite://me:S3cr@h/db",
        "postgresql://h/db?user=me&password=S3cr", "nonsense://:S3cr@",
    ],
)  # fmt: skip
def test_what_cannot_be_opened_is_named_without_its_password(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["db", "top"], ["--traceback", "db", "top"], ["simulate", "--op", SMALL]):
        assert leaks(said_by([*words, "--database", url], {})) == [], words
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TILESMITH_DATABASE", url)
    with pytest.raises(ts.TilesmithError) as caught:
        ts.simulate(ts.Workload.parse(SMALL))
    chain = "".join(traceback.format_exception(caught.value))
    assert leaks(f"{caught.value!r} {chain} {caplog.text}") == []


def test_what_holds_a_url_shows_no_password() -> None:
    url = f"postgresql://me:{quote(PASSWORD, safe='')}@h/db"
    asked = TuneRequest(ts.Workload.parse(SMALL), database=url, measure="simulator")
    for shown in (asked, asked.resolved(), located(url), parse_url(url)):
        assert leaks(repr(shown)) == leaks(str(shown)) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at postgresql://me:pw@h/db, tried", "at postgresql://me:***@h/db, tried"),
        ("postgresql://me:p'w\"x@h/db", "postgresql://me:***@h/db"),
        ("https://host/path and me@host", "https://host/path and me@host"),
        ("password=abc&user=me", "password=***&user=me"),
    ],
)
def test_urls_are_recognised(text: str, shown: str) -> None:
    assert without_password(text) == shown
