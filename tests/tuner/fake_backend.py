"""A worker backend whose candidates misbehave on request, by the knob `m_tile`; run in real
processes.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.arena import BumpAllocator

CRASH, HANG, WRONG, GREEDY, REFUSED, SLOW, ABORT, CHATTY, NAN = range(1, 10)


class Product:
    def __init__(self, kind: int, inputs: Mapping[str, NDArray[Any]], arena: BumpAllocator) -> None:
        self._kind = kind
        self._a, self._b = arena.copy(inputs["a"]), arena.copy(inputs["b"])
        self.weights = [self._b]
        self._c = self._a @ self._b

    def call(self) -> None:
        if self._kind == CRASH:
            ctypes.string_at(0)
        elif self._kind == HANG:
            time.sleep(3600)
        elif self._kind == GREEDY:
            np.ones(4 << 30, np.uint8)  # more than the tests allow
        elif self._kind == ABORT:
            os.abort()
        elif self._kind == SLOW:
            time.sleep(0.02)
        elif self._kind == CHATTY:
            os.write(1, b"{not json\n")
        np.matmul(self._a, self._b, out=self._c)
        if self._kind == WRONG:
            self._c[3, 5] += 1.0
        elif self._kind == NAN:
            self._c[0, 0] = np.nan

    def output(self) -> NDArray[Any]:
        return self._c


class FakeBackend:
    def load(
        self,
        workload: Workload,
        config: Config,
        inputs: Mapping[str, NDArray[Any]],
        arena: BumpAllocator,
    ) -> Product:
        if config["m_tile"] == REFUSED:
            raise CodegenError("no code came of it")
        return Product(config.integer("m_tile"), inputs, arena)


def open_backend(target: Target, threads: int) -> FakeBackend:
    assert target.family == "cpu" and threads >= 1
    return FakeBackend()
