"""A model that is small enough to be tuned in a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.command import save_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "small.onnx")
