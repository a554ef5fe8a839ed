"""Chains: what an LPU program computes, before anything is placed in space and time.

A *chain* is a group of steps that `count` vectors go through in a pipeline, one every `interval`
cycles: rows are read from MEM, travel as streams through SXM, VXM and MXM, and what comes out is
written to MEM. Selection builds chains from the loop IR; the scheduler
(`families.lpu.codegen.scheduling`) gives every step a cycle, a slice and streams. Nothing of that
is in here.

Vectors and rows. A vector has `LANES` = 320 lanes. A `VectorTensor` is `rows` such vectors in MEM,
its element type one of `DTYPES`; an element of b bytes lies in b slices (byte planes), and a value
of it takes b streams. How a logical tensor is cut into rows is for whoever makes the chains: lanes
beyond the used ones hold zeros by agreement, not by law.

Slices. One slice gives one word and takes one word a cycle, of different banks. So what one chain
reads and writes lies on slices of its own (tensors are placed so), and partial sums are written to
another tensor than they are read from: two in turn, or a new one each time (memory is used again).

Order. Chains are given in program order. One that reads rows (as operand, weights, index or table)
sees what the last chain before it wrote there; chains with no rows in common may run in any
order or at once. Within a chain, vector i of a written row may not be read by the same chain.

Timing that a maker of chains has to know: operands of one step meet in one cycle, and streams do
not wait. Two paths from one *step* to another have to be equally long; reads are no such steps
(each use of a read is timed, and if need be performed, on its own). A read used by steps on two
sides of where the rows lie needs `copies` = 2.

Invariants: frozen; every reference is to an earlier step; `check` refuses all else in a sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LANES, SUPERLANE = 320, 16
"""Lanes of a vector, and of each of its 20 superlanes: the side of a transpose."""

DTYPES = {"float32": 4, "int32": 4, "float16": 2, "int8": 1, "uint8": 1, "bool": 1}
"""Element types in MEM and on streams, with their bytes: the streams a value takes."""

PRODUCTS = {"int8": "int32", "uint8": "int32", "float16": "float32"}
"""Element types that MXM multiplies, and those of their sums."""

MOST_OPERATIONS = 16
"""ALUs a lane: operations of one chain that VXM does at once."""

Role = Literal["input", "output", "constant", "temporary", "state"]


@dataclass(frozen=True)
class VectorTensor:
    """Rows of vectors in MEM.

    Attributes:
        name: unique in a program.
        rows: vectors.
        dtype: one of `DTYPES`.
        role: "constant" (weights: resident from the start), "input" (there at the start), "output",
            "temporary" (lives from the first chain that writes it to the last that reads it), or
            "state" (there at the start, changed in place, such as a cache).
        block: rows that are placed together: a block lies on slices of its own, so that blocks are
            read and written at once. A block of no more than a bank's words. 0: all rows.
        stripes: rows of a block lie on so many (groups of) slices in turn, so that as many rows
            side by side are read at once by several reads of one chain (the 16 of a transpose).
            Weights are striped by themselves, for MXM loads many rows a cycle.
        copies: homes of every row, 1, 2 or 4, so that a chain reads it so often at once.
        zeros: rows that nothing writes hold zeros from the start (padding of a "temporary").
        parts: rows are of so many chips in turn; turned chains count them from the chip (`fabric`).
    """

    name: str
    rows: int
    dtype: str
    role: Role = "temporary"
    block: int = 0
    copies: int = 1
    stripes: int = 1
    zeros: bool = False
    parts: int = 1

    @property
    def bytes_an_element(self) -> int:
        return DTYPES[self.dtype]


@dataclass(frozen=True, eq=False)
class Rows:
    """Which row of a tensor vector i of a chain is: `numbers[i]`, shape (count,), int64."""

    tensor: str
    numbers: Ints

    @classmethod
    def of(cls, tensor: str, first: int, *dims: tuple[int, int]) -> "Rows":
        """Rows of nested loops, outermost first: `first` + the sum of index x stride; `dims` are
        (count, stride in rows) pairs, and stride 0 repeats."""
        numbers = np.array(first, np.int64)
        for count, stride in dims:
            numbers = numbers[..., None] + np.arange(count, dtype=np.int64) * stride
        return cls(tensor, numbers.reshape(-1))

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class ChainValue:
    """What flows out of a step of a chain: output `output` of step `step`."""

    step: int
    output: int = 0


@dataclass(frozen=True)
class Read:
    """Rows of a tensor as a stream of vectors. One output, of the tensor's type.

    Attributes:
        frame: a tensor of one row and the same type: what a row number below zero reads (the border
            of an image). Empty: such a number reads zeros.
    """

    rows: Rows
    frame: str = ""


@dataclass(frozen=True)
class Gather:
    """Rows of a table, chosen by a stream of row numbers: vector i is
    `table[first + index[i]]`. One output, of the table's type.

    Attributes:
        table: a tensor whose rows `first` to `first + rows` lie in one block.
        index: an int32 value; the number stands in lane 0. A number outside 0..rows-1 is an error
            of the data, found when executing.
    """

    table: str
    index: ChainValue
    rows: int
    first: int = 0


@dataclass(frozen=True)
class Product:
    """MXM: moving vectors times installed weights, y[n] = sum over k of x[k] w[n][k] (+ add).

    Attributes:
        moving: of type "int8" or "float16".
        weights: row n of these (at most 320) holds column n of the matrix over lanes k: as a linear
            layer's [out, in]. The same type as `moving`, or bytes beside bytes. Result lanes
            beyond them are zero.
        first, k: lanes that count: from `first` to before `k`, at most 320; others of either
            operand are not looked at. A float16 vector takes a cycle for each `mxm.k_float16` = 160
            lanes that some of them stand in (`Chip.cycles_of_lanes`).
        add: a value of the result's type, added to each sum (ACC); the partial sums of earlier k.

    One output: "int32", or "float32" whose sum over k is rounded once, then `add` added, rounded.
    """

    moving: ChainValue
    weights: Rows
    k: int
    add: ChainValue | None = None
    first: int = 0


@dataclass(frozen=True)
class Operation:
    """One ALU of VXM.

    Attributes:
        function: one of `FUNCTIONS`.
        operands: numbers of what it takes: the inputs of the `Compute` first, then its operations
            in order; -1 is `immediate`.
        dtype: of the result. Arithmetic is done in "float32" or "int32" (operands are widened to it
            exactly: bytes to int32, float16 to float32); "convert" goes between them and to
            narrower types (round to nearest even, whole numbers saturate); comparisons give
            "bool"; "select" takes (condition, then, otherwise).
        immediate: a number.
        known: (tensor, row) of constants that holds the number, until a program is linked.
    """

    function: str
    operands: tuple[int, ...]
    dtype: str
    immediate: float | None = None
    known: tuple[str, int] | None = None


FUNCTIONS = {
    "copy": 1, "convert": 1, "negate": 1, "abs": 1, "relu": 1, "tanh": 1, "exp": 1, "rsqrt": 1,
    "add": 2, "subtract": 2, "multiply": 2, "maximum": 2, "minimum": 2, "greater": 2, "equal": 2,
    "and": 2, "or": 2, "not": 1, "select": 3,
}  # fmt: skip
"""What an ALU does, with its number of operands."""


@dataclass(frozen=True)
class Compute:
    """VXM: an expression of every lane. `outputs` are numbers as in `Operation.operands`."""

    inputs: tuple[ChainValue, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]


Movement = Literal["shift", "permute", "distribute", "rotate"]


@dataclass(frozen=True)
class Shuffle:
    """SXM: lanes of a vector moved: lane l of the output is lane `lanes[l]` of the input, or 0
    where that is below zero. One output, of the input's type.

    Attributes:
        kind: "shift": `lanes[l]` is l + n, or below zero where that leaves the vector; "rotate":
            the same within groups, l + n modulo a group's length (16 or all lanes); "permute": no
            lane twice; "distribute": within superlanes, all alike (a lane may be used twice).
        lanes: 320 numbers.
    """

    kind: Movement
    value: ChainValue
    lanes: tuple[int, ...]


@dataclass(frozen=True)
class Transpose:
    """SXM: 16 vectors in, 16 out: lane 16 s + i of output j is lane 16 s + j of input i (in each
    superlane s). Inputs are 16 values of one type of one byte, or one of two bytes (which takes
    both transposers of a hemisphere)."""

    inputs: tuple[ChainValue, ...]


@dataclass(frozen=True)
class Write:
    """Vectors into rows of a tensor of the value's type, no row twice."""

    value: ChainValue
    rows: Rows


@dataclass(frozen=True)
class Send:
    """Vectors out over a link: one byte plane of a vector every `Chip.link_cycles`."""

    value: ChainValue
    link: int


@dataclass(frozen=True)
class Receive:
    """Vectors in from a link: one output of type `dtype`.

    Where the other chip runs the same program, they come from what chain `sender` sends on its link
    `sent_on`, `flight` cycles later."""

    dtype: str
    link: int
    sender: str = ""
    sent_on: int = -1
    flight: int = 0


Step = Read | Gather | Product | Compute | Shuffle | Transpose | Write | Send | Receive


@dataclass(frozen=True, eq=False)
class Chain:
    """Steps that `count` vectors go through; see the module's docstring.

    Attributes:
        name: what a picture and an error call it.
        count: vectors.
        steps: in order; values refer backwards.
        not_before: the cycle its first vector may be read, received or computed at the earliest.
        turned: axes along which rows in parts are counted; given as on the first chip.
    """

    name: str
    count: int
    steps: tuple[Step, ...]
    not_before: int = 0
    turned: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Dataflow:
    """A program: tensors by name, and chains in program order."""

    name: str
    tensors: dict[str, VectorTensor]
    chains: tuple[Chain, ...]


class ChainBuilder:
    """A chain under construction; each method adds a step and gives what flows out of it."""

    def __init__(self, name: str, count: int, not_before: int = 0) -> None:
        self.name, self.count, self.not_before = name, count, not_before
        self.steps: list[Step] = []

    def add(self, step: Step) -> ChainValue:
        """Add any step; gives its first output."""
        self.steps.append(step)
        return ChainValue(len(self.steps) - 1)

    def read(self, rows: Rows, frame: str = "") -> ChainValue:
        return self.add(Read(rows, frame))

    def gather(self, table: str, index: ChainValue, rows: int, first: int = 0) -> ChainValue:
        return self.add(Gather(table, index, rows, first))

    def product(
        self,
        moving: ChainValue,
        weights: Rows,
        k: int,
        add: ChainValue | None = None,
        first: int = 0,
    ) -> ChainValue:
        return self.add(Product(moving, weights, k, add, first))

    def compute(self, inputs: Sequence[ChainValue], *operations: Operation) -> ChainValue:
        """An expression; its last operation flows out."""
        last = len(inputs) + len(operations) - 1
        return self.add(Compute(tuple(inputs), operations, (last,)))

    def shuffle(self, kind: Movement, value: ChainValue, lanes: Sequence[int]) -> ChainValue:
        return self.add(Shuffle(kind, value, tuple(lanes)))

    def transpose(self, inputs: Sequence[ChainValue]) -> tuple[ChainValue, ...]:
        first = self.add(Transpose(tuple(inputs)))
        return tuple(ChainValue(first.step, output) for output in range(SUPERLANE))

    def write(self, value: ChainValue, rows: Rows) -> None:
        self.add(Write(value, rows))

    def send(self, value: ChainValue, link: int) -> None:
        self.add(Send(value, link))

    def chain(self) -> Chain:
        return Chain(self.name, self.count, tuple(self.steps), self.not_before)


def inputs_of(step: Step) -> tuple[ChainValue, ...]:
    """Values a step takes, in the order of its operands."""
    match step:
        case Gather(index=index):
            return (index,)
        case Product(moving=moving, add=add):
            return (moving,) if add is None else (moving, add)
        case Compute(inputs=inputs) | Transpose(inputs=inputs):
            return inputs
        case Shuffle(value=value) | Write(value=value) | Send(value=value):
            return (value,)
        case Read() | Receive():
            return ()


def outputs_of(step: Step) -> int:
    """How many values flow out of a step."""
    match step:
        case Write() | Send():
            return 0
        case Transpose():
            return SUPERLANE
        case Compute(outputs=outputs):
            return len(outputs)
        case _:
            return 1


def types_of(chain: Chain, tensors: dict[str, VectorTensor]) -> dict[ChainValue, str]:
    """The element type of everything that flows in a chain."""
    types: dict[ChainValue, str] = {}
    for number, step in enumerate(chain.steps):
        match step:
            case Read(rows):
                types[ChainValue(number)] = tensors[rows.tensor].dtype
            case Gather(table=table):
                types[ChainValue(number)] = tensors[table].dtype
            case Product(moving=moving):
                types[ChainValue(number)] = PRODUCTS[types[moving]]
            case Shuffle(value=value):
                types[ChainValue(number)] = types[value]
            case Transpose(inputs=inputs):
                types |= {ChainValue(number, o): types[inputs[0]] for o in range(SUPERLANE)}
            case Compute(inputs, operations, outputs):
                known = [types[i] for i in inputs] + [o.dtype for o in operations]
                types |= {ChainValue(number, n): known[o] for n, o in enumerate(outputs)}
            case Receive(dtype=dtype):
                types[ChainValue(number)] = dtype
            case _:
                pass
    return types
