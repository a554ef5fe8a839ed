"""What an ONNX graph does number by number: chains of elementwise nodes, each one kernel's work.

Elementwise nodes that follow each other are one pass over memory, as compilers fuse them: a GELU
that was exported as five nodes reads one tensor and writes one, a residual reads two. A chain costs
as many passes of two operands as it reads tensors of its size beyond the first; one that reads one
tensor is free where it only scales and shifts it (the epilogue of what made it), and costs a pass
otherwise. Normalisations that were exported in parts are known by the root of a reduced row; what
else they do number by number is theirs. This is how the families' configurations count
(`architectures/parts.py`): the same model costs the same both ways.

Invariants: nodes come in topological order; constants cost nothing.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilesmith.capabilities.planning.architecture import Layer, PointwiseOperator
from tilesmith.compiler.graph.operator_traits import having

if TYPE_CHECKING:
    from onnx import NodeProto

_LINEAR = having("affine")
_CURVED = having("curved")
_REDUCED = ("ReduceMean", "ReduceSum")
_ALIASES = ("Identity", "Cast", "Dropout")
_ELEMENTWISE = (*_LINEAR, *_CURVED)
WATCHED = (*_ELEMENTWISE, *_REDUCED, *_ALIASES)
"""Kinds of nodes that may be part of a chain."""


@dataclass
class PointwiseChain:
    """Elementwise nodes that are one pass.

    Attributes:
        shape: of what it writes.
        split: whether the cores of a tensor group share its numbers.
        reads: tensors of that size that come from elsewhere.
        plain: it only scales and shifts.
        normalises: it goes on with what a reduction of rows gave.
    """

    name: str
    shape: tuple[int, ...]
    split: bool
    reads: set[str] = field(default_factory=set)
    plain: bool = True
    normalises: bool = False

    @property
    def layer(self) -> Layer:
        """The passes of the chain over memory, as operators."""
        *outer, width = self.shape or (1,)
        pairs = max(0, len(self.reads) - 1)
        count, operands = (pairs, 2) if pairs else (int(not (self.plain or self.normalises)), 1)
        work = PointwiseOperator("pointwise", width, operands=operands, split=self.split)
        return Layer(self.name, (work,) * count, rows=math.prod(outer))


class PointwiseChains:
    """Chains as they are found, node by node.

    Args:
        nodes: all of the graph.
        shape: sizes of a tensor.
        constants: names of what is known before, as the reader adds to them.
    """

    def __init__(
        self,
        nodes: "Iterable[NodeProto]",
        shape: Callable[[str], tuple[int, ...]],
        constants: Collection[str],
    ) -> None:
        self._shape = shape
        self._constants = constants
        self._of: dict[str, PointwiseChain] = {}
        self._reduced: dict[str, tuple[int, ...]] = {}
        known = (*_ELEMENTWISE, *_ALIASES)
        self._kept = Counter(  # by what is no part of a chain
            name for node in nodes if node.op_type not in known for name in node.input
        )

    def add(self, node: "NodeProto", split: bool) -> Layer | PointwiseChain | None:
        """What a node begins: a chain, a normalisation where it ends one's reduction; or nothing.

        Raises:
            ModelError: a size is not known.
        """
        if all(not name or name in self._constants for name in node.input):
            return None
        first, out = node.input[0], node.output[0]
        if node.op_type in _REDUCED:
            self._reduced[out] = self._shape(first)
            return None
        if node.op_type in _ALIASES:
            if first in self._of:
                self._of[out] = self._of[first]
            if first in self._reduced:
                self._reduced[out] = self._reduced[first]
            return None
        row = next((self._reduced[name] for name in node.input if name in self._reduced), None)
        size = math.prod(self._shape(out))
        if row is not None and size < math.prod(row):
            self._reduced[out] = row
            if node.op_type != "Sqrt":
                return None
            norm = PointwiseOperator("norm", row[-1])
            return Layer(node.name or "norm", (norm,), rows=math.prod(row[:-1]))
        return self._chained(node, split, size, normalises=row is not None)

    def _chained(
        self, node: "NodeProto", split: bool, size: int, *, normalises: bool
    ) -> PointwiseChain | None:
        """The chain a node begins; None where it goes on with one."""
        wide = [name for name in node.input if self._is_wide(name, size)]
        before = [self._of[name] for name in wide if name in self._of and not self._kept[name]]
        chain = (
            before[-1]
            if before
            else PointwiseChain(node.op_type, self._shape(node.output[0]), split)
        )
        for other in before[:-1]:
            if other is not chain:
                chain.reads |= other.reads
                chain.plain &= other.plain
                chain.normalises |= other.normalises
                other.reads, other.plain = set(), True
        chain.reads.update(n for n in wide if n not in self._of or self._kept[n])
        chain.plain &= node.op_type in _LINEAR
        chain.normalises |= normalises
        chain.split &= split
        self._of[node.output[0]] = chain
        return None if before else chain

    def _is_wide(self, name: str, size: int) -> bool:
        if not name or name in self._constants:
            return False
        return math.prod(self._shape(name)) == size
