"""Whole models on a loom: kernels run one after another, the host does what has no schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilesmith.codegen.programs.structures import lowered
from tilesmith.compiler.backends.backend import Backend, Compiled, backends
from tilesmith.compiler.passes.fallback import FallBack
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import CodeObject, HostStep, KernelStep, Recipe
from tilesmith.compiler.rewriting.pipeline import PassPipeline
from tilesmith.families.kit.simulation.host_costs import host_time
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.dispatch import SimulationResult, simulators

from .generation import generate
from .instructions import Stream
from .machine import FAMILY, pad_bytes
from .simulator import execute, result, write_trace


class LoomBackend(Backend):
    """See the module's docstring."""

    family = FAMILY
    falls_back = True

    def check(self, target: Target) -> None:
        """Looms are simulated: the target has to be complete."""
        simulators[FAMILY].check(target)

    def pipeline(self, target: Target, precision: str) -> PassPipeline:
        return replace(super().pipeline(target, precision), kernels=(FallBack(target),))

    def compile(self, workload: Workload, target: Target, config: Config) -> Compiled:
        program = lowered(workload, target, config)
        sizes = {
            buffer.name: 4 * int(np.prod([extent.constant for extent in buffer.shape], dtype=int))
            for buffer in program.parameters
        }
        code = CodeObject(generate(program, target).to_bytes())
        names = tuple(sizes)
        return Compiled(code, names, sizes, names[-1], frozenset(), lambda constants: {})

    def estimate_model(self, recipe: Recipe) -> float | None:
        return self.simulate(recipe).latency_us * 1e-6

    def simulate(
        self, recipe: Recipe, target: Target | None = None, trace: Path | None = None
    ) -> SimulationResult:
        """The sum of its kernels and host steps; a trace shows a model of one kernel."""
        target = target or recipe.target
        kernels: dict[tuple[str, str], tuple[Stream, int]] = {}
        hosts = [step for step in recipe.steps if isinstance(step, HostStep)]
        for step in recipe.steps:
            if isinstance(step, KernelStep):
                key = (step.workload, step.config)
                known = kernels.get(key, (Stream.from_bytes(recipe.codes[step.code].code), 0))
                kernels[key] = (known[0], known[1] + 1)
        if trace is not None:
            if len(kernels) != 1 or hosts:
                raise InputError(f"--trace shows a single operator, and '{recipe.name}' is more")
            write_trace(next(iter(kernels.values()))[0], target, trace)
        host_us = sum(host_time(step, target) for step in hosts) / 1e3
        return result(target, "timeline", kernels, host_us, {"host_us": host_us})

    def link(
        self,
        recipe: Recipe,
        steps: Sequence[KernelStep],
        memory: RunMemory,
    ) -> Callable[[], None]:
        arena = memory.arena
        regions = {"arena": arena, "constant": memory.constants, "none": arena[:0]}
        kernels = []
        for step in steps:
            tails = [regions[place.region][place.offset :] for place in step.arguments]
            parts = [tail[: tail.size // 4 * 4].view(np.float32) for tail in tails]
            kernels.append((Stream.from_bytes(recipe.codes[step.code].code), parts))

        def run() -> None:
            for stream, parts in kernels:
                execute(stream, parts, pad_bytes(recipe.target) // 4)

        return run


backends.register(FAMILY)(LoomBackend())
