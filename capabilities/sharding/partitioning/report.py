"""What a sharded model costs and holds, as plain numbers."""

from dataclasses import dataclass

from tilesmith.capabilities.sharding.partitioning.costs import Costs
from tilesmith.capabilities.sharding.partitioning.program import ShardedProgram
from tilesmith.capabilities.sharding.partitioning.resharding import COLLECTIVES
from tilesmith.compiler.driver.build import prepared
from tilesmith.search_space.support.json_object import JsonObject


@dataclass(frozen=True)
class _TensorRow:
    """A tensor on the cores: its whole shape, its spec, bytes on one core."""

    name: str
    role: str
    shape: tuple[int, ...]
    spec: str
    bytes: int


@dataclass(frozen=True)
class _CollectiveRow:
    """A collective: bytes of the tensor on one core before it (of an all_gather after it)."""

    kind: str
    tensor: str
    axes: tuple[str, ...]
    before: str
    after: str
    bytes: int
    us: float


@dataclass(frozen=True)
class Account(JsonObject):
    """What a program costs and holds on one core.

    Attributes:
        compute_us: its kernels by their rooflines, neighbours fused, and copies, one after another.
        communication_us: its collectives, none hidden behind computing.
        weight_bytes, activation_bytes: weights; the most of other tensors at a time.
    """

    tensors: tuple[_TensorRow, ...]
    collectives: tuple[_CollectiveRow, ...]
    compute_us: float
    communication_us: float
    weight_bytes: int
    activation_bytes: int

    @property
    def memory_bytes(self) -> int:
        return self.weight_bytes + self.activation_bytes


def account(program: ShardedProgram, costs: Costs) -> Account:
    """The account of a program at the prices of its machine."""
    compute = sum(sum(costs.kernels(prepared(segment.graph))) for segment in program.segments)
    compute += sum(
        costs.step(move.step, move.shape, program.tensors[move.source].dtype)
        for move in program.moves
        if move.step.kind not in COLLECTIVES
    )
    collectives = tuple(
        _CollectiveRow(
            move.step.kind,
            move.tensor,
            move.step.axes,
            str(move.step.before),
            str(move.step.after),
            move.step.wire_bytes(
                move.shape, costs.size(program.tensors[move.source].dtype), program.mesh
            ),
            costs.step(move.step, move.shape, program.tensors[move.source].dtype) / 1e3,
        )
        for move in program.moves
        if move.step.kind in COLLECTIVES
    )
    return Account(
        tuple(_rows(program)),
        collectives,
        compute / 1e3,
        sum(row.us for row in collectives),
        program.weight_bytes,
        program.activation_bytes,
    )


def _rows(program: ShardedProgram) -> list[_TensorRow]:
    rows = []
    for role, group in (
        ("input", program.inputs),
        ("weight", program.weights),
        ("inside", program.inside),
        ("output", program.outputs),
    ):
        for placed in group:
            size = program.nbytes(placed.local)
            rows.append(
                _TensorRow(placed.info.name, role, placed.info.dims, str(placed.spec), size)
            )
    return rows
