"""The network every test of whole models starts from; every compilation here is verified."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tilesmith.compiler.driver.verifier import Verifier
from tilesmith.compiler.rewriting.graph_pass import observed


@pytest.fixture(autouse=True)
def verified_passes() -> Iterator[None]:
    """The graph verifier runs after each pass."""
    with observed(Verifier()):
        yield


@pytest.fixture(scope="session")
def light_resnet50() -> Path:
    """ONNX's own ResNet-50 with constant fills as weights."""
    folder = files("onnx") / "backend" / "test" / "data" / "light"
    return Path(str(folder / "light_resnet50.onnx"))
