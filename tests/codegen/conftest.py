"""A code cache of its own for every test session, and the instruction sets this machine can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tilesmith.codegen.host import object_cache
from tilesmith.codegen.host.machine import cpu_target
from tilesmith.compiler.backends.backend import backends
from tilesmith.search_space.hardware.instruction_set import instruction_set
from tilesmith.search_space.support.errors import TargetError


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
        try:
            backends["cpu"].check(cpu_target(isa, isa, instruction_set(isa).triple))
        except TargetError as error:
            pytest.skip(str(error))

    return check
