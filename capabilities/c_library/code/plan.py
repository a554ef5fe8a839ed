"""`LibraryPlan`: a model as what a library is made of, and where everything lies in a workspace.

Addresses are those of a made-up space in which each region begins at a multiple of `REGION`; code
is generated that adds the offset to wherever the region is. Calls are the driver's
(`codegen.native.driver`); a call's function is the number of a kernel.

A plan has one body, or, where sizes vary, one for each region of them. Then extents are formulas,
and tensors lie where the workspace's *slots* say: a table of addresses, made when sizes are set.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tilesmith.codegen.host.memory import ALIGNMENT
from tilesmith.codegen.llvm.threads import BARRIER_BYTES
from tilesmith.codegen.native.programs.driver import AnyCall, users
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr, ExprLike, as_expr
from tilesmith.search_space.expressions.sizes import Size, limits
from tilesmith.search_space.hardware.target import Target

REGION = 1 << 46
ARENA, WEIGHTS, NUMBERS, FIRST_END = 1, 2, 3, 4
"""Regions: activations, weights, numbers that follow from the sizes, then one for each input and
output that calls may reach, then the slots."""

THREADS_AT, STATUS_AT, BUSY_AT, OWNED_AT, BESIDE_AT = 8, 16, 20, 24, 32
CAPACITY_AT, BODY_AT, PROCESS_AT = 40, 48, 56
TEXT_AT, TEXT_BYTES = 64, 512
BARRIERS_AT = TEXT_AT + TEXT_BYTES
TEAM_AT = BARRIERS_AT + 2 * BARRIER_BYTES
SLOTS_AT = TEAM_AT + 128 + BARRIER_BYTES
SLOT_BYTES = 64
"""Of a workspace: who uses it, what the last run came to, how its threads meet; where sizes vary,
the bytes that there are, and which body serves the sizes that are set, counted from 1; where it has
threads, whose process they are of. Then a slot for each thread: {handle, workspace, number}."""

TENSOR_BYTES = 40
"""Of a `tilesmith_tensor`."""


def address(region: int, offset: int) -> int:
    """A place in the made-up space."""
    return region * REGION + offset


def aligned(size: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class LibraryTensor:
    """An input or output of the model, as its caller has it; its dtype by ONNX's number, too
    (`TensorProto.DataType`, onnx.proto). Extents are formulas where they vary."""

    name: str
    dtype: str
    shape: tuple[ExprLike, ...]
    onnx_type: int

    @property
    def nbytes(self) -> int:
        """Where nothing varies."""
        return self.elements * size_of(self.dtype)

    @property
    def elements(self) -> int:
        """Where nothing varies."""
        constant = self.count.constant
        assert constant is not None, f"the shape of '{self.name}' varies"
        return constant

    @property
    def count(self) -> Expr:
        """Its elements."""
        product = as_expr(1)
        for extent in self.shape:
            product = product * extent
        return product

    def most_bytes(self, sizes: Sequence[Size]) -> int:
        """Bytes at most while sizes stay in their ranges."""
        return limits(self.count, sizes)[1] * size_of(self.dtype)


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

    tensor: LibraryTensor
    home: int
    direct: bool = False
    stored: str = ""
    source: int = -1
    updates: int = -1
    written: bool = False


@dataclass(frozen=True)
class Check:
    """Indices that have to be in range: where they are, and what `compiler.graph.indices` says.

    Where they vary, `numbers` says which of the body's are their count and, from the next on, the
    extents; else it is -1.
    """

    node: str
    at: int
    dtype: str
    count: int
    extents: tuple[int, ...]
    numbers: int = -1


@dataclass(frozen=True)
class CallStage:
    """Calls in order, and what is made sure of before the first."""

    checks: tuple[Check, ...]
    calls: tuple[AnyCall, ...]


@dataclass(frozen=True)
class LibraryKernel:
    """A kernel's object, and a name of letters, digits and "_" for those who look at profiles."""

    name: str
    code: bytes


@dataclass(frozen=True)
class TensorGroup:
    """Tensors at fixed distances of each other in a workspace.

    Attributes:
        members: slots, and how far each is behind the first that was named.
        low, high: what its start is the least of, and its end the greatest of.
        behind: numbers of earlier groups that are alive when it is, and so end before it begins.
    """

    members: tuple[tuple[int, Expr], ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    behind: tuple[int, ...]


@dataclass(frozen=True)
class DerivedTensor:
    """A tensor that follows from the sizes alone, filled in when they are set.

    Attributes:
        slot: where it lies.
        at: of its values, among the weights.
        offset: bytes behind that.
        shape: extents to copy.
        steps: bytes from one index of an axis to the next, in `at`.
        element: bytes copied at once, where `steps` end.
        nbytes: in a workspace.
        members: other slots that lie in it, and how far behind its start.
    """

    slot: int
    at: int
    offset: Expr
    shape: tuple[Expr, ...]
    steps: tuple[int, ...]
    element: int
    nbytes: Expr
    members: tuple[tuple[int, Expr], ...] = ()


@dataclass(frozen=True)
class RegionBody:
    """What is run, at the sizes of a region.

    Attributes:
        inputs, outputs: in order.
        stages: what is run.
        region: the range of each size; nothing where none varies.
        slots: how many there are.
        groups: of slots, in the order of their offsets.
        held: slots with values of their own, which lie before all groups.
        numbers: of the sizes: themselves, then bytes, elements and extents of ends, then others.
        first: copies at the start of every run: (target, source, number of the bytes).
    """

    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    stages: tuple[CallStage, ...]
    region: tuple[Size, ...] = ()
    slots: int = 0
    groups: tuple[TensorGroup, ...] = ()
    held: tuple[DerivedTensor, ...] = ()
    numbers: tuple[Expr, ...] = ()
    first: tuple[tuple[int, int, int], ...] = ()

    @cached_property
    def ends(self) -> tuple[End, ...]:
        """Inputs, then outputs, as regions number them."""
        return (*self.inputs, *self.outputs)


@dataclass(frozen=True, eq=False)
class LibraryPlan:
    """A compiled model, ready to become a library.

    Attributes:
        prefix: what its functions' names begin with; an identifier of C.
        name: of the model.
        about: what it was made of and for, for people.
        threads: how many run it at most.
        inputs, outputs: in order, as they are described.
        bodies: what is run.
        kernels: by number.
        shared_bytes, local_bytes: workspace of all threads, and of each.
        arena_bytes: activations, at most.
        weights: all of them, in pieces.
        file: the name of the file that they are in; "" where they are in the library.
        sizes: those that vary.
    """

    prefix: str
    name: str
    about: str
    target: Target
    threads: int
    inputs: tuple[LibraryTensor, ...]
    outputs: tuple[LibraryTensor, ...]
    bodies: tuple[RegionBody, ...]
    kernels: tuple[LibraryKernel, ...]
    shared_bytes: int
    local_bytes: int
    arena_bytes: int
    weights: Sequence[Any]
    file: str = ""
    sizes: tuple[Size, ...] = field(default=())

    @cached_property
    def weight_bytes(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.weights)

    @property
    def ends(self) -> tuple[LibraryTensor, ...]:
        """Inputs, then outputs."""
        return (*self.inputs, *self.outputs)

    @property
    def first_slot(self) -> int:
        """The region of slot 0."""
        return FIRST_END + len(self.ends)

    @cached_property
    def team(self) -> int:
        """How many threads take part in the busiest call."""
        stages = [stage for body in self.bodies for stage in body.stages]
        every = [users(call) for stage in stages for call in stage.calls]
        return min(self.threads, max(every, default=1))

    # -- where everything lies in a workspace ------------------------------------------------------
    @property
    def ends_at(self) -> int:
        """Where each end's memory is in this run: an address for each."""
        return SLOTS_AT + SLOT_BYTES * self.team

    @property
    def tensors_at(self) -> int:
        """Where sizes vary: each end as it is at those that are set."""
        return self.ends_at + 8 * len(self.ends)

    @property
    def numbers_at(self) -> int:
        """The body's numbers."""
        return aligned(self.tensors_at + (TENSOR_BYTES * len(self.ends) if self.sizes else 0))

    @property
    def slots_at(self) -> int:
        """The address of each slot."""
        most = max((len(body.numbers) for body in self.bodies), default=0)
        return self.numbers_at + 8 * most

    @property
    def shared_at(self) -> int:
        return aligned(self.slots_at + 8 * max(body.slots for body in self.bodies))

    def bytes_number(self, end: int) -> int:
        """Which of a body's numbers an end's bytes are; its elements are `len(ends)` further."""
        return len(self.sizes) + end

    def shape_number(self, end: int) -> int:
        """Which of a body's numbers an end's first extent is."""
        before = sum(len(tensor.shape) for tensor in self.ends[:end])
        return len(self.sizes) + 2 * len(self.ends) + before

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
