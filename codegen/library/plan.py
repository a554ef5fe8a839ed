"""`Plan`: a model as what a library is made of, and where everything lies in a workspace.

Addresses are those of a made-up space in which each region begins at a multiple of `REGION`; code
is generated that adds the offset to wherever the region is. Calls are the driver's
(`codegen.native.driver`); a call's function is the number of a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilesmith.codegen.llvm.threads import BARRIER_BYTES
from tilesmith.codegen.memory import ALIGNMENT
from tilesmith.codegen.native.driver import AnyCall, users
from tilesmith.search_space.dtypes import size_of
from tilesmith.search_space.target import Target

REGION = 1 << 46
ARENA, WEIGHTS, FIRST_END = 1, 2, 3
"""Regions: activations, weights, then one for each input and output that calls may reach."""

THREADS_AT, STATUS_AT, BUSY_AT, OWNED_AT, BESIDE_AT = 8, 16, 20, 24, 32
TEXT_AT, TEXT_BYTES = 64, 512
BARRIERS_AT = TEXT_AT + TEXT_BYTES
TEAM_AT = BARRIERS_AT + 2 * BARRIER_BYTES
SLOTS_AT = TEAM_AT + 128 + BARRIER_BYTES
SLOT_BYTES = 64
"""Of a workspace: who uses it, what the last run came to, how its threads meet; then a slot for
each thread: {handle, workspace, number}."""


def address(region: int, offset: int) -> int:
    """A place in the made-up space."""
    return region * REGION + offset


def aligned(size: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Tensor:
    """An input or output of the model, as its caller has it; its dtype by ONNX's number, too
    (`TensorProto.DataType`, onnx.proto)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    onnx_type: int

    @property
    def nbytes(self) -> int:
        return self.elements * size_of(self.dtype)

    @property
    def elements(self) -> int:
        found = 1
        for extent in self.shape:
            found *= extent
        return found


@dataclass(frozen=True)
class End:
    """How an input or output of the caller's comes to kernels.

    Attributes:
        tensor: what it is.
        home: the address of its memory in the workspace or among the weights; 0 where kernels never
            touch it.
        direct: kernels may use the caller's memory instead.
        stored: the element type of its home; "" where that is the caller's.
        source: of an output that is an input as it is: the number of that input; else -1.
        updates: of an output that is left in an input's memory: the number of that input; else -1.
        written: of an input: a run changes it.
    """

    tensor: Tensor
    home: int
    direct: bool = False
    stored: str = ""
    source: int = -1
    updates: int = -1
    written: bool = False


@dataclass(frozen=True)
class Check:
    """Indices that have to be in range: where they are, and what `compiler.indices` says."""

    node: str
    at: int
    dtype: str
    count: int
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Stage:
    """Calls in order, and what is made sure of before the first."""

    checks: tuple[Check, ...]
    calls: tuple[AnyCall, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel's object, and a name of letters, digits and "_" for those who look at profiles."""

    name: str
    code: bytes


@dataclass(frozen=True, eq=False)
class Plan:
    """A compiled model, ready to become a library.

    Attributes:
        prefix: what its functions' names begin with; an identifier of C.
        name: of the model.
        about: what it was made of and for, for people.
        threads: how many run it at most.
        inputs, outputs: in order.
        stages: what is run.
        kernels: by number.
        shared_bytes, local_bytes: workspace of all threads, and of each.
        arena_bytes: activations.
        weights: all of them, in pieces.
        file: the name of the file that they are in; "" where they are in the library.
    """

    prefix: str
    name: str
    about: str
    target: Target
    threads: int
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    stages: tuple[Stage, ...]
    kernels: tuple[Kernel, ...]
    shared_bytes: int
    local_bytes: int
    arena_bytes: int
    weights: Sequence[Any]
    file: str = ""

    @cached_property
    def weight_bytes(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.weights)

    @cached_property
    def ends(self) -> tuple[End, ...]:
        """Inputs, then outputs, as regions number them."""
        return (*self.inputs, *self.outputs)

    @cached_property
    def team(self) -> int:
        """How many threads take part in the busiest call."""
        every = [users(call) for stage in self.stages for call in stage.calls]
        return min(self.threads, max(every, default=1))

    # -- where everything lies in a workspace ------------------------------------------------------
    @property
    def ends_at(self) -> int:
        """Where each end's memory is in this run: an address for each."""
        return SLOTS_AT + SLOT_BYTES * self.team

    @property
    def shared_at(self) -> int:
        return aligned(self.ends_at + 8 * len(self.ends))

    @property
    def locals_at(self) -> int:
        return self.shared_at + aligned(max(ALIGNMENT, self.shared_bytes))

    @property
    def local_step(self) -> int:
        return aligned(max(ALIGNMENT, self.local_bytes))

    @property
    def arena_at(self) -> int:
        return self.locals_at + self.local_step * self.team

    @property
    def workspace_bytes(self) -> int:
        return self.arena_at + aligned(self.arena_bytes)
