"""Kernels that break a rule."""

from __future__ import annotations

import pytest

from tilesmith.search_space.support.errors import VerificationError


def filled(kernel, shape, dtype="float32", **where):
    tile = kernel.sbuf(shape, dtype, **where)
    kernel.memset(tile, 0.0)
    return tile


def refused(kernel, message):
    with pytest.raises(VerificationError, match=message):
        kernel.finish()
