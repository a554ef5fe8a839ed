"""The architecture page is true: its picture is the checked contract, its files exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_picture_of_the_floors_is_the_contract_import_linter_checks() -> None:
    block = re.search(r"```layers\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    pictured = [re.split(r"\s{2,}", line)[0] for line in block[1].splitlines()]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = settings["contracts"]
    assert pictured == contract["layers"]


def test_the_house_that_is_shown_is_the_one_that_stands() -> None:
    block = re.search(r"```house\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    rooms = {line.split()[0] for line in block[1].splitlines()}
    floors = [path.name for path in (ROOT / "tilesmith").iterdir() if path.is_symlink()]
    packages = {
        f"{init.parent.relative_to(ROOT).as_posix()}/"
        for floor in (*floors, "tilesmith")
        for init in (ROOT / floor).rglob("__init__.py")
        if not any(parent.is_symlink() for parent in init.parents)
    }
    assert rooms == packages


def test_every_file_the_table_of_nouns_names_exists_and_defines_the_noun() -> None:
    rows = re.findall(r"^\| (`.*?) \|.*\| (.*?) \|$", PAGE, re.MULTILINE)
    assert len(rows) > 8
    for nouns, places in rows:
        paths = [_resolve(place, places) for place in re.findall(r"`(.*?)`", places)]
        text = "".join(path.read_text() for path in paths if path.is_file())
        for noun in re.findall(r"`(\w+)`", nouns):
            assert f"class {noun}" in text, f"{noun} is not defined in {places}"


def _resolve(place: str, places: str) -> Path:
    """A bare file name shares the folder of the first path of its cell."""
    first = re.findall(r"`(.*?)`", places)[0]
    path = ROOT / place if "/" in place else ROOT / Path(first).parent / place
    assert path.exists(), f"{place} does not exist"
    return path
