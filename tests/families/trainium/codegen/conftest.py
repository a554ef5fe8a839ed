"""Makes the hand-written kernels of `benchmarks/accelerator` importable, and shares the cores."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.search_space.hardware.target import load_target

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks" / "accelerator"))


@pytest.fixture(scope="session")
def trn1() -> Core:
    return Core.of(load_target("trn1"))


@pytest.fixture(scope="session")
def trn2() -> Core:
    return Core.of(load_target("trn2"))


@pytest.fixture
def kernel(trn1: Core) -> Kernel:
    """A kernel that a test breaks."""
    return Kernel("broken", trn1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
