"""Vectors that are not written anywhere yet: what flows, as a graph of where it comes from.

Selection describes what a statement computes before it decides in which chain: a value that a
reader takes up in the order it was made flows on in the reader's chain, any other is written first.
A node stands for `count` vectors, one behind the other; equal nodes are one object, so that a chain
computes them once.

    Stored    rows of a tensor in MEM              Total    products, one pass after another
    Number    one number in every lane             Moved    lanes moved by SXM
    Applied   an ALU's function of others          Picked   rows of a table, by a stream of numbers
    Spread    one number a row, on its way to all lanes
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.families.lpu.codegen.dataflow import PRODUCTS, Ints, Movement, Rows


@dataclass(frozen=True, eq=False)
class Stored:
    """Rows of a tensor; a number below zero is row 0 of `frame` (zeros where that is empty)."""

    tensor: str
    numbers: Ints
    dtype: str
    frame: str = ""


@dataclass(frozen=True, eq=False)
class Number:
    """The same number in every lane of every vector.

    Attributes:
        source: (tensor, row) of constants that will hold it, where only its place is known: `value`
            then stands for any number.
    """

    value: float
    dtype: str
    source: tuple[str, int] | None = None


@dataclass(frozen=True, eq=False)
class Applied:
    """One ALU: a function of `dataflow.FUNCTIONS`."""

    function: str
    operands: "tuple[Vectors, ...]"
    dtype: str


@dataclass(frozen=True, eq=False)
class MxmPass:
    """One pass of MXM: lanes `first` to `k` of moving vectors times rows of weights."""

    moving: "Vectors"
    weights: Rows
    k: int
    first: int = 0


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of passes, at most `series` of them in one chain, and of `sums` made before."""

    passes: tuple[MxmPass, ...]
    dtype: str
    series: int = 1
    sums: Stored | None = None


@dataclass(frozen=True, eq=False)
class Moved:
    """Lanes moved: lane l is lane `lanes[l]` of the value, or 0 where that is below zero."""

    kind: Movement
    value: "Vectors"
    lanes: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return self.value.dtype


@dataclass(frozen=True, eq=False)
class Picked:
    """Rows `first + index` of a table of `rows` rows, the number in lane 0 of the index."""

    table: str
    index: "Vectors"
    rows: int
    dtype: str
    first: int = 0


@dataclass(frozen=True, eq=False)
class SpreadNumber:
    """One number of float16 a row, on all its lanes, that is not there yet: row 16 g + i's stands
    on lane i of every superlane of row g of a tensor (`largest`)."""

    tensor: str
    count: int
    dtype: str = "float16"


Vectors = Stored | Number | Applied | Total | Moved | Picked | SpreadNumber


def operands_of(node: Vectors) -> tuple[Vectors, ...]:
    """The nodes that a node is made of."""
    match node:
        case Applied(operands=operands):
            return operands
        case Total(passes=passes, sums=sums):
            return (*(part.moving for part in passes), *((sums,) if sums is not None else ()))
        case Moved(value=value):
            return (value,)
        case Picked(index=index):
            return (index,)
        case Stored() | Number() | SpreadNumber():
            return ()


def nodes_of(node: Vectors) -> Iterator[Vectors]:
    """Every node of a graph once, operands first."""
    seen: set[int] = set()

    def visit(node: Vectors) -> Iterator[Vectors]:
        if id(node) in seen:
            return
        seen.add(id(node))
        for operand in operands_of(node):
            yield from visit(operand)
        yield node

    yield from visit(node)


def sum_type(moving: str) -> str:
    """Element type of a product's sums."""
    return PRODUCTS[moving]
