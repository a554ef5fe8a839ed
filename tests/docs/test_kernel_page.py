"""The guide through the kernel is true: its code prints what it shows, and its files exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.documents import ROOT, blocks

PAGE = "docs/kernel.md"


def test_the_code_runs_in_order_and_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "kernel"}
    shown = blocks(PAGE)
    assert {block.language for block in shown} == {"python", "text"} and len(shown) > 20
    for code, output in zip(shown[::2], shown[1::2], strict=True):
        assert (code.language, output.language) == ("python", "text")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code.text, PAGE, "exec"), names)
        assert printed.getvalue().rstrip() == output.text.rstrip()


def test_every_file_it_names_exists_and_every_room_of_the_kernel_is_visited() -> None:
    page = (ROOT / PAGE).read_text()
    named = {name for name in re.findall(r"`([\w/]+/[\w/.]*)`", page) if "/" in name}
    assert len(named) > 40
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    listed = (ROOT / "docs/architecture.md").read_text().partition("```kernel\n")[2]
    rooms = {line.split("/ ")[0] for line in listed.partition("```")[0].splitlines()}
    assert rooms <= {str(Path(name).parent) for name in named}
