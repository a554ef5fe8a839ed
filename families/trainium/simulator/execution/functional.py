"""Functional execution: what an instruction stream computes, instruction by instruction, in numpy.

It runs the very stream that the timeline times. Memories are raw bytes, so that a wrong address
reads what really lies there. A stream that reads what nothing wrote is refused, verified or not;
memories start as NaNs nevertheless. Arithmetic is fp32 in the engines, PSUM accumulates in fp32,
and results are rounded to the dtype of what they are written to (bf16, fp16, fp8 through
ml_dtypes).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.footprints import extents
from tilesmith.families.trainium.codegen.isa.instructions import (
    ACTIVATIONS,
    OPERATIONS,
    AccessPattern,
    HbmTensor,
    Instruction,
    InstructionStream,
    Opcode,
    Space,
    shuffle_mask,
)
from tilesmith.families.trainium.codegen.isa.verification import ByteSpan, verify_dataflow
from tilesmith.families.trainium.codegen.isa.verification.report import told_of
from tilesmith.families.trainium.simulator.execution import arithmetic
from tilesmith.families.trainium.simulator.execution.arithmetic import BINARY, FUNCTIONS, REDUCERS
from tilesmith.search_space.expressions.dtypes import size_of, to_numpy
from tilesmith.search_space.support.errors import InputError

Array = NDArray[Any]


class FunctionalCore:
    """The memories of one core, and one method for each instruction."""

    def __init__(self, stream: InstructionStream, hbm: Sequence[Array]) -> None:
        self.stream = stream
        self.hbm = hbm
        self.chip = {space: _memory(stream, space) for space in (Space.SBUF, Space.PSUM)}

    def view(self, access: AccessPattern) -> Array:
        """A numpy view of an operand, shape (partitions, free...)."""
        size = size_of(access.dtype)
        free = [(count, stride * size) for count, stride in access.dims[1:]]
        rows = access.dims[0][0]
        if access.space == Space.HBM:
            memory, first, pitch = self.hbm[access.tensor], access.offset, access.dims[0][1] * size
        else:
            memory = self.chip[access.space]
            pitch = memory.shape[1]
            first = access.partition * pitch + access.offset
        return np.ndarray(
            (rows, *(count for count, _ in free)),
            to_numpy(access.dtype),
            buffer=memory,
            offset=first,
            strides=(pitch, *(stride for _, stride in free)),
        )

    def read(self, access: AccessPattern) -> Array:
        """An operand in fp32, shape (partitions, elements)."""
        view = self.view(access)
        return view.astype(np.float32).reshape(len(view), -1)

    def write(self, access: AccessPattern, value: Array) -> None:
        view = self.view(access)
        view[...] = value.reshape(view.shape).astype(view.dtype)

    # -- instructions -------------------------------------------------------------------------
    def load(self, i: Instruction) -> None:
        source, out = self.view(i.operands["in0"]), self.view(i.operands["out"])
        out[...] = source.reshape(out.shape).astype(out.dtype)

    store = load

    def gather(self, i: Instruction) -> None:
        table, out = i.operands["in0"], self.view(i.operands["out"])
        size = size_of(table.dtype)
        source = np.ndarray(
            (i.function2, *(count for count, _ in table.dims[1:])),
            to_numpy(table.dtype),
            buffer=self.hbm[table.tensor],
            offset=table.offset,
            strides=(i.function * size, *(step * size for _, step in table.dims[1:])),
        )
        index = self.indices(i, i.function2)[:, 0]
        out[...] = source[index].reshape(out.shape)

    def indices(self, i: Instruction, extent: int) -> Array:
        """The indices of an instruction that picks from `extent`."""
        index = self.read(i.operands["in1"])
        wrong = np.argwhere(~((index > -1) & (index < extent)))
        if len(wrong):
            row, place = wrong[0].tolist()
            raise InputError(
                f"{told_of(self.stream, i.index)}: index {index[row, place]:g} of partition "
                f"{row} is none of 0 to {extent - 1}"
            )
        return index.astype(np.int64)

    def matmul(self, i: Instruction) -> None:
        stationary, moving = self.read(i.operands["in0"]), self.read(i.operands["in1"])
        if i.function:  # two values in each row
            stationary, moving = (
                a.reshape(2 * len(a), a.shape[1] // 2) for a in (stationary, moving)
            )
        product = stationary.T @ moving
        out = self.view(i.operands["out"])
        if i.accumulate:
            product = product + out.astype(np.float32).reshape(product.shape)
        out[...] = product.reshape(out.shape).astype(out.dtype)

    def transpose(self, i: Instruction) -> None:
        self.write(i.operands["out"], np.ascontiguousarray(self.read(i.operands["in0"]).T))

    def scalar(self, i: Instruction, operand: str, immediate: int) -> Array:
        """A scalar operand: a [P, 1] tile, or a number."""
        if operand in i.operands:
            return self.read(i.operands[operand])
        return np.full((1, 1), i.immediates[immediate], dtype=np.float32)

    def activation(self, i: Instruction) -> None:
        value = self.read(i.operands["in0"]) * self.scalar(i, "in2", 1) + self.scalar(i, "in1", 0)
        result = FUNCTIONS[ACTIVATIONS[i.function]](value)
        self.write(i.operands["out"], result)
        if "out2" in i.operands:
            self.write(i.operands["out2"], result.sum(axis=1, dtype=np.float32))

    def tensor_tensor(self, i: Instruction) -> None:
        operate = BINARY[OPERATIONS[i.function]]
        self.write(
            i.operands["out"], operate(self.read(i.operands["in0"]), self.read(i.operands["in1"]))
        )

    def tensor_scalar(self, i: Instruction) -> None:
        first, second = (BINARY[OPERATIONS[f]] for f in (i.function, i.function2))
        value = first(self.read(i.operands["in0"]), self.scalar(i, "in1", 0))
        self.write(i.operands["out"], second(value, self.scalar(i, "in2", 1)))

    def scalar_tensor_tensor(self, i: Instruction) -> None:
        first, second = (BINARY[OPERATIONS[f]] for f in (i.function, i.function2))
        value = first(self.read(i.operands["in0"]), self.scalar(i, "in2", 0))
        self.write(i.operands["out"], second(value, self.read(i.operands["in1"])))

    def reduce(self, i: Instruction) -> None:
        value = self.read(i.operands["in0"])
        kept = int(np.prod(i.operands["out"].shape[1:]))
        groups = value.reshape(len(value), kept, -1)
        self.write(i.operands["out"], REDUCERS[OPERATIONS[i.function]](groups, axis=2))

    def scan(self, i: Instruction) -> None:
        first, second = (BINARY[OPERATIONS[f]] for f in (i.function, i.function2))
        a, b = self.read(i.operands["in0"]), self.read(i.operands["in1"])
        state = np.broadcast_to(self.scalar(i, "in2", 0), (len(a), 1))[:, 0]
        result = np.empty_like(a)
        for step in range(a.shape[1]):
            state = second(first(a[:, step], state), b[:, step])
            result[:, step] = state
        self.write(i.operands["out"], result)

    def reciprocal(self, i: Instruction) -> None:
        self.write(i.operands["out"], 1 / self.read(i.operands["in0"]))

    def copy(self, i: Instruction) -> None:
        if i.operands["out"].dtype == i.operands["in0"].dtype:
            self.load(i)  # bit by bit: whole numbers are not rounded to fp32
        else:
            self.write(i.operands["out"], self.read(i.operands["in0"]))

    def memset(self, i: Instruction) -> None:
        self.view(i.operands["out"])[...] = i.immediates[0]

    def select(self, i: Instruction) -> None:
        value = self.read(i.operands["in0"])
        keep = arithmetic.affine(value.shape, i.function, i.function2, i.accumulate) >= 0
        self.write(i.operands["out"], np.where(keep, value, np.float32(i.immediates[0])))

    def iota(self, i: Instruction) -> None:
        view = self.view(i.operands["out"])
        shape = (len(view), view[0].size)
        self.write(
            i.operands["out"], arithmetic.affine(shape, i.function, i.function2, i.accumulate)
        )

    def chosen(self, i: Instruction, keep: Array, value: Array) -> None:
        """Write `value` where `keep`, else the immediate; the row maxima too, if asked for."""
        result = np.where(keep, value, np.float32(i.immediates[0]))
        self.write(i.operands["out"], result)
        if "out2" in i.operands:
            self.write(i.operands["out2"], result.max(axis=1))

    def select_reduce(self, i: Instruction) -> None:
        self.chosen(i, self.read(i.operands["in1"]) != 0, self.read(i.operands["in0"]))

    def range_select(self, i: Instruction) -> None:
        value, low, high = (self.read(i.operands[name]) for name in ("in0", "in1", "in2"))
        self.chosen(i, arithmetic.in_range(value.shape, low, high, i.function), value)

    def copy_predicated(self, i: Instruction) -> None:
        value, predicate, kept = (self.read(i.operands[name]) for name in ("in0", "in1", "in2"))
        self.write(i.operands["out"], np.where(predicate != 0, value, kept))

    def tensor_scalar_reduce(self, i: Instruction) -> None:
        operate = BINARY[OPERATIONS[i.function]]
        result = operate(self.read(i.operands["in0"]), self.scalar(i, "in1", 0))
        self.write(i.operands["out"], result)
        self.write(i.operands["out2"], REDUCERS[OPERATIONS[i.function2]](result, axis=1))

    def bn_stats(self, i: Instruction) -> None:
        self.write(i.operands["out"], arithmetic.bn_stats(self.read(i.operands["in0"])))

    def bn_aggr(self, i: Instruction) -> None:
        self.write(i.operands["out"], arithmetic.bn_aggr(self.read(i.operands["in0"])))

    def max8(self, i: Instruction) -> None:
        self.write(i.operands["out"], arithmetic.max8(self.read(i.operands["in0"])))

    def find_index8(self, i: Instruction) -> None:
        a, values = self.read(i.operands["in0"]), self.read(i.operands["in1"])
        self.write(i.operands["out"], arithmetic.find_index8(a, values))

    def match_replace8(self, i: Instruction) -> None:
        a, values = self.read(i.operands["in0"]), self.read(i.operands["in1"])
        self.write(i.operands["out"], arithmetic.match_replace8(a, values, i.immediates[0]))

    def local_gather(self, i: Instruction) -> None:
        a = self.read(i.operands["in0"])
        index, count = self.indices(i, a.shape[1]), self.view(i.operands["out"])[0].size
        self.write(i.operands["out"], arithmetic.local_gather(a, index, count))

    def shuffle(self, i: Instruction) -> None:
        self.write(
            i.operands["out"], arithmetic.shuffle(self.read(i.operands["in0"]), shuffle_mask(i))
        )


def _memory(stream: InstructionStream, space: Space) -> Array:
    """A memory on chip as it starts, as far as the stream reaches into it."""
    table = stream.accesses
    mine = table["space"] == space
    rows = (table["partition"] + table["count"][:, 0])[mine].max(initial=1)
    return np.full((rows, extents(stream)[1][mine].max(initial=1)), 0xFF, dtype=np.uint8)


def execute(stream: InstructionStream, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Run a stream.

    Args:
        inputs: each input tensor by name, in its shape; converted to its dtype.

    Returns:
        The output tensors by name, in their dtypes.

    Raises:
        InputError: an input is missing or of another shape.
        VerificationError: the stream reads, or sums into, what nothing wrote.
    """
    verify_dataflow(stream, wanted=())
    hbm = placed(stream, inputs)
    _alone(stream, hbm)
    return outputs(stream, hbm)


def execute_in(stream: InstructionStream, hbm: Sequence[Array]) -> None:
    """Run a stream on memory that is there already.

    Args:
        hbm: the bytes of each tensor of the stream, in its order; changed in place.

    Raises:
        VerificationError: the stream reads, or sums into, memory on chip that nothing wrote.
    """
    verify_dataflow(stream, [ByteSpan(n, 0, tensor.nbytes) for n, tensor in enumerate(hbm)], ())
    _alone(stream, hbm)


def _alone(stream: InstructionStream, hbm: Sequence[Array]) -> None:
    for instruction in run(stream, hbm):
        raise InputError(
            f"kernel '{stream.name}' has collectives (instruction {instruction.index}), for which "
            "streams of all their cores are run together"
        )


def run(stream: InstructionStream, hbm: Sequence[Array]) -> Iterator[Instruction]:
    """Run a stream; it stops at each collective, which the caller takes part in for it."""
    machine = FunctionalCore(stream, hbm)
    methods = {op: getattr(machine, op.name.lower()) for op in Opcode if op != Opcode.COLLECTIVE}
    for instruction in stream:
        if instruction.op == Opcode.COLLECTIVE:
            yield instruction
        else:
            with np.errstate(all="ignore"):
                methods[instruction.op](instruction)


def view_in(hbm: Sequence[Array], access: AccessPattern) -> Array:
    """A numpy view of an operand in HBM, one axis a dimension of the access."""
    size = size_of(access.dtype)
    return np.ndarray(
        access.shape,
        to_numpy(access.dtype),
        buffer=hbm[access.tensor],
        offset=access.offset,
        strides=tuple(step * size for _, step in access.dims),
    )


def placed(stream: InstructionStream, inputs: Mapping[str, Array]) -> list[Array]:
    """The bytes of each tensor of a stream in HBM before it runs.

    Raises:
        InputError: an input is missing or of another shape.
    """
    return [_tensor(stream, tensor, inputs) for tensor in stream.tensors]


def outputs(stream: InstructionStream, hbm: Sequence[Array]) -> dict[str, Array]:
    """The output tensors by name, in their dtypes."""
    return {
        t.name: hbm[n].view(to_numpy(t.dtype)).reshape(t.shape)
        for n, t in enumerate(stream.tensors)
        if t.role == "output"
    }


def _tensor(stream: InstructionStream, tensor: HbmTensor, inputs: Mapping[str, Array]) -> Array:
    """The bytes of a tensor in HBM before the stream runs."""
    kind = to_numpy(tensor.dtype)
    if tensor.role != "input":
        return np.full(tensor.elements * kind.itemsize, 0xFF, dtype=np.uint8)
    if tensor.name not in inputs:
        raise InputError(f"kernel '{stream.name}' needs the input '{tensor.name}'")
    given = np.asarray(inputs[tensor.name])
    if given.shape != tensor.shape:
        raise InputError(
            f"input '{tensor.name}' of kernel '{stream.name}' has shape {given.shape}; "
            f"{tensor.shape} is expected"
        )
    if given.dtype.kind in "OSUcMm":
        raise InputError(
            f"input '{tensor.name}' of kernel '{stream.name}' is of {given.dtype}; "
            f"{tensor.dtype} is expected, or numbers that become it"
        )
    return np.ascontiguousarray(given, dtype=kind).reshape(-1).view(np.uint8)
