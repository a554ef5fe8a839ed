"""The index of decisions has each of them once, under the title that its page has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.docs.documents import ROOT

FOLDER = ROOT / "docs" / "decisions"
PAGES = sorted(path.name for path in FOLDER.glob("[0-9]*.md"))
ENTRY = re.compile(r"^- (\d{4}) \[(.+)\]\(([^)]+)\)(?: \(superseded(?: in part)? by (\d{4})\))?$")
SUPERSEDED = re.compile(r"^Superseded(?: in part)? by \[(\d{4})\]\((\1-[^)]+)\)")


def entries() -> Iterator[tuple[str, str, str, str | None]]:
    """Number, title, page, and the later decision's number, of each line of the index."""
    for line in (FOLDER / "README.md").read_text().splitlines():
        if line.startswith("- "):
            matched = ENTRY.match(line)
            assert matched, line
            yield matched[1], matched[2], matched[3], matched[4]


def test_each_decision_is_in_the_index_once() -> None:
    assert sorted(page for _, _, page, _ in entries()) == PAGES


@pytest.mark.parametrize("entry", list(entries()), ids=lambda entry: entry[0])
def test_an_entry_says_what_its_page_says(entry: tuple[str, str, str, str | None]) -> None:
    """Its number, its title, and which later decision took its place."""
    number, title, page, later = entry
    first, _, under, *_ = (FOLDER / page).read_text().splitlines()
    assert page.startswith(number)
    assert re.sub(r"^#\s*(\d+\s*[:.·]?\s*)?", "", first) == title
    superseded = SUPERSEDED.match(under)
    assert (superseded[1] if superseded else None) == later
    assert superseded is None or (FOLDER / superseded[2]).exists()
