"""Memory for tensors: aligned, and no more than the machine has."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.codegen.host import memory
from tilesmith.compiler.graph.access import uniform
from tilesmith.compiler.runtime.pool import arena_of
from tilesmith.search_space.support.errors import JobError


@pytest.mark.parametrize("size", [1, 100, 1 << 20, (1 << 21) + 1])
def test_buffers_are_zeroed_and_begin_on_a_cache_line(size: int) -> None:
    found = memory.aligned_bytes(size)
    assert found.size == size and not found.any()
    assert found.ctypes.data % memory.ALIGNMENT == 0


def test_what_the_machine_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system would promise it, and end the process when it is written."""
    assert memory.machine_bytes() > 1 << 28
    monkeypatch.setattr(memory, "machine_bytes", lambda: 2 << 20)
    assert memory.aligned_bytes(2 << 20).size == 2 << 20
    with pytest.raises(JobError, match=r"'giant' needs 0\.00\d+ GiB for its tensors"):
        arena_of("giant", (2 << 20) + 1)


def test_a_broadcast_constant_is_not_looked_at_element_by_element() -> None:
    exabyte = np.broadcast_to(np.float32(0.5), (1 << 30, 1 << 28))
    assert uniform({"x": exabyte}.get, "x") == 0.5
    rows = np.broadcast_to(np.array([1, 2], np.float32), (1 << 40, 2))
    assert uniform({"x": rows}.get, "x") is None
