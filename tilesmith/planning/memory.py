"""What a deployment's memories hold: weights, the cache of the longest sequences, and a
workspace."""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.planning.architecture import Architecture, Attention, Experts, Product
from tilesmith.planning.deployment import BYTES, Deployment, Load
from tilesmith.search_space.errors import InputError

GIB = 1024**3


@dataclass(frozen=True)
class Memory:
    """GiB over all cores of a deployment, copies counted as often as they are there.

    Attributes:
        chip: what the fullest chip holds. available: what a chip has.
    """

    weights: float
    cache: float
    workspace: float
    chip: float
    available: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.workspace

    def to_json(self) -> dict[str, float]:
        return {
            "weights_gib": self.weights,
            "cache_gib": self.cache,
            "workspace_gib": self.workspace,
            "chip_gib": self.chip,
            "chip_available_gib": self.available,
        }


def memory_of(architecture: Architecture, deployment: Deployment, load: Load) -> Memory:
    """What a load needs on a deployment."""
    tensor, cores = deployment.tensor, deployment.degrees * deployment.cores_each
    weights, cached = 0.0, 0.0
    for layer in architecture.layers:
        for op in layer.operators:
            if isinstance(op, Product):
                copies = tensor if op.split == "none" else 1
                width = BYTES[deployment.weights] if op.name != "head" else 2
                weights += layer.repeats * copies * op.parameters * width
            elif isinstance(op, Experts):
                weights += layer.repeats * op.parameters * BYTES[deployment.weights]
            elif isinstance(op, Attention):
                if architecture.kind == "decoder":
                    groups = tensor * max(1, -(-op.key_heads // tensor))
                    numbers = tensor * op.latent or groups * (op.width + op.value_width)
                    length = min(load.limit, op.window or load.limit)
                    cached += layer.repeats * numbers * length * BYTES[deployment.cache]
            else:
                weights += layer.repeats * op.parameters * 2
    sequences = -(-load.batch // deployment.data)
    weights *= deployment.data
    cached *= sequences * deployment.data
    rows = sequences * max(load.input_tokens, 1)
    workspace = 6.0 * rows * architecture.width * 2 * tensor * deployment.data
    chips = cores / deployment.mesh.cores_per_chip
    weights, cached, workspace = weights / GIB, cached / GIB, workspace / GIB
    chip = (weights + cached + workspace) / max(chips, 1)
    return Memory(weights, cached, workspace, chip, deployment.mesh.chip_gib)


def check_fits(
    architecture: Architecture, deployment: Deployment, load: Load, memory: Memory
) -> None:
    """Raise `InputError` if a chip would have to hold more than it has."""
    if memory.chip > memory.available:
        raise InputError(
            f"'{architecture.name}' needs {memory.chip:.1f} GiB on each chip of mesh "
            f"'{deployment.mesh.name}', which has {memory.available:.1f}: "
            f"{memory.chip - memory.available:.1f} GiB are missing"
        )
