"""Judges schedules in place: builds the whole model with them and times it on this machine.

Fulfils the tuner's `ModelEvaluator` protocol without knowing the tuner: candidates that look equal
alone are told apart inside the model, layout conversions and neighbours' caches included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import numpy as np

from compiler.assembly import assemble
from compiler.build import compile_kernels, prepared
from compiler.executable import Executable
from compiler.graph import Graph
from compiler.options import Chooser, Records
from compiler.settlement import settle
from search_space.config import Config
from search_space.dtypes import to_numpy
from search_space.target import Target
from search_space.workload import Workload


class GraphEvaluator:
    """Latency of one model under changing schedules.

    Args:
        graph: as imported.
        runs: timed runs after one that warms up; their median counts.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        database: Records | None,
        threads: int = 1,
        runs: int = 10,
    ) -> None:
        self._graph = prepared(graph)
        self._target = target
        self._database = database
        self._threads = threads
        self._runs = runs
        rng = np.random.default_rng(0)
        self._inputs = {
            info.name: rng.standard_normal(info.dims).astype(to_numpy(info.dtype))
            for info in graph.inputs
        }

    def latency(self, choices: Mapping[Workload, Config]) -> float:
        """Seconds of the model with these schedules; other workloads keep their best on record."""
        chooser = Chooser(self._target, self._database, self._threads, choices)
        settled = settle(self._graph, chooser)
        kernels = compile_kernels(settled, self._target)
        executable = Executable(assemble(settled, kernels, self._target, self._threads))
        executable.run(self._inputs)
        samples = []
        for _ in range(self._runs):
            start = time.perf_counter()
            executable.run(self._inputs)
            samples.append(time.perf_counter() - start)
        return statistics.median(samples)
