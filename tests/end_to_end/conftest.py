"""A model that is tuned in a moment; compilations in this process are verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compiler.conftest import verified_passes
from tests.end_to_end.command import save_model

__all__ = ["model", "verified_passes"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "small.onnx")
