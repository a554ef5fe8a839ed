"""The walks of CONTRIBUTING: each file shown works when it is put where it belongs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, blocks, commands, run

BLOCKS = blocks("CONTRIBUTING.md")
COMMANDS = [c for block in BLOCKS if block.language == "console" for c in commands(block)]

FILES = (
    "pyproject.toml",
    "benchmarks/subjects/bound_kernels.py",
    "tests/conftest.py",
    "tests/compiler/model_builder.py",
    "tests/search_space/searched.py",
    "tests/tuner/conftest.py",
    "tests/tuner/problems.py",
    "tests/tuner/test_strategies.py",
)
"""What the tests that the walks run need, beside the packages and the folders of tests."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with the shown files added."""
    folder = tmp_path_factory.mktemp("checkout")
    links = [path for path in (ROOT / "tilesmith").iterdir() if path.is_symlink()]
    for package in ("tilesmith", *(link.name for link in links)):
        shutil.copytree(ROOT / package, folder / package, symlinks=True)
    for shared in FILES:
        (folder / shared).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / shared, folder / shared)
    for shared in ("conformance", "families/loom"):
        shutil.copytree(ROOT / "tests" / shared, folder / "tests" / shared)
    for block in BLOCKS:
        if block.file:
            path = folder / block.file
            assert not path.exists(), f"{block.file} would overwrite a file"
            path.write_text(block.text)
    return folder


def test_each_kind_of_addition_is_shown() -> None:
    rooms = [Path(block.file).parent.name for block in BLOCKS if block.file]
    assert rooms == ["operators", "cpu", "", "instruction_sets", "cost_models", "strategies"]
    assert len(COMMANDS) >= 6


def test_parts_shown_of_a_family_are_its_own() -> None:
    """Line for line, however they are indented, from every room."""
    parts = [block for block in BLOCKS if block.part_of]
    for part in parts:
        shown, file = (
            "".join(line.strip() + "\n" for line in text.splitlines())
            for text in (part.text, (ROOT / part.part_of).read_text())
        )
        assert shown in file, f"{part.part_of} has changed"
    folder = Path(parts[0].part_of).parent
    names = {Path(part.part_of).name for part in parts}
    files = {path.name for path in (ROOT / folder).iterdir() if path.is_file()}
    assert {"machine.py", "schedules.py", "simulator.py", "backend.py"} <= names <= files


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[1:4]))
def test_the_commands_shown_work(words: list[str], checkout: Path) -> None:
    done = run(words, checkout, checkout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
