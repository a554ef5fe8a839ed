"""One fixed description of a CPU: no test may depend on the machine it runs on."""

from __future__ import annotations

import pytest

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.search_space.hardware.target import Target

FIXED = {
    "threads": 2,
    "l1.kib": 48,
    "l1.ways": 12,
    "l2.kib": 1024,
    "l2.ways": 16,
    "l3.kib": 32768,
    "l3.ways": 16,
}


def described(isa: str = "avx512") -> Target:
    """A CPU with the given vector instruction set and fixed caches."""
    target = cpu_target("described", isa, "x86_64-unknown-linux-gnu")
    return target.with_settings(FIXED)


@pytest.fixture(scope="session")
def cpu() -> Target:
    """An AVX-512 CPU with fixed caches."""
    return described()


@pytest.fixture(scope="session")
def narrow_cpu() -> Target:
    """The same with AVX2."""
    return described("avx2")
