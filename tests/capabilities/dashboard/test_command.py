"""`tilesmith dashboard`, as a process: where it says it is, how it ends, what it refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilesmith.command_line import command_line
from tilesmith.records import Database

pytest.importorskip("starlette", reason="the live page's libraries are not installed")
pytest.importorskip("uvicorn", reason="the live page's libraries are not installed")


@contextmanager
def running(*words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command with its first lines; ended if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tilesmith", "dashboard", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        lines = []
        while not lines or "Ctrl-C" not in lines[-1]:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            lines.append(line.strip())
        yield process, lines
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def refused(*words: str) -> str:
    """The sentence on stderr of a command that ends with 2."""
    result = CliRunner().invoke(command_line, ["dashboard", *words])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("tilesmith: ") and result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_serves_and_ends_quietly(file: Path, end: signal.Signals) -> None:
    with running("--database", str(file), "--port", "0") as (process, lines):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", lines[0])
        with urllib.request.urlopen(lines[0]) as reply:
            assert b"<h1>Jobs</h1>" in reply.read()
        process.send_signal(end)
        out, errors = process.communicate(timeout=300)
    assert (process.returncode, out, errors) == (0, "", "")


def test_it_waits_for_a_database_that_is_not_made_yet(tmp_path: Path) -> None:
    place = tmp_path / "tuning.db"
    with running("--database", str(place), "--port", "0") as (process, lines):
        assert lines[0] == f"'{place}' is not there yet: the page waits for it"
        with pytest.raises(urllib.error.HTTPError) as waiting:
            urllib.request.urlopen(lines[1])
        page = waiting.value.read().decode()
        assert waiting.value.code == 503 and "Waiting for the database" in page
        assert str(place) in page and "tilesmith tune" in page
        with Database.open(str(place)) as database:
            database.start_job("tilesmith tune a.onnx", seed=0, strategy="random")
        with urllib.request.urlopen(f"{lines[1]}?q=") as reply:
            assert "a.onnx" in reply.read().decode()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=300)
    assert (process.returncode, out, errors) == (0, "", "")


def test_where_others_can_reach_it_a_token_is_made_up_and_said_once(file: Path) -> None:
    with running("--database", str(file), "--port", "0", "--host", "0.0.0.0") as (process, lines):
        found = re.fullmatch(r"http://[^/]+:(\d+)/\?token=([\w-]{32})", lines[0])
        assert found is not None
        address = f"http://127.0.0.1:{found[1]}/"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(f"{address}?token={found[2]}") as reply:
            assert reply.status == 200 and "token" not in reply.url
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=300)
    assert found[2] not in out + errors


def test_what_cannot_be_served_is_one_sentence(file: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port}" in refused("--database", str(file), "--port", port)
    assert "no folder" in refused("--database", str(tmp_path / "none" / "x.db"))
    assert "is a folder" in refused("--database", str(tmp_path))
    assert "no address of this machine" in refused(
        "--database", str(file), "--host", "nowhere.invalid"
    )
    assert "token is too weak" in refused("--database", str(file), "--token", "short")
    assert "cannot be read" in refused("--database", str(file), "--token-file", str(tmp_path / "t"))
    wrong = refused("--database", "postgresql://me:hunter2@127.0.0.1:1/x")
    assert "hunter2" not in wrong


def test_without_its_libraries_it_says_what_to_install(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilesmith.jobs import extras

    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert "pip install 'tilesmith[dashboard]'" in refused("--database", str(file))
