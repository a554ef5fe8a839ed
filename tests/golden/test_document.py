"""The programs that docs/loop_ir.md shows are the golden ones."""

from __future__ import annotations

from tests.docs.documents import ROOT, blocks


def test_shown_programs_are_golden() -> None:
    shown = [block for block in blocks("docs/loop_ir.md") if block.language == "program"]
    assert len(shown) >= 2
    for block in shown:
        assert block.text == (ROOT / block.file).read_text(), block.file


def test_named_files_exist() -> None:
    text = (ROOT / "docs/loop_ir.md").read_text()
    for name in ("native_tails.txt", "systolic_tails.txt"):
        assert f"tests/golden/{name}" in text
        assert (ROOT / "tests/golden" / name).exists()
