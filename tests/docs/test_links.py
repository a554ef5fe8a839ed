"""Documents point at what exists: relative links and the commands under benchmarks/."""

from __future__ import annotations

import re

import pytest

from tests.docs.documents import ROOT

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)


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
