"""The backend of Trainium-like cores: kernels are instruction streams, a model is one program.

Nothing here runs on such a core; what is compiled executes functionally, instruction by
instruction, in numpy, and is timed by the simulator. The device's memory (HBM) is the executable's
arena and its constants: tensors keep bytes of their own in it, so that kernels whose tensors would
share them need not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.accelerator.core import Core
from codegen.accelerator.from_program import generate
from codegen.accelerator.instructions import InstructionStream, Space
from codegen.accelerator.prologue import prepare
from codegen.accelerator.staging import stage
from codegen.accelerator.storage import to_bytes
from codegen.structures import lowered
from compiler.backend import Backend, Compiled, backends
from compiler.device_program import Program, linked
from compiler.program import CodeObject, KernelStep, Recipe
from search_space.config import Config
from search_space.dtypes import size_of
from search_space.errors import ModelError
from search_space.target import Target
from search_space.workload import Workload
from simulator.accelerator.functional import execute_in


class TrainiumBackend(Backend):
    """See the module's docstring."""

    family = "trainium"
    reuses_memory = False
    falls_back = True

    def check(self, target: Target) -> None:
        """The target has to describe a core that is complete and possible."""
        Core.of(target)

    def check_size(self, target: Target, name: str, nbytes: int) -> None:
        """A model's weights and activations have to fit the core's HBM."""
        room = Core.of(target).hbm_bytes
        if nbytes > room:
            raise ModelError(
                f"model '{name}' needs {nbytes / 2**30:.2f} GiB for weights and activations; a "
                f"core of target '{target.name}' has {room / 2**30:.2f} GiB (hbm.gib_chip)"
            )

    def compile(self, workload: Workload, target: Target, config: Config) -> Compiled:
        program = lowered(workload, target, config)
        prepared = {buffer.name for buffer in program.parameters if buffer.role == "prepared"}
        staged = stage(generate(program, Core.of(target)), prepared | set(workload.constants))
        stream = staged.stream
        touched = _touched(stream)

        def pack(constants: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
            packed = prepare(program, constants)
            return {**packed, **staged.arrange({**constants, **packed})}

        return Compiled(
            CodeObject(to_bytes(stream)),
            tuple(tensor.name for tensor in stream.tensors),
            {t.name: t.elements * size_of(t.dtype) for t in stream.tensors},
            next(t.name for t in stream.tensors if t.role == "output"),
            frozenset(buffer.name for buffer in program.parameters) - touched,
            pack,
        )

    def link(
        self,
        recipe: Recipe,
        steps: Sequence[KernelStep],
        arena: NDArray[np.uint8],
        constants: NDArray[np.uint8],
    ) -> Callable[[], None]:
        regions = {"arena": arena, "constant": constants}
        found: list[Program] = []

        def run() -> None:
            if not found:  # linked when first run: simulation links the same program
                found.append(linked(recipe, steps))
            memory = [regions[r.region][r.offset : r.stop] for r in found[0].linked.ranges]
            execute_in(found[0].linked.stream, memory)

        return run


backends.register("trainium")(TrainiumBackend())


def _touched(stream: InstructionStream) -> frozenset[str]:
    """Names of the tensors that some instruction reads or writes."""
    table = stream.accesses
    numbers = np.unique(table["tensor"][table["space"] == Space.HBM])
    return frozenset(stream.tensors[int(number)].name for number in numbers)
