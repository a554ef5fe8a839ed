"""What the documentation site is made of besides the pages of this folder.

The README is its home page; CONTRIBUTING, CHANGELOG and LICENSE are pages; files of `deploy/` are
there to be downloaded. All of them stay where they are in the repository, where their links are
right too; here the links are turned to where the pages are. Links to sources, which are not on the
site, become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[1]
_PAGES = {
    "index.md": "README.md",
    "CONTRIBUTING.md": "",
    "CHANGELOG.md": "",
    "LICENSE.md": "LICENSE",
}
"""Pages of the site, and the files at the root of the repository that they are."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside this folder."""
    for page, source in _PAGES.items():
        text = (_ROOT / (source or page)).read_text(encoding="utf-8")
        if source == "LICENSE":
            text = f"# License\n\n```text\n{text}\n```\n"
        files.append(File.generated(config, page, content=text))
    for path in sorted((_ROOT / "deploy").iterdir()):
        files.append(File.generated(config, f"deploy/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are right here, where the repository's root and `docs/` are one folder."""
    source = page.file.src_uri
    if source in _PAGES:
        markdown = re.sub(r"\]\(docs/decisions/?\)", "](decisions/README.md)", markdown)
        markdown = re.sub(r"\]\(docs/", "](", markdown)
        markdown = markdown.replace("](LICENSE)", "](LICENSE.md)")
    if "/" not in source:
        markdown = re.sub(r"\]\(\.\./(CONTRIBUTING\.md|CHANGELOG\.md|deploy/)", r"](\1", markdown)
        markdown = re.sub(r"\]\(decisions/?\)", "](decisions/README.md)", markdown)
    sources = r"(?:\.\./)*(?:families|capabilities|tests)/"
    return re.sub(rf"\[([^\]]*)\]\({sources}[^)]*\)", r"\1", markdown)
