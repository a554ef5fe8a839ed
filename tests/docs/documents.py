"""Reading the documents' code blocks, and running the commands they show."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """A fenced code block: its language, the file it is (or ""), its text; the file that the text
    is a part of (or "").
    """

    language: str
    file: str
    text: str
    part_of: str = ""


def blocks(document: str) -> list[Block]:
    """Fenced code blocks of a document (path from the repository's root), in order."""
    text = (ROOT / document).read_text()
    fence = r"^```(\w+)(?: file=(\S+))?(?: from=(\S+))?\n(.*?)^```$"
    found = re.findall(fence, text, re.DOTALL | re.MULTILINE)
    return [Block(language, file, text, part_of) for language, file, part_of, text in found]


def commands(block: Block) -> list[list[str]]:
    """The words of each `$ ...` line of a console block."""
    lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    return [shlex.split(line) for line in lines]


def run(words: list[str], folder: Path, code: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a `tilesmith` or `pytest` command in `folder` with the packages found in `code`."""
    assert words[0] in ("tilesmith", "pytest"), words
    environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
