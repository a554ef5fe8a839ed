"""The tutorial runs: every command and every Python block, in order, in one folder and one process,
for a process of its own for each would take most of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.documents import Block, blocks, commands
from tests.end_to_end.command import invoke


def test_the_tutorial_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "tutorial"}
    steps = blocks("docs/tutorial.md")
    assert {block.language for block in steps} == {"console", "python"}
    assert len(steps) > 6
    for block in steps:
        if block.language == "python":
            exec(compile(block.text, "docs/tutorial.md", "exec"), names)
        else:
            _run_commands(block)
    assert {"tuning.db", "mlp.onnx", "mlp.tsm", "out.npz"} <= {
        path.name for path in tmp_path.iterdir()
    }


def _run_commands(block: Block) -> None:
    for program, *words in commands(block):
        assert program == "tilesmith"
        done = invoke(*words)
        assert done.exit_code == 0, f"{' '.join(words)}: {done.stderr}"
        assert done.stdout.strip(), f"{' '.join(words)} printed nothing"
