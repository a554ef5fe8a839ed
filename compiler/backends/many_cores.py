"""Programs of several cores that communicate: what a backend is given, and what it gives back.

Every core runs kernels and exchanges one after another on memory of its own. An exchange is a
collective of a group of cores, or a copy inside one core's memory; it reads and writes *views*, so
that what is cut or joined in the middle of a tensor needs no kernel to lay it out.
Invariants: data only, no family's; cores of a group name it alike.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.recipe.program import CodeObject, KernelStep, Place, TensorRef
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.json_object import JsonObject

ExchangeKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "receive", "copy", "zero"
]


@dataclass(frozen=True)
class View:
    """Elements of a tensor in an order of their own.

    Attributes:
        place: where the tensor lies.
        elements: how many it has.
        first: the element that the view begins with.
        dims: (count, stride in elements) of each axis, outermost first; the view's order is
            row-major over them.
    """

    place: Place
    dtype: str
    elements: int
    first: int
    dims: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Exchange:
    """What moves between cores, or inside one.

    Attributes:
        kind: a collective: parts stand in the group's order in the views' order of elements; copy:
            elements of `source`; zero: `result` is filled with zeros, and nothing read; a send
            reads `source` alone, and a receive writes `result` alone.
        group: cores of the mesh that take part; of a send and its receive (from, to), of "copy" and
            "zero" nobody else.
    """

    name: str
    kind: ExchangeKind
    group: tuple[int, ...]
    source: View
    result: View


@dataclass(frozen=True, eq=False)
class CoreProgram:
    """What one core runs.

    Attributes:
        codes: of the kernels, which name them by number.
        constants: the bytes of the region "constant".
        inputs, outputs: what is put into the arena before a run, and read after it.
        extents: cores along each axis that groups stand along, row-major by their numbers; none:
            all along one.
    """

    name: str
    target: Target
    order: tuple[KernelStep | Exchange, ...]
    codes: tuple[CodeObject, ...]
    constants: NDArray[np.uint8]
    arena_bytes: int
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    extents: tuple[int, ...] = ()


CoreMemory = Mapping[str, NDArray[np.uint8]]
"""The bytes of a core by region: "arena" and "constant"."""


@dataclass(frozen=True)
class CorePlayed(JsonObject):
    """What one core does in a run, in us.

    Attributes:
        end_us: when its last instruction is done.
        computing_us: for how long some engine of it computes.
        collectives_us: for how long a collective of it is under way, waiting for others included.
        waiting_us: how much of that it waits for other cores to come.
        hidden_us: how much of `collectives_us` lies behind computing.
    """

    end_us: float
    computing_us: float
    collectives_us: float
    waiting_us: float
    hidden_us: float


@dataclass(frozen=True)
class Played(JsonObject, keys="makespan_us instructions collectives cores"):
    """A run of all cores.

    Attributes:
        makespan_us: until the last core is done.
        instructions, collectives: how many there are in all streams; meetings of groups.
    """

    makespan_us: float
    cores: Mapping[int, CorePlayed]
    instructions: int
    collectives: int

    @property
    def longest(self) -> CorePlayed:
        """The core that is done last."""
        return max(self.cores.values(), key=lambda core: core.end_us)


class LinkedCores(ABC):
    """Programs of several cores that fit each other, each linked to one program."""

    @abstractmethod
    def run(self, memories: Mapping[int, CoreMemory]) -> None:
        """Run them together, on memory by core, which is changed in place."""

    @abstractmethod
    def play(self) -> Played:
        """Play them together."""
