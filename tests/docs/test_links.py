"""Documents point at what exists: relative links and the commands under benchmarks/."""

from __future__ import annotations

import re

import pytest

from tests.docs.documents import ROOT

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)

SOURCES = [
    path.relative_to(ROOT).as_posix()
    for folder in ROOT.iterdir()
    if folder.is_dir() and folder.name != "build" and folder.name[0] != "."
    for path in folder.rglob("*")
]


def test_there_are_documents() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/architecture.md"} <= set(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if "://" not in link:
            assert (path.parent / link).exists(), f"{document} links to {link}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_benchmark_commands_name_files_that_exist(document: str) -> None:
    for script in re.findall(r"benchmarks/\w+\.py", (ROOT / document).read_text()):
        assert (ROOT / script).exists(), f"{document} names {script}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_sources_are_named_by_where_they_are(document: str) -> None:
    """A file named with its folder is a file, or the end of one's path."""
    named = re.findall(r"`(\w+/[\w/]+\.(?:py|toml))`", (ROOT / document).read_text())
    for name in named if document != "CHANGELOG.md" else []:  # which tells of what was
        assert any(f"/{source}".endswith(f"/{name}") for source in SOURCES), name
