"""The network every test of whole models starts from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def light_resnet50() -> Path:
    """ONNX's own ResNet-50 with constant fills as weights."""
    folder = files("onnx") / "backend" / "test" / "data" / "light"
    return Path(str(folder / "light_resnet50.onnx"))
