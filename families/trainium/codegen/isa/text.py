"""Instruction streams as text: one line an instruction, every address explicit.

    12  scalar  activation exp   sbuf[0:128, 4096 512 f32] <- sbuf[0:128, 0 512 f32] bias 0 scale -1
                                 when dma0 >= 3

An access reads memory[partitions, byte offset, count:stride ..., dtype] (stride 1 left out), a
tensor in HBM name[byte offset, ...]; `when` names the semaphores it waits for, with the count each
must show.
"""

from collections.abc import Iterator

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.core import queue_name

_SHORT = {
    "float32": "f32", "bfloat16": "bf16", "float16": "f16",
    "float8_e4m3": "f8e4m3", "float8_e5m2": "f8e5m2",
    "int32": "i32", "int64": "i64", "int8": "i8", "uint8": "u8", "bool": "bool",
}  # fmt: skip

_TWO_FUNCTIONS = (
    isa.Opcode.TENSOR_SCALAR,
    isa.Opcode.TENSOR_SCALAR_REDUCE,
    isa.Opcode.SCALAR_TENSOR_TENSOR,
    isa.Opcode.SCAN,
)
_AFFINE = (isa.Opcode.SELECT, isa.Opcode.IOTA)
_FILLED = (
    isa.Opcode.MEMSET,
    isa.Opcode.SELECT,
    isa.Opcode.SELECT_REDUCE,
    isa.Opcode.RANGE_SELECT,
    isa.Opcode.MATCH_REPLACE8,
)


def access_text(stream: isa.InstructionStream, access: isa.AccessPattern) -> str:
    """One operand."""
    dims = " ".join(f"{c}" if s == 1 else f"{c}:{s}" for c, s in access.dims[1:])
    kind = _SHORT[access.dtype]
    if access.space == isa.Space.HBM:
        count, stride = access.dims[0]
        return (
            f"{stream.tensors[access.tensor].name}[{access.offset}, {count}:{stride} {dims} {kind}]"
        )
    rows = f"{access.partition}:{access.partition + access.dims[0][0]}"
    memory = access.space.name.lower()
    if access.space == isa.Space.PSUM:
        bank, offset = divmod(access.offset, stream.core.bank_bytes)
        return f"psum[{rows}, bank {bank} {offset}, {dims} {kind}]"
    return f"{memory}[{rows}, {access.offset}, {dims} {kind}]"


def _collective_text(stream: isa.InstructionStream, instruction: isa.Instruction) -> str:
    """` all_reduce add over 0 1 2 3`"""
    kind = isa.COLLECTIVES[instruction.function]
    sums = kind in ("all_reduce", "reduce_scatter")
    operation = f" {isa.OPERATIONS[instruction.accumulate]}" if sums else ""
    return f" {kind}{operation} over {' '.join(map(str, stream.groups[instruction.function2]))}"


def _function_text(stream: isa.InstructionStream, instruction: isa.Instruction) -> str:
    op = instruction.op
    if op == isa.Opcode.COLLECTIVE:
        return _collective_text(stream, instruction)
    if op == isa.Opcode.ACTIVATION:
        return f" {isa.ACTIVATIONS[instruction.function]}"
    if op in (isa.Opcode.TENSOR_TENSOR, isa.Opcode.REDUCE):
        return f" {isa.OPERATIONS[instruction.function]}"
    if op in _TWO_FUNCTIONS:
        return f" {isa.OPERATIONS[instruction.function]} {isa.OPERATIONS[instruction.function2]}"
    if op == isa.Opcode.GATHER:
        return f" index * {instruction.function}, index < {instruction.function2}"
    if op in _AFFINE:
        i = instruction
        value = f" {i.function} + {i.function2}*p + {i.accumulate}*f"
        return f"{value} >= 0" if op == isa.Opcode.SELECT else value
    if op == isa.Opcode.RANGE_SELECT:
        return f" {instruction.function} + f"
    if op == isa.Opcode.SHUFFLE:
        return " " + ",".join(map(str, isa.shuffle_mask(instruction)))
    double = " double_row" if op == isa.Opcode.MATMUL and instruction.function else ""
    return f"{double} accumulate" if instruction.accumulate else double


def _scalars_text(instruction: isa.Instruction) -> str:
    """Immediates of operations that have them."""
    numbers = [f"{x:.9g}" for x in instruction.immediates]
    operands = instruction.operands
    match instruction.op:
        case isa.Opcode.ACTIVATION:
            bias = "" if "in1" in operands else f" bias {numbers[0]}"
            return bias + ("" if "in2" in operands else f" scale {numbers[1]}")
        case isa.Opcode.TENSOR_SCALAR:
            first = "" if "in1" in operands else f" {numbers[0]}"
            return first + ("" if "in2" in operands else f" {numbers[1]}")
        case isa.Opcode.TENSOR_SCALAR_REDUCE:
            return "" if "in1" in operands else f" {numbers[0]}"
        case isa.Opcode.SCALAR_TENSOR_TENSOR | isa.Opcode.SCAN:
            return "" if "in2" in operands else f" {numbers[0]}"
        case op if op in _FILLED:
            return f" {numbers[0]}"
        case _:
            return ""


def instruction_text(stream: isa.InstructionStream, row: int) -> str:
    """One instruction, without its waits."""
    instruction = stream[row]
    operands = instruction.operands
    outs = ", ".join(access_text(stream, operands[n]) for n in ("out", "out2") if n in operands)
    ins = ", ".join(
        access_text(stream, operands[name]) for name in ("in0", "in1", "in2") if name in operands
    )
    name = f"{instruction.op.name.lower()}{_function_text(stream, instruction)}"
    arrow = f" <- {ins}" if ins else ""
    outs = f" {outs}" if outs else ""
    return f"{queue_name(instruction.queue)} {name}{outs}{arrow}{_scalars_text(instruction)}"


def lines(stream: isa.InstructionStream) -> Iterator[str]:
    """The whole program: tensors first, then one line an instruction."""
    yield f"kernel {stream.name} on {stream.core.target.name}"
    for tensor in stream.tensors:
        shape = "x".join(map(str, tensor.shape))
        yield f"  {tensor.role} {tensor.name}: {_SHORT[tensor.dtype]}[{shape}]"
    counts = stream.semaphores
    for row in range(len(stream)):
        start, stop = stream.wait_start[row], stream.wait_start[row + 1]
        waits = ", ".join(
            f"{queue_name(int(stream.rows['queue'][w]))} >= {counts[w]}"
            for w in stream.waits[start:stop]
        )
        when = f" when {waits}" if waits else ""
        yield f"{row:6d}  {instruction_text(stream, row)}{when}"


def to_text(stream: isa.InstructionStream) -> str:
    """The program as text."""
    return "\n".join(lines(stream)) + "\n"
