"""`NativeKernel`: one configuration of a workload, compiled, loaded and callable.

    kernel = compile_config(workload, target, config)
    prepared = kernel.prepare({"b": weights})            # packs constants once
    kernel.run([a, ..., c], prepared)

Arrays are in the configuration's physical layouts, contiguous, on cache lines. The object file is
kept on disk by content; the JIT memory is freed with the kernel.

For the cache on disk, and from one process to another, a kernel's code is bytes (`encoded`): one
line of JSON (buffers, workspaces, what is never read), then the objects.
"""

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host import object_cache
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_bytes, aligned_copy, aligned_empty
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.packing.boxes import CopiedBox
from tilesmith.codegen.packing.prologues import boxes_of
from tilesmith.codegen.programs.structures import lowered, verify_sizes
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.expressions.expression import const
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.program import Buffer, Program
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

ENTRY = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)


@dataclass(frozen=True)
class KernelCode:
    """A compiled kernel as plain data: what an artifact stores.

    Where sizes vary from run to run, the functions take one more argument behind the parameters,
    which points at their values: 64 bits each, in the order of `Program.sizes`.

    Attributes:
        parameters: buffers in argument order: inputs, prepared, output.
        object: relocatable object file with the function `run`.
        prologue: another with a function `run` that fills the prepared buffers; None without any,
            or where they are copies.
        shared_bytes, local_bytes: workspace that either needs.
        copies: what fills the prepared buffers where there is no prologue.
    """

    parameters: tuple[Buffer, ...]
    object: bytes
    prologue: bytes | None
    shared_bytes: int
    local_bytes: int
    copies: tuple[CopiedBox, ...] = ()

    def prepared(self, constants: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The prepared buffers by name, zeros but for what is copied into them."""
        buffers = {
            b.name: aligned_empty(concrete_shape(b), to_numpy(b.dtype))
            for b in self.parameters
            if b.role == "prepared"
        }
        for box in self.copies:
            target, source = box.names
            box.copy(buffers[target], np.ascontiguousarray(constants[source]))
        return buffers


def compile_program(program: Program, target: Target) -> KernelCode:
    """Generate code for a bound program, or take it from the cache on disk.

    Raises:
        VerificationError: the program breaks a rule of the loop IR (checked where code is made).
        CodegenError: no code came of it.
    """
    body = _code(program, target)
    first = program.compile_time()
    copies = boxes_of(first) if first is not None else ()
    prologue = _prologue(first, target) if first is not None and not copies else None
    return KernelCode(
        program.parameters,
        body.object,
        prologue.object if prologue else None,
        max(body.shared_bytes, prologue.shared_bytes if prologue else 0),
        max(body.local_bytes, prologue.local_bytes if prologue else 0),
        copies,
    )


@dataclass(frozen=True)
class _Code:
    """One function, compiled, and the workspace it needs."""

    object: bytes
    shared_bytes: int
    local_bytes: int


def _code(program: Program, target: Target) -> _Code:
    """The body of a program, compiled or from the cache on disk."""
    module = emit_module(program, target)
    key = toolchain.content_key(module.text, target)
    content = object_cache.load(key)
    if content is None:
        verify_sizes(program, target)
        content = toolchain.emit_object(module.text, target)
        object_cache.store(key, content)
    return _Code(content, module.shared_bytes, module.local_bytes)


@lru_cache(maxsize=64)
def _prologue(program: Program, target: Target) -> _Code:
    """The same of a prologue; kept, for many configurations pack their weights alike."""
    return _code(program, target)


def compile_config(workload: Workload, target: Target, config: Config) -> "NativeKernel":
    """Schedule, lower, generate and load one configuration.

    Raises:
        ConfigError: the configuration is not in the workload's space.
        CodegenError: no code came of it.
    """
    return NativeKernel(compile_program(lowered(workload, target, config), target))


class NativeKernel:
    """A loaded kernel. Not safe to run from two threads at once (it owns its workspace)."""

    def __init__(self, code: KernelCode) -> None:
        self.code = code
        toolchain.check_loadable(code.object)

    @cached_property
    def _loaded(self) -> Any:
        return _loaded(self.code.object, f"kernel{id(self)}")

    @property
    def address(self) -> int:
        return int(self._loaded[0]["run"])

    @cached_property
    def _run(self) -> Any:
        return ENTRY(self.address)

    @cached_property
    def inputs(self) -> tuple[Buffer, ...]:
        """Buffers of the inputs, in order."""
        return tuple(b for b in self.code.parameters if b.role == "input")

    @cached_property
    def output(self) -> Buffer:
        return self.code.parameters[-1]

    @cached_property
    def _prologue(self) -> Any:
        return _loaded(self.code.prologue, f"prologue{id(self)}")

    @cached_property
    def _workspace(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
        return (
            aligned_bytes(128),
            aligned_bytes(max(64, self.code.shared_bytes)),
            aligned_bytes(max(64, self.code.local_bytes)),
        )

    def allocate_output(self) -> NDArray[Any]:
        """A zeroed output array in its physical layout."""
        return aligned_empty(concrete_shape(self.output), to_numpy(self.output.dtype))

    def prepare(self, constants: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the compile-time stages on constant inputs: prepared buffers by name."""
        prepared = self.code.prepared(constants)
        if self.code.prologue is not None:
            given = {name: aligned_copy(array) for name, array in constants.items()}
            self._call(ENTRY(self._prologue[0]["run"]), {**given, **prepared})
        return prepared

    def pointers(self, arrays: Mapping[str, NDArray[Any]]) -> ctypes.Array[Any]:
        """Argument pointers in parameter order; parameters not given are null (raw weights)."""
        names = [buffer.name for buffer in self.code.parameters]
        addresses = [arrays[name].ctypes.data if name in arrays else 0 for name in names]
        return (ctypes.c_void_p * len(addresses))(*addresses)

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Run on one thread; `arrays` holds inputs, prepared buffers and the output by name."""
        self._call(self._run, arrays)

    def bind(self, arrays: Mapping[str, NDArray[Any]]) -> "BoundCall":
        """A call with everything resolved, for timing and repeated use."""
        return BoundCall(self, self._run, self.pointers(arrays), self._workspace, dict(arrays))

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Pack constants, run once, return the output (convenience for tests)."""
        arrays = {name: aligned_copy(array) for name, array in inputs.items()}
        output = self.allocate_output()
        self.run({**arrays, **self.prepare(arrays), self.output.name: output})
        return output

    def _call(self, function: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
        barrier, shared, local = (area.ctypes.data for area in self._workspace)
        function(self.pointers(arrays), 0, 1, barrier, shared, local)


class BoundCall:
    """A kernel with its arguments; calling it costs one foreign call."""

    def __init__(
        self,
        kernel: NativeKernel,
        function: Any,
        pointers: ctypes.Array[Any],
        workspace: Sequence[NDArray[np.uint8]],
        keep: Mapping[str, NDArray[Any]],
    ) -> None:
        barrier, shared, local = (area.ctypes.data for area in workspace)
        self._function = function
        self._arguments = (pointers, 0, 1, barrier, shared, local)
        self._keep = (kernel, pointers, workspace, keep)

    def __call__(self) -> None:
        self._function(*self._arguments)


def _loaded(code: bytes | None, name: str) -> Any:
    return toolchain.load(code or b"", host_target(), name, ("run",))


def concrete_shape(buffer: Buffer) -> tuple[int, ...]:
    """A bound buffer's shape as integers."""
    return tuple(extent.constant or 0 for extent in buffer.shape)


def encoded(code: KernelCode, unread: frozenset[str] = frozenset()) -> bytes:
    """Code of fixed sizes, and the operands that it never reads."""
    head = {
        "buffers": [
            [b.name, list(concrete_shape(b)), b.dtype, b.scope, b.role] for b in code.parameters
        ],
        "shared": code.shared_bytes,
        "local": code.local_bytes,
        "unread": sorted(unread),
        "bytes": len(code.object),
        "prologue": None if code.prologue is None else len(code.prologue),
        "copies": [(b.names, b.starts, b.dimensions) for b in code.copies],
    }
    return json.dumps(head).encode() + b"\n" + code.object + (code.prologue or b"")


def decoded(content: bytes) -> tuple[KernelCode, frozenset[str]]:
    """What `encoded` made; ValueError, KeyError or TypeError if it is something else."""
    line, _, binary = content.partition(b"\n")
    head = json.loads(line)
    body, prologue = binary[: head["bytes"]], binary[head["bytes"] :]
    if len(binary) != head["bytes"] + (head["prologue"] or 0):
        raise ValueError("a truncated cache entry")
    buffers = tuple(
        Buffer(name, tuple(const(e) for e in shape), dtype, scope, role)
        for name, shape, dtype, scope, role in head["buffers"]
    )
    first = None if head["prologue"] is None else prologue
    copies = tuple(
        CopiedBox((target, source), tuple(starts), tuple(map(tuple, dimensions)))
        for (target, source), starts, dimensions in head["copies"]
    )
    code = KernelCode(buffers, body, first, head["shared"], head["local"], copies=copies)
    return code, frozenset(head["unread"])
