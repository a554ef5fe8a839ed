"""A code cache of its own for every test session, and the instruction sets this machine can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilesmith.codegen.host import host_target
from tilesmith.codegen.native import object_cache

RUNS = {"avx512": ("avx512", "avx2", "sse"), "avx2": ("avx2", "sse"), "sse": ("sse",)}


@pytest.fixture(autouse=True, scope="session")
def code_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled objects go to a temporary folder."""
    folder = tmp_path_factory.mktemp("objects")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(object_cache.ENVIRONMENT, str(folder))
        yield folder


@pytest.fixture
def needs() -> Callable[[str], None]:
    """`needs("avx2")` skips a test on a machine that cannot run that instruction set."""

    def check(isa: str) -> None:
        if isa not in RUNS.get(host_target().text("isa.name"), ()):
            pytest.skip(f"this machine cannot run {isa} code")

    return check
