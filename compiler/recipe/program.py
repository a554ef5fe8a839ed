"""`Recipe`: everything an executable is made of, as plain data: what an artifact stores.

Kernels are compiled code with resolved arguments, host nodes are ONNX nodes, tensors are places.
Invariants: frozen; no pointer and no object of a backend in it; offsets are inside the arena or the
constants.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import TensorInfo
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import Origin

Region = Literal["arena", "constant", "held", "caller", "value", "none"]
"""arena: activations | constant: weights | held: what follows from the sizes of a model whose sizes
vary | caller: arrays of the caller's that a run updates | value: a host node's own array | none: no
argument."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: a region and a byte offset in it."""

    region: Region
    offset: int = 0


NOWHERE = Place("none")


@dataclass(frozen=True)
class TensorRef:
    """A tensor that a host node or the caller sees: its info and its place; plain layout.

    `stored` is the element type in memory where that is another than the caller's (a model run in
    lower precision); values are converted on the way.
    """

    info: TensorInfo
    place: Place
    stored: str = ""


@dataclass(frozen=True)
class HeldTensor:
    """Where a tensor of the model's lies in a run, and from when on.

    Attributes:
        name: as the model has it; one that a pass made has a name of its own.
        dtype: element type in memory, which may be another than the model's.
        shape: logical; None where only running tells.
        place: region "value" of what the host alone has.
        layout: "" for plain row-major (`compiler.recipe.layouts`).
        step: number of the recipe's step that writes (the last of) it; -1: there before any.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    place: Place
    layout: str
    step: int


@dataclass(frozen=True)
class CodeObject:
    """A kernel's code for the target's family.

    Attributes:
        code: what the family's backend loads (a relocatable object file on CPUs).
        shared_bytes, local_bytes: workspace for all threads, and for each.
        needs: bytes at least behind each argument, 0 of those it never looks at; none: not known.
    """

    code: bytes
    shared_bytes: int = 0
    local_bytes: int = 0
    needs: tuple[int, ...] = ()


@dataclass(frozen=True)
class IndexCheck:
    """Indices that have to be in range before a kernel uses them.

    Attributes:
        node: describes the node that uses them.
        indices: where they are.
        extents: entries of the axes they are of, in turns; they run from -extent to extent - 1.
    """

    node: str
    indices: TensorRef
    extents: tuple[int, ...]


@dataclass(frozen=True)
class KernelStep:
    """Runs code on places.

    Attributes:
        name: of the node.
        workload, config: keys of what was compiled.
        origin: where the schedule came from (`search_space.results.origin`).
        code: number of its `CodeObject`.
        arguments: in the code's parameter order.
        checks: what is made sure of before it runs, for itself or for kernels after it.
        threads: how many threads at most run it; 0: all of the recipe's.
        sources: names of the model's nodes whose work it does (`compiler.graph.sources`); none for
            conversions.
    """

    name: str
    workload: str
    config: str
    origin: str
    code: int
    arguments: tuple[Place, ...]
    checks: tuple[IndexCheck, ...] = ()
    threads: int = 0
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostStep:
    """Runs a serialised ONNX node at the recipe's opsets, on the host."""

    name: str
    operator: str
    proto: bytes
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class MoveStep:
    """Copies bytes, in a loop from other places each time: `step` bytes to the next iteration's.

    Attributes:
        source, target: where from and where to, in the first iteration.
        nbytes: how many.
        source_step, target_step: bytes, negative where places are gone through backwards.
        counter: of the loop that the steps count in; none where both are 0.
        name: which tensor it moves, and where to.
    """

    source: Place
    target: Place
    nbytes: int
    source_step: int = 0
    target_step: int = 0
    counter: Place = NOWHERE
    name: str = ""


@dataclass(frozen=True)
class LoopStep:
    """Runs steps again and again.

    Attributes:
        name: of the node.
        trips: how often at most.
        limit: the int64 that says how often; none where `trips` alone does.
        test: the flag that ends the loop as soon as it is 0, looked at before each iteration; none
            where nothing does.
        counter: where the int64 of the iteration's number is written.
        steps: what is run; nothing of it is on the host.
    """

    name: str
    trips: int
    limit: Place
    test: Place
    counter: Place
    steps: "tuple[DeviceStep, ...]"
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class BranchStep:
    """Runs the first steps if a flag is set, else the second.

    Attributes:
        name: of the node.
        test: the flag.
        steps: of either branch; nothing of them is on the host.
    """

    name: str
    test: Place
    steps: "tuple[tuple[DeviceStep, ...], tuple[DeviceStep, ...]]"
    sources: tuple[str, ...] = ()


DeviceStep = KernelStep | MoveStep | LoopStep | BranchStep
"""What runs without the host in between."""

Step = DeviceStep | HostStep


def kernels_of(steps: Iterable[Step]) -> Iterator[KernelStep]:
    """The kernels among steps, those inside loops and branches too."""
    for step in steps:
        match step:
            case KernelStep():
                yield step
            case LoopStep():
                yield from kernels_of(step.steps)
            case BranchStep():
                for branch in step.steps:
                    yield from kernels_of(branch)
            case _:
                pass


@dataclass(frozen=True)
class Report:
    """What became of a model.

    Attributes:
        tuned, stale, fallback, default, measured, elsewhere: how many kernels run a schedule of
            each `Origin`: searched, stale, neighbour, unmeasured, measured, elsewhere; conversions
            are not among them.
        host: how many nodes run on the host.
        host_nodes: their descriptions.
        conversions: how many layout conversions there are besides.
        peak_bytes: of the activations' arena.
        constant_bytes: of packed weights.
        estimated_s: seconds of all kernels, by measurement or estimate.
        precision: element type of the kernels: "fp32", "bf16" or "fp16".
    """

    tuned: int
    stale: int
    fallback: int
    default: int
    host: int
    host_nodes: tuple[str, ...]
    conversions: int
    peak_bytes: int
    constant_bytes: int
    estimated_s: float
    precision: str = "fp32"
    measured: int = 0
    elsewhere: int = 0

    @classmethod
    def of(cls, origins: Iterable[str], **others: Any) -> "Report":
        """From the origin of every kernel."""
        counts = Counter(origins)
        return cls(
            tuned=counts[Origin.SEARCHED],
            stale=counts[Origin.STALE],
            fallback=counts[Origin.NEIGHBOUR],
            default=counts[Origin.UNMEASURED],
            measured=counts[Origin.MEASURED],
            elsewhere=counts[Origin.ELSEWHERE],
            **others,
        )

    @property
    def origins(self) -> dict[str, int]:
        """How many kernels run a schedule of each origin."""
        return {
            Origin.SEARCHED: self.tuned,
            Origin.MEASURED: self.measured,
            Origin.STALE: self.stale,
            Origin.NEIGHBOUR: self.fallback,
            Origin.ELSEWHERE: self.elsewhere,
            Origin.UNMEASURED: self.default,
        }

    @property
    def counts(self) -> dict[str, Any]:
        """The same as scripts know it: `tuned` are searched, `nearest` of another shape or machine,
        `default` measured or not; `schedules` by origin."""
        return {
            "tuned": self.tuned,
            "stale": self.stale,
            "nearest": self.fallback + self.elsewhere,
            "default": self.measured + self.default,
            "schedules": {str(origin): count for origin, count in self.origins.items()},
        }


@dataclass(frozen=True)
class Update:
    """An input whose array holds an output after a run: a cache that is handed from run to run.

    Where the input lies in the region "caller", kernels write the caller's memory; elsewhere the
    output is copied there.
    """

    input: str
    output: str


@dataclass(frozen=True, eq=False)
class Recipe:
    """A compiled model as data.

    Attributes:
        name: of the model.
        target: what it was compiled for.
        threads: how many threads run a kernel.
        inputs, outputs: what the caller gives and gets, in order.
        steps: in order.
        codes: code objects that kernel steps name by number.
        constants: all weights, one after the other, each on a cache line; holes where `lent` is.
        arena_bytes: size of the activations' arena.
        opsets: of host nodes.
        report: what became of the model.
        source: name and content hash of the file the model was read from, "" if it came from none.
        private: inputs and outputs whose bytes of the arena are no other tensor's at any time.
        lent: weights in memory of their own (a caller's, perhaps), by their place among the
            constants, in order.
        updates: inputs that a run changes.
        tensors: where tensors lie after which step, for those who look into a run; in order.
        chips: over how many of the target a pipeline of its steps may go.
    """

    name: str
    target: Target
    threads: int
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    steps: tuple[Step, ...]
    codes: tuple[CodeObject, ...]
    constants: NDArray[np.uint8]
    arena_bytes: int
    opsets: tuple[tuple[str, int], ...]
    report: Report
    source: str = ""
    private: frozenset[str] = frozenset()
    lent: tuple[tuple[int, NDArray[np.uint8]], ...] = ()
    updates: tuple[Update, ...] = ()
    tensors: tuple[HeldTensor, ...] = ()
    chips: int = 1

    @property
    def title(self) -> str:
        """What people call it: its file's name, or its own where it came of none."""
        return self.source.rpartition(" ")[0] or self.name

    def pieces(self) -> Iterator[NDArray[np.uint8]]:
        """The constants with what is lent in its places."""
        done = 0
        for offset, memory in self.lent:
            yield self.constants[done:offset]
            yield memory
            done = offset + memory.size
        yield self.constants[done:]


def view_of(
    memory: NDArray[np.uint8], offset: int, dtype: np.dtype[Any], shape: Any
) -> NDArray[Any]:
    """An array over `memory` from byte `offset` on."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return memory[offset : offset + count].view(dtype).reshape(shape)
