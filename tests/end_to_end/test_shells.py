"""Words as shells complete them: lines typed at a terminal, Tab pressed, and what comes of it."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROMPT = "READY>"
TAB, LINE_START = "\t", "\x01"
PATIENCE_S = 300.0

STARTS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        [f"PS1='{PROMPT}'; bind 'set enable-bracketed-paste off'"],
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        [
            f"PS1='{PROMPT}'; unset zle_bracketed_paste; unsetopt prompt_sp prompt_cr; bindkey -e",
            "autoload -U compinit; compinit -u -D",
        ],
    ),
}

LINES = [
    (f"db to{TAB}", "<db><top>"),
    (f"run my{TAB}", "<run><my model.onnx>"),
    (f"run 'my{TAB}", "<run><my model.onnx>"),
    (f"tune --target=sys{TAB}", "<tune><--target=systolic>"),
    (f"run m.tsm --input image=im{TAB}", "<run><m.tsm><--input><image=image.npy>"),
    (f"tune --op matmul\\ m=3\\ dt{TAB}bf16", "<tune><--op><matmul m=3 dtype=bf16>"),
    (f"compile --precis{TAB}b{TAB}", "<compile><--precision><bf16>"),
    (f"db top --database none.db matm{TAB}", "<db><top><--database><none.db><matm>"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("my model.onnx", "image.npy", "notes.txt"):
        (tmp_path / name).touch()
    program = tmp_path / "bin" / "tilesmith"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tilesmith "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    known = {**os.environ, "HOME": str(folder), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    known.pop("ZDOTDIR", None)
    here = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (here, known.get("PYTHONPATH"))))
    return {**known, "PATH": f"{folder / 'bin'}:{known['PATH']}", "PYTHONPATH": paths}


def answers(shell: str, folder: Path) -> list[str]:
    """What a shell at a terminal makes of each line."""
    command, start = STARTS[shell]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(command[0], command, environment(folder))
    try:
        told = []
        for line in (*start, f'eval "$(tilesmith completion {shell})"'):
            os.write(terminal, f"{line}\n".encode())
        os.write(terminal, b'echo beg""un\n')
        until(terminal, "begun(.*)")
        for line, _ in LINES:
            os.write(terminal, f"tilesmith {line}{LINE_START}printf '{{%s}}' \n".encode())
            told.append(until(terminal, r"\{tilesmith\}(.*)" + PROMPT))
        return told
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)


def until(terminal: int, awaited: str) -> str:
    """What a terminal shows, as an expression's group."""
    shown, end = "", time.monotonic() + PATIENCE_S
    while (found := re.search(awaited, shown, re.DOTALL)) is None:
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    return found[1]


@pytest.mark.extra
@pytest.mark.parametrize("shell", sorted(STARTS))
def test_lines_are_completed_at_a_terminal(shell: str, folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    for (line, wanted), told in zip(LINES, answers(shell, folder), strict=True):
        assert wanted.replace("<", "{").replace(">", "}") in told, line


@pytest.mark.extra
def test_fish_is_told_whole_descriptions(folder: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    lines = ["db to", "run my", "tune --target=sys", "compile --precis", "tune --op 'matmul m=3 dt"]
    asks = "; ".join(f'complete -C "tilesmith {line}"' for line in lines)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"tilesmith completion fish | source; {asks}"],
        capture_output=True, text=True, cwd=folder, env=environment(folder), check=True,
    )  # fmt: skip
    values = [line.partition("\t") for line in done.stdout.splitlines()]
    assert [value for value, _, _ in values] == [
        "top", "my model.onnx", "--target=systolic", "--precision", "matmul m=3 dtype=",
    ]  # fmt: skip
    assert "bf16, or fp16" in values[3][2], "a comma ends no description"
