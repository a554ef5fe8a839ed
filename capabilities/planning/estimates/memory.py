"""What a deployment's memories hold: weights, caches of the longest sequences, and a workspace.

Weights are counted as cores hold them: padded where heads do not divide, copied where all cores
need them (routers, latent projections) and for each replica. Tables of embeddings and heads stay
in 16 bits and are shared like products. The workspace is what a prompt's rows need between layers.
"""

from dataclasses import dataclass, replace

from tilesmith.capabilities.planning.architecture import (
    Architecture,
    AttentionOperator,
    Experts,
    Layer,
    Lookup,
    Operator,
    PointwiseOperator,
    ProductOperator,
)
from tilesmith.capabilities.planning.deployment import (
    BYTES,
    Deployment,
    DeploymentLoad,
    logical_cores,
)
from tilesmith.capabilities.planning.estimates.shares import (
    cached_share,
    is_narrow,
    kept,
    product_share,
)
from tilesmith.search_space.meshes.mesh import Mesh, load_mesh, mesh_names
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.json_object import JsonObject

GIB = 1024**3
_INSTANCES = "instances.members"
_WIDE = 2
"""Bytes of what is not narrowed: embeddings, heads, normalisations, activations."""
_LIVE_ROWS = 6
"""Rows of the residual stream that are alive at once: residual, normalised, and those of a sum
over the group, to and fro; the feed-forward's share of a core is smaller than these."""


_ROWS_AT_ONCE = 65536
"""Rows of prompts that are worked on together; more of them wait."""


@dataclass(frozen=True)
class MemoryUse(
    JsonObject,
    keys="weights_gib:weights cache_gib:cache workspace_gib:workspace chip_gib:chip "
    "chip_available_gib:available",
):
    """GiB over all cores of a deployment, copies counted as often as they are there.

    Attributes:
        chip: what the fullest chip holds.
        available: what a chip has.
    """

    weights: float
    cache: float
    workspace: float
    chip: float
    available: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.workspace


def memory_of(
    architecture: Architecture, deployment: Deployment, load: DeploymentLoad
) -> MemoryUse:
    """What a load needs on a deployment."""
    stages = stages_of(architecture, deployment.pipeline)
    weights = [sum(_weights(layer, deployment) * n for layer, n in stage) for stage in stages]
    sequences = -(-load.batch // deployment.data)
    length = load.limit if architecture.kind == "decoder" else 0
    caches = [
        sum(_cached(layer, deployment, length) * n for layer, n in stage) * sequences
        for stage in stages
    ]
    rows = max(layer.rows or load.input_tokens for layer in architecture.layers)
    rows = max(rows, min(rows * sequences, _ROWS_AT_ONCE))
    workspace = _LIVE_ROWS * rows * architecture.width * _WIDE / min(len(stages), sequences)
    copies = deployment.tensor * deployment.data / GIB
    neighbours = min(deployment.mesh.cores_per_chip // deployment.cores_each, deployment.degrees)
    fullest = max(w + c for w, c in zip(weights, caches, strict=True)) + workspace
    return MemoryUse(
        sum(weights) * copies,
        sum(caches) * copies,
        workspace * len(stages) * copies,
        fullest * max(1, neighbours) / GIB,
        deployment.mesh.chip_gib,
    )


def stages_of(architecture: Architecture, count: int) -> list[list[tuple[Layer, int]]]:
    """Layers of each stage, and how many of them: as even as whole layers are, the last with
    least."""
    body = sum(layer.repeats for layer in architecture.layers if layer.repeats > 1)
    each = -(-body // count) if body else 0
    stages: list[list[tuple[Layer, int]]] = [[] for _ in range(count)]
    at, room = 0, each
    for layer in architecture.layers:
        if layer.repeats == 1:
            stages[at].append((layer, 1))
            continue
        left = layer.repeats
        while left:
            if not room:
                at, room = at + 1, each
            taken = min(left, room)
            stages[at].append((layer, taken))
            left, room = left - taken, room - taken
    return stages


def _weights(layer: Layer, deployment: Deployment) -> float:
    """Bytes of one core for a layer's weights."""
    return sum(_bytes(operator, deployment) for operator in layer.operators)


def _bytes(operator: Operator, deployment: Deployment) -> float:
    tensor, groups = deployment.tensor, deployment.expert
    match operator:
        case ProductOperator() if operator.tied:
            return 0.0
        case ProductOperator():
            width = BYTES[deployment.weights] if is_narrow(operator) else _WIDE
            bias = operator.times * operator.n * _WIDE / tensor if operator.bias else 0
            held = product_share(operator, tensor, deployment.full_heads)
            return held * width + bias
        case Experts():
            held = -(-operator.count // groups)
            each = sum(product_share(product, tensor // groups) for product in operator.products)
            return held * each * BYTES[deployment.weights]
        case Lookup():
            return operator.parameters * _WIDE / tensor
        case PointwiseOperator():
            return operator.parameters * _WIDE
        case _:
            return 0.0


def _cached(layer: Layer, deployment: Deployment, length: int) -> float:
    """Bytes of one core for one sequence's keys and values of a layer."""
    if not length or layer.once:
        return 0.0
    return sum(
        (op.keys or kept(op, length))
        * cached_share(op, deployment.tensor, deployment.full_heads)
        * BYTES[deployment.cache]
        for op in layer.operators
        if isinstance(op, AttentionOperator)
    )


def check_fits(
    architecture: Architecture, deployment: Deployment, load: DeploymentLoad, memory: MemoryUse
) -> None:
    """Raise `InputError` if a chip would have to hold more than it has: how much is missing, and
    what would do."""
    if memory.chip <= memory.available:
        return
    missing = memory.chip - memory.available
    raise InputError(
        f"'{architecture.name}' does not fit mesh '{deployment.mesh.name}': a chip would hold "
        f"{_gib(memory.chip)} and has {memory.available:g}, {_gib(missing)} are missing "
        f"({memory.total:.0f} GiB in all); {_remedy(architecture, deployment, load)}"
    )


def _remedy(architecture: Architecture, deployment: Deployment, load: DeploymentLoad) -> str:
    """What would do: more cores of this mesh, else the smallest that is known."""
    here = _whole(deployment, deployment.mesh)
    if here.tensor > deployment.tensor and _fits(architecture, here, load):
        return f"with tensor degree {here.tensor} it would fit"
    family, meshes = deployment.mesh.target.family, []
    for name in mesh_names():
        other = _whole(deployment, load_mesh(name))
        if _fits(architecture, other, load):
            stranger = other.mesh.target.family != family
            meshes.append((stranger, other.mesh.chips * other.mesh.chip_gib, name))
    own = [
        f"'{name}' with {size:,.0f} GiB" for stranger, size, name in sorted(meshes) if not stranger
    ]
    if own:
        return f"the smallest mesh that would do is {own[0]}"
    if not meshes:
        return _several(architecture, deployment, load)
    _, size, name = min(meshes)
    return f"no mesh of such chips that is known would do; of others, '{name}' with {size:,.0f} GiB"


def _several(architecture: Architecture, deployment: Deployment, load: DeploymentLoad) -> str:
    """How many of this mesh would do, a stage of a pipeline each, where it can be several
    instances."""
    known = _INSTANCES in deployment.mesh.data
    for count in (2, 4, 8, 16, 32, 64) if known else ():
        mesh = deployment.mesh.with_settings({_INSTANCES: count})
        stages = replace(_whole(deployment, deployment.mesh), mesh=mesh, pipeline=count)
        if _fits(architecture, stages, load):
            option = f"--set {_INSTANCES}={count} --tp {stages.tensor} --pp {count}"
            return f"no one mesh that is known would do, but {count} of this ({option})"
    return "no mesh that is known would do; use narrower weights, or shorter or fewer sequences"


def _gib(number: float) -> str:
    """Two digits behind the first that counts: what is missing may be little."""
    return f"{number:,.1f} GiB" if number >= 10 else f"{number:.3g} GiB"


def _whole(deployment: Deployment, mesh: Mesh) -> Deployment:
    """One replica of one stage on all cores of a mesh."""
    cores = mesh.cores // logical_cores(mesh)
    expert = deployment.expert if cores % deployment.expert == 0 else 1
    return replace(
        deployment, mesh=mesh, tensor=cores, pipeline=1, data=1, expert=expert, logical=0
    )


def _fits(architecture: Architecture, deployment: Deployment, load: DeploymentLoad) -> bool:
    memory = memory_of(architecture, deployment, load)
    return memory.chip <= memory.available
