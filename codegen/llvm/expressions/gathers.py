"""Loads at places that a vector of indices names: one look at the indices, one gather.

    lane t:  x[.., element(indices, t + c, n), ..]

Lane by lane that is a dozen instructions an element. Where the indices of neighbouring lanes are
neighbours they are loaded as a vector, made plain in vectors, and `llvm.masked.gather` loads the
elements: an instruction where the target has one, elsewhere what went lane by lane.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tilesmith.codegen.llvm.expressions.indexing import CompiledIndex, IndexEmitter
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import (
    BOOL,
    INDEX,
    INT32,
    Type,
    Value,
    lanes,
    lanes_of,
    literal,
    vector,
)
from tilesmith.codegen.llvm.text.types import element_type, suffix
from tilesmith.search_space.expressions.expression import Atom, Expr

LoadIndices = Callable[[str, Expr], Value]
"""(tensor, index at lane zero): the indices of all lanes, as 64 bits."""


@dataclass(frozen=True)
class Places:
    """An offset whose only parts that move with the lane are linear, or indices of neighbours.

    Attributes:
        fixed: what is the same for all lanes (at lane zero).
        step: how far the linear part moves from one lane to the next.
        picked: indices that are read, each with its factor.
    """

    fixed: CompiledIndex
    step: int
    picked: tuple[tuple[Atom, int], ...]


def places_of(offset: CompiledIndex, variable: str) -> Places | None:
    """An offset taken apart; None where it has another form."""
    picked: list[tuple[Atom, int]] = []
    fixed = []
    for monomial, factor in offset.rest:
        moving = [atom for atom in monomial if variable in Expr((((atom,), 1),)).variables()]
        if not moving:
            fixed.append((monomial, factor))
            continue
        (atom, *more) = monomial
        if more or atom.kind != "element" or atom.left is None:
            return None
        stride = atom.left.coefficient(variable)
        if stride is None or stride.constant != 1:
            return None
        picked.append((atom, factor))
    if not picked:
        return None
    step = sum(factor for name, factor in offset.linear if name == variable)
    linear = tuple(pair for pair in offset.linear if pair[0] != variable)
    return Places(CompiledIndex(offset.constant, linear, tuple(fixed)), step, tuple(picked))


def offsets(
    places: Places, width: int, index: IndexEmitter, load: LoadIndices, splat: Callable[..., Value]
) -> Value:
    """The offset of each lane, in elements."""
    builder, kind = index.builder, vector(INDEX, width)
    number, runtime = index.split(places.fixed)
    total: Value = lanes(kind, [number + places.step * lane for lane in range(width)])
    if runtime:
        total = builder.add(splat(index.sum(runtime), width), total)
    for atom, factor in places.picked:
        left, right = atom.operands
        place = _plain(builder, load(atom.name, left), splat(index.value(right), width))
        if factor != 1:
            place = builder.mul(place, literal(kind, factor))
        total = builder.add(total, place)
    return total


def _plain(builder: Builder, position: Value, extent: Value) -> Value:
    """Indices from the end if negative, kept in range."""
    zero = literal(position.type, 0)
    negative = builder.icmp_signed("<", position, zero)
    position = builder.select(negative, builder.add(position, extent), position)
    last = builder.sub(extent, literal(position.type, 1))
    for sign, limit in (("<", zero), (">", last)):
        position = builder.select(builder.icmp_signed(sign, position, limit), limit, position)
    return position


def gather(builder: Builder, base: Value, dtype: str, places: Value, mask: Value | None) -> Value:
    """The elements at offsets from `base`; zero where `mask` is not set."""
    scalar, width = element_type(dtype), lanes_of(places)
    addresses = builder.gep(base, places, scalar, inbounds=True)
    pointers = Type(f"<{width} x ptr>")
    addresses = Value(pointers, addresses.text)
    bits = literal(vector(BOOL, width), -1) if mask is None else mask
    kind = vector(scalar, width)
    arguments = [addresses, INT32(scalar.width // 8), bits, literal(kind, 0)]
    name = f"llvm.masked.gather.v{width}{suffix(scalar)}.v{width}p0"
    kinds = [argument.type for argument in arguments]
    return builder.call(builder.module.declare(name, kind, kinds), arguments)
