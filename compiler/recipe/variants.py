"""A compiled model whose sizes vary, as plain data: what an artifact of one stores.

A model is one or more *variants*, each for a region of the sizes; in a variant every extent, offset
and parameter is a number or a formula of the sizes (`Expr`). `binding.bound` puts numbers in and
gives an ordinary `Recipe`.

Invariants: frozen; no pointer and no object of a backend in it; regions do not overlap and together
are all that was declared; formulas are of the model's sizes only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.recipe.program import CodeObject, Place, Report
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.sizes import Size
from tilesmith.search_space.hardware.target import Target

Extents = tuple[Expr, ...]

SIZES = Place("held", 0)
"""Where kernels find the sizes' values: the first bytes held for a choice of sizes."""


@dataclass(frozen=True)
class VaryingInfo:
    """A tensor that a caller gives or gets: its shape is known as soon as the sizes are.

    `shape` is None where only running the model tells it.
    """

    name: str
    dtype: str
    shape: Extents | None


@dataclass(frozen=True)
class VariantTensor:
    """A tensor of a variant.

    Attributes:
        info: for host nodes and the caller; plain layout.
        nbytes: in memory, in whatever layout kernels use.
        stored: element type in memory where that is another than `info.dtype`.
        constant: where it lies among the constants; None for one that is computed.
        device: whether kernels, views or joins touch it, so that it lies in the arena.
    """

    info: VaryingInfo
    nbytes: Expr
    stored: str = ""
    constant: Place | None = None
    device: bool = False


@dataclass(frozen=True)
class Vector:
    """A small tensor of integers that are formulas of the sizes, such as a shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    entries: Extents


@dataclass(frozen=True)
class VaryingCheck:
    """As `IndexCheck`: indices, by tensor name, that have to be in range before a kernel runs."""

    node: str
    indices: str
    extents: Extents


@dataclass(frozen=True)
class KernelPart:
    """As `KernelStep`; an argument is a tensor's name or a place.

    Attributes:
        workload: with its sizes in it, `matmul m=[batch*sequence] n=768 k=768 const=b`.
        reads, writes: tensors, by name.
    """

    name: str
    workload: str
    config: str
    origin: str
    code: int
    arguments: tuple[str | Place, ...]
    reads: tuple[str, ...]
    writes: str
    checks: tuple[VaryingCheck, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostPart:
    """As `HostStep`.

    Attributes:
        proto: the node at one choice of sizes.
        formulas: attributes that vary, by name: numbers, texts with `[formulas]`, tuples of them.
    """

    name: str
    operator: str
    proto: bytes
    formulas: tuple[tuple[str, Any], ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class AliasPart:
    """A view or a join: `ties` are (tensor, tensor, bytes of the first behind the second)."""

    ties: tuple[tuple[str, str, Expr], ...]


Part = KernelPart | HostPart | AliasPart


def touched_by(part: Part) -> tuple[str, ...]:
    """Names of what a part reads and writes."""
    match part:
        case AliasPart():
            return tuple(name for one, other, _ in part.ties for name in (one, other))
        case KernelPart():
            return (*part.reads, part.writes)
        case HostPart():
            return (*part.reads, *part.writes)


@dataclass(frozen=True)
class Variant:
    """What serves a region of the sizes.

    Attributes:
        region: the range of every size of the model, in the model's order.
        tensors: every tensor named.
        vectors: what `prologue` starts from.
        known: constants that `prologue` reads; its names are not those of `tensors`.
        prologue: computes what follows from the sizes alone, once for each choice of them.
        held: what of it the steps read.
        parts: what every run does, in order.
        report: what became of the region's kernels.
    """

    region: tuple[Size, ...]
    tensors: tuple[VariantTensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    vectors: tuple[Vector, ...]
    known: tuple[VariantTensor, ...]
    prologue: tuple[HostPart, ...]
    held: tuple[str, ...]
    parts: tuple[Part, ...]
    report: Report

    @cached_property
    def by_name(self) -> Mapping[str, VariantTensor]:
        return {tensor.info.name: tensor for tensor in self.tensors}

    def serves(self, point: Mapping[str, int]) -> bool:
        """Whether the sizes are in its region."""
        return all(size.low <= point[size.name] <= size.high for size in self.region)


@dataclass(frozen=True, eq=False)
class VaryingRecipe:
    """See the module's docstring; attributes as `Recipe`."""

    name: str
    target: Target
    threads: int
    sizes: tuple[Size, ...]
    inputs: tuple[VaryingInfo, ...]
    outputs: tuple[VaryingInfo, ...]
    variants: tuple[Variant, ...]
    codes: tuple[CodeObject, ...]
    constants: NDArray[np.uint8]
    opsets: tuple[tuple[str, int], ...]
    source: str = ""

    @property
    def title(self) -> str:
        """As `Recipe.title`."""
        return self.source.rpartition(" ")[0] or self.name

    @property
    def report(self) -> Report:
        """Of the variant for the largest sizes."""
        return self.variants[-1].report
