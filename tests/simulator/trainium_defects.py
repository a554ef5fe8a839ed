"""Kernels for trn1 with one instruction changed, at places drawn by a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Opcode
from tilesmith.families.trainium.codegen.selection.from_program import generate
from tilesmith.families.trainium.simulator.execution.functional import placed, run
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.workloads.workload import Workload

TARGET = load_target("trn1")
KERNELS = (
    "softmax shape=130x70 axis=1",
    "matmul m=130 n=70 k=260 epilogue=bias,gelu",
    "layer_norm shape=130x200 axes=1",
    "elementwise shape=64x200 expression=multiply(x0,sigmoid(add(x1,0.5)))",
    "conv2d n=1 c=16 h=9 w=9 oc=32 kh=3 kw=3 stride=1 pad=1 epilogue=bias,relu",
)
KINDS = ("function", "operation", "order", "number", "address")


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel that is right, its operands, and what lies in HBM before it runs."""

    program: Program
    stream: InstructionStream
    arrays: dict[str, NDArray[Any]]
    hbm: list[NDArray[Any]]

    def result(self, stream: InstructionStream) -> list[bytes]:
        """What a stream leaves in its outputs."""
        hbm = [np.array(part) for part in self.hbm]
        for _ in run(stream, hbm):
            pass
        pairs = zip(stream.tensors, hbm, strict=True)
        return [part.tobytes() for tensor, part in pairs if tensor.role == "output"]


def kernel_of(text: str, rng: np.random.Generator) -> Kernel:
    """The default kernel of a workload, on drawn operands."""
    workload = Workload.parse(text)
    program = lowered(workload, TARGET, default_of(workload, TARGET))
    stream = generate(program, Core.of(TARGET))
    arrays = {}
    for buffer in program.parameters:
        shape = tuple(extent.constant or 0 for extent in buffer.shape)
        if buffer.role != "output":
            arrays[buffer.name] = (rng.standard_normal(shape) / 2).astype(to_numpy(buffer.dtype))
    return Kernel(program, stream, arrays, placed(stream, arrays))


def changed(
    kernel: Kernel, kind: str, rng: np.random.Generator
) -> Iterator[tuple[int, InstructionStream]]:
    """Streams with one instruction changed, and its number; none that gives the same."""
    stream, right = kernel.stream, kernel.result(kernel.stream)
    for number in rng.permutation(len(stream)).tolist():
        rows = {name: column.copy() for name, column in stream.rows.items()}
        numbers = stream.immediates.copy()
        if _change(stream, number, kind, (rows, numbers)):
            found = replace(stream, rows=rows, immediates=numbers)
            if kernel.result(found) != right:
                yield number, found


def _change(stream: InstructionStream, number: int, kind: str, columns: tuple[Any, Any]) -> bool:
    """Change a row in place; whether it can be."""
    (rows, numbers), row = columns, stream[number]
    if kind == "function" and row.op == Opcode.ACTIVATION:
        rows["function"][number] = 2 if row.function != 2 else 4  # relu, tanh
    elif kind == "operation" and row.op in (Opcode.TENSOR_TENSOR, Opcode.TENSOR_SCALAR):
        rows["function"][number] = 1 if row.function != 1 else 3  # add, multiply
    elif kind == "order" and row.op in (Opcode.TENSOR_TENSOR, Opcode.MATMUL):
        if row.operands["in0"].shape != row.operands["in1"].shape:
            return False
        one, two = rows["in0"][number], rows["in1"][number]
        rows["in0"][number], rows["in1"][number] = two, one
    elif (
        kind == "number"
        and row.op in (Opcode.ACTIVATION, Opcode.TENSOR_SCALAR)
        and "in1" not in row.operands
    ):
        numbers[number, 0] += 0.3
    elif kind == "address" and "in0" in row.operands:
        mine = row.operands["in0"]
        for other in range(len(stream.accesses["space"])):
            found = stream.access(other)
            alike = (found.shape, found.dtype, found.space) == (mine.shape, mine.dtype, mine.space)
            if alike and found != mine:
                rows["in0"][number] = other
                return True
        return False
    else:
        return False
    return True
