"""What variables of the environment say: what is right goes through, all else is one sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.command import invoke, refuse
from tilesmith.jobs.environment import VARIABLES, check_environment
from tilesmith.search_space.support.errors import InputError

ROOT = Path(__file__).parents[2]
NOT_OF_COMMANDS = {
    "TILESMITH_LIBRARY", "TILESMITH_WEIGHTS", "TILESMITH_COMPLETE", "TILESMITH_OK",
}  # fmt: skip
"""Words of the C library and of shells, which no command reads."""


def test_every_variable_that_is_read_is_in_the_table() -> None:
    folders = ("tilesmith", "compiler", "codegen", "tuner", "capabilities", "families", "simulator")
    text = " ".join(
        path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")
    )
    named = set(re.findall(r"TILESMITH_[A-Z_]*[A-Z]", text))
    assert named - NOT_OF_COMMANDS == set(VARIABLES)


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_nonsense_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But `doctor` and help are there for it."""
    monkeypatch.setenv(name, "/dev/null/nonsense \x07")
    assert f"{name} is " in (said := refuse("operators"))
    assert ("nonsense" not in said) == VARIABLES[name].secret
    assert invoke("operators", "--help").exit_code == 0


def test_what_is_right_or_empty_goes_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    right = {"CACHE_MIB": "0", "HOST": "auto", "TUNE": "never", "PACKS": f"{file}:{file}",
             "CORES": str(tmp_path / "new"), "RAY_START_SECONDS": "1.5", "LINKER": "sh -c",
             "CPU": str(file), "CALIBRATION": "off", "DATABASE": "", "MACHINE": "box"}  # fmt: skip
    for name, value in right.items():
        monkeypatch.setenv(f"TILESMITH_{name}", value)
    check_environment()
    monkeypatch.setenv("TILESMITH_CACHE_MIB", "-1")
    with pytest.raises(InputError, match="is '-1', not a whole number of MiB, 0 or more"):
        check_environment()


def test_a_reader_that_left_is_told_nothing() -> None:
    """As `| head` leaves a pipe."""
    near, far = os.pipe()
    os.close(near)
    command = [sys.executable, "-m", "tilesmith", "operators"]
    done = subprocess.run(command, stdout=far, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(far)
    assert done.stderr == ""
    assert done.returncode == 1
