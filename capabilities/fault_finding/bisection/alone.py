"""One kernel by itself, in one configuration, on given operands: native or functional, as in a
model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.codegen.programs.structures import lowered
from tilesmith.compiler.backends.backend import Compiled, backend_of
from tilesmith.compiler.graph.graph import TensorInfo
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.layouts import normal, pack, physical_shape, unpack
from tilesmith.compiler.recipe.memory import ALIGNMENT
from tilesmith.compiler.recipe.program import (
    NOWHERE,
    KernelStep,
    Place,
    Recipe,
    Report,
    TensorRef,
    view_of,
)
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Buffer, Program
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

Arrays = Mapping[str, NDArray[Any]]
_GUARD = 256
"""Bytes behind each tensor that nothing may write."""


class Alone:
    """A kernel and its operands.

    Args:
        operands: logical arrays by the template's names.
    """

    def __init__(self, workload: Workload, target: Target, threads: int, operands: Arrays) -> None:
        self.workload, self.target, self.threads = workload, target, threads
        self.template = template_of(workload.operator)
        self.operands = {
            operand.name: np.asarray(operands[operand.name])
            .reshape(operand.shape)
            .astype(to_numpy(operand.dtype))
            for operand in self.template.operands(workload)
        }
        self.result = self.template.output(workload)

    def run(self, config: Config) -> NDArray[Any]:
        """The result by the target's code; errors as `Backend.compile`."""
        backend = backend_of(self.target)
        compiled = backend.compile(self.workload, self.target, config)
        constants = {
            name: value for name, value in self.operands.items() if self.workload.is_constant(name)
        }
        arrays = {**self._physical(config), **compiled.prepare(constants)}
        places, nbytes = self._places(compiled)
        memory = RunMemory(aligned_bytes(max(64, nbytes)), aligned_bytes(64))
        memory.arena.fill(0xFF)  # no number: what a kernel leaves out is seen
        for name, place in places.items():
            if name in arrays and name != compiled.output:
                array = np.ascontiguousarray(arrays[name])
                view_of(memory.arena, place.offset, array.dtype, array.shape)[...] = array
        step = KernelStep(
            self.workload.operator, self.workload.key, config.key, "default", 0,
            tuple(places.get(name, NOWHERE) for name in compiled.parameters),
        )  # fmt: skip
        recipe = self._recipe(step, compiled, places[compiled.output], nbytes)
        backend.link_all(recipe, [step], memory)()
        return self._logical(config, memory.arena, places[compiled.output])

    def interpreted(self, config: Config, program: Program | None = None) -> NDArray[Any]:
        """The result by the interpreter of the loop IR, which is slow.

        Args:
            program: bound; the configuration's if None. One in which layouts are not yet set takes
                and gives logical arrays.
        """
        program = program or lowered(self.workload, self.target, config)
        physical = self._physical(config)
        given = {}
        for buffer in program.parameters:
            if buffer.role == "input":
                laid, plain = physical[buffer.name], self.operands[buffer.name]
                shape = _shape(buffer)
                given[buffer.name] = np.ascontiguousarray(
                    laid if laid.shape == shape or plain.shape != shape else plain
                ).reshape(shape)
        last = program.parameters[-1]
        tensor = interpret(program, given)[last.name]
        if _shape(last) == self.result.shape:
            return tensor
        return self._unpacked(config, tensor)

    # -- layouts ------------------------------------------------------------------------------
    def _pair(self, config: Config) -> tuple[str, str]:
        if self.workload.operator == "layout_transform":
            return normal(self.workload.text("src")), normal(self.workload.text("dst"))
        source, result = self.template.layouts(self.workload, config)
        return normal(source), normal(result)

    def _physical(self, config: Config) -> dict[str, NDArray[Any]]:
        """Operands as they lie in memory: the first as the kernel reads, whatever is like the
        result as it writes."""
        source, result = self._pair(config)
        physical = {}
        for number, operand in enumerate(self.template.operands(self.workload)):
            like_result = operand.role == "epilogue" and operand.shape == self.result.shape
            layout = source if number == 0 else result if like_result else ""
            physical[operand.name] = pack(layout, self.operands[operand.name])
        return physical

    def _logical(self, config: Config, arena: NDArray[np.uint8], place: Place) -> NDArray[Any]:
        shape = physical_shape(self._pair(config)[1], self.result.shape)
        view = view_of(arena, place.offset, to_numpy(self.result.dtype), shape)
        return np.array(self._unpacked(config, view))

    def _unpacked(self, config: Config, array: NDArray[Any]) -> NDArray[Any]:
        layout = self._pair(config)[1]
        shape = physical_shape(layout, self.result.shape)
        return unpack(layout, array.reshape(shape), self.result.shape)

    # -- memory -------------------------------------------------------------------------------
    def _places(self, compiled: Compiled) -> tuple[dict[str, Place], int]:
        places, total = {}, 0
        for name in compiled.parameters:
            if name in compiled.unread:
                continue
            places[name] = Place("arena", total)
            total += -(-(compiled.nbytes[name] + _GUARD) // ALIGNMENT) * ALIGNMENT
        return places, total

    def _recipe(self, step: KernelStep, compiled: Compiled, out: Place, nbytes: int) -> Recipe:
        info = TensorInfo("result", self.result.dtype, self.result.shape)
        report = Report(0, 0, 0, 1, 0, (), 0, nbytes, 0, 0.0)
        return Recipe(
            "kernel", self.target, self.threads, (), (TensorRef(info, out),), (step,),
            (compiled.code,), aligned_bytes(64), nbytes, (("", 17),), report,
        )  # fmt: skip


def _shape(buffer: Buffer) -> tuple[int, ...]:
    return tuple(extent.constant or 0 for extent in buffer.shape)
