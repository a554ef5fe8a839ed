"""The hardware worker's backend: our own code generator.

Inputs travel from logical to the configuration's physical layouts here, weights are packed once,
and all buffers lie in the arena.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.native.kernel import (
    KernelCode,
    NativeKernel,
    compile_program,
    concrete_shape,
    decoded,
    encoded,
)
from tilesmith.codegen.native.programs.driver import KernelCall, NativeProgram
from tilesmith.codegen.programs.structures import lowered
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.arena import BumpAllocator

_AHEAD = 64
"""Configurations whose code is kept until they are loaded."""


class NativeBackend:
    """Compiles for this machine."""

    def __init__(self, target: Target, threads: int) -> None:
        self._target = target
        self._threads = threads
        self._built: dict[tuple[Workload, Config], KernelCode] = {}

    def build(self, workload: Workload, config: Config) -> bytes:
        """Code of a configuration, for `take`, perhaps in another process.

        Raises:
            ConfigError, CodegenError, VerificationError: there is none.
        """
        return encoded(compile_program(lowered(workload, self._target, config), self._target))

    def take(self, workload: Workload, config: Config, code: bytes) -> None:
        """Code that `load` need not make."""
        while len(self._built) >= _AHEAD:
            del self._built[next(iter(self._built))]
        self._built[workload, config] = decoded(code)[0]

    def load(
        self,
        workload: Workload,
        config: Config,
        inputs: Mapping[str, NDArray[Any]],
        arena: BumpAllocator,
    ) -> "LoadedKernel":
        """Compile a configuration and bind it to inputs (logical layouts)."""
        if (workload, config) not in self._built:
            self.take(workload, config, self.build(workload, config))
        kernel = NativeKernel(self._built.pop((workload, config)))
        return LoadedKernel(kernel, workload, config, inputs, arena, self._threads)


class LoadedKernel:
    """A native kernel with its buffers; fulfils `tuner.timing.Loaded`."""

    def __init__(
        self,
        kernel: NativeKernel,
        workload: Workload,
        config: Config,
        inputs: Mapping[str, NDArray[Any]],
        arena: BumpAllocator,
        threads: int,
    ) -> None:
        self._workload = workload
        template = template_of(workload.operator)
        self._layouts = template.layouts(workload, config)
        constants = {n: inputs[n] for n in workload.constants if n in inputs}
        prepared = {n: arena.copy(array) for n, array in kernel.prepare(constants).items()}
        given = {
            buffer.name: arena.copy(self._physical(buffer.name, inputs[buffer.name]))
            for buffer in kernel.inputs
        }
        self._output = arena.empty(concrete_shape(kernel.output), to_numpy(kernel.output.dtype))
        self._output[...] = 0
        arrays = {**given, **prepared, kernel.output.name: self._output}
        self._call = kernel.bind(arrays) if threads == 1 else _team_call(kernel, arrays, threads)
        self._kernel = kernel
        raw = [given[name] for name in workload.constants if name in given]
        self.weights: Sequence[NDArray[Any]] = [*prepared.values(), *raw]

    def call(self) -> None:
        self._call()

    def output(self) -> NDArray[Any]:
        """The output in its logical layout."""
        logical = template_of(self._workload.operator).output(self._workload).shape
        if not self._layouts[1]:
            return self._output.reshape(logical)
        layout = Layout.parse(self._layouts[1])  # a kernel may see merged axes of it
        return layout.unpack(self._output.reshape(layout.concrete_shape(logical)), logical)

    def _physical(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """An operand as the kernel reads it: data operands follow the configuration's layouts."""
        template = template_of(self._workload.operator)
        layout = ""
        if name == template.inputs(self._workload)[0].name:
            layout = self._layouts[0]
        elif array.shape == template.output(self._workload).shape and name not in _own(
            template.inputs(self._workload)
        ):
            layout = self._layouts[1]
        return Layout.parse(layout).pack(array) if layout else np.ascontiguousarray(array)


def _team_call(
    kernel: NativeKernel, arrays: Mapping[str, NDArray[Any]], threads: int
) -> Callable[[], None]:
    """A call on several threads. Waking them is in the time of every candidate alike."""
    call = KernelCall(kernel.address, tuple(int(p or 0) for p in kernel.pointers(arrays)))
    shared, local = kernel.code.shared_bytes, kernel.code.local_bytes
    return NativeProgram([call], threads, shared, local, keep=(kernel, dict(arrays))).run


def _own(inputs: Sequence[Any]) -> set[str]:
    return {operand.name for operand in inputs}


def open_backend(target: Target, threads: int) -> NativeBackend:
    """What the worker calls."""
    return NativeBackend(target, threads)
