"""A deployment as a candidate for serving: how long its steps take, how many tokens its cache
holds."""

from collections.abc import Iterable, Mapping
from functools import partial

from tilesmith.capabilities.planning.architecture import Architecture
from tilesmith.capabilities.planning.batching.stages import StageTimes
from tilesmith.capabilities.planning.batching.step_times import DeploymentTimes
from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
from tilesmith.capabilities.planning.estimates.constants import constant
from tilesmith.capabilities.planning.estimates.estimate import stage_seconds, step_seconds
from tilesmith.capabilities.planning.estimates.limits import check_possible
from tilesmith.capabilities.planning.estimates.memory import (
    GIB,
    MemoryUse,
    check_fits,
    memory_of,
    stages_of,
)
from tilesmith.capabilities.planning.estimates.steps import between_stages
from tilesmith.capabilities.planning.sizing.answer import ReplicaCandidate
from tilesmith.capabilities.planning.sweeps.fleet import InstanceFleet
from tilesmith.capabilities.planning.sweeps.prices import Price
from tilesmith.capabilities.planning.sweeps.sweep import fleet_of
from tilesmith.search_space.support.errors import InputError
from tilesmith.simulator.collectives import collective_cost


def candidates(
    architecture: Architecture,
    deployments: Iterable[Deployment],
    longest: int,
    budget: int,
    prices: Mapping[str, Price],
) -> list[ReplicaCandidate]:
    """The deployments that a model can be cut for, and that hold at least one request.

    Args:
        longest: tokens of the longest request.
        budget: tokens of prompts that a step works on.

    Raises:
        InputError: the model makes no tokens, or no deployment is left; the sentence is the last's.
    """
    if architecture.kind != "decoder":
        raise InputError(
            f"'{architecture.name}' makes no tokens one after the other, so that there is no "
            "answer to batch; leave out the load, and sweep over batches"
        )
    load = DeploymentLoad(1, max(1, min(budget, longest - 1)), 1, max(longest, 2))
    fitting: list[ReplicaCandidate] = []
    last: InputError | None = None
    full: list[tuple[float, Deployment]] = []
    for deployment in deployments:
        try:
            check_possible(architecture, deployment, load)
            memory = memory_of(architecture, deployment, load)
            if memory.chip > memory.available:  # what would do is looked for once, not for each
                full.append((memory.chip - memory.available, deployment))
            else:
                fitting.append(_candidate(architecture, deployment, load, memory, prices))
        except InputError as error:
            last = error
    if not fitting and full:
        _, nearest = min(full, key=lambda one: one[0])
        check_fits(architecture, nearest, load, memory_of(architecture, nearest, load))
    if not fitting:
        assert last is not None, "every grid has a deployment"
        raise last
    return fitting


def _candidate(
    architecture: Architecture,
    deployment: Deployment,
    load: DeploymentLoad,
    memory: MemoryUse,
    prices: Mapping[str, Price],
) -> ReplicaCandidate:
    longest = load.limit
    fleet = fleet_of(deployment, prices)
    share = memory.available * fleet.cores / deployment.mesh.cores_per_chip
    tokens = int((share - memory.weights - memory.workspace) / (memory.cache / load.limit))
    if tokens < longest:
        raise InputError(
            f"'{architecture.name}' leaves a cache of {max(0, tokens)} tokens on "
            f"{label(deployment)}, less than one request of {longest}; use more cores"
        )
    estimated = partial(estimated_seconds, architecture, deployment)
    estimated(1, 1, 0)
    each = memory.cache / load.limit * GIB
    return ReplicaCandidate(
        label(deployment),
        fleet,
        DeploymentTimes(estimated),
        tokens,
        deployment,
        _transfer(fleet, deployment, each),
        stage_times(architecture, deployment) if deployment.pipeline > 1 else None,
    )


def stage_times(architecture: Architecture, deployment: Deployment) -> StageTimes:
    """Seconds of the stages of a pipeline; stages that are alike share what is found out."""
    known: dict[object, DeploymentTimes] = {}
    stages = []
    for number, layers in enumerate(stages_of(architecture, deployment.pipeline)):
        sends = [between_stages(deployment, size, number) for size in (1, 1 << 20)] if number else 0
        key = (str(sends), tuple((id(layer), count) for layer, count in layers))
        if key not in known:
            known[key] = DeploymentTimes(
                partial(stage_seconds, architecture, deployment, number, layers)
            )
        stages.append(known[key])
    host, more = (constant(deployment, f"{name}.fixed_us") * 1e-6 for name in ("step", "prompt"))
    return StageTimes(stages, host, more)


def _transfer(fleet: InstanceFleet, deployment: Deployment, size: float) -> float:
    """Seconds to hand the cache of one token (`size` bytes over all cores) on to another replica.

    Every chip sends what it holds to one of the other replica. A replica that fills its mesh sends
    over the outermost level's links, which all its chips share.
    """
    mesh = deployment.mesh
    chips = max(1.0, fleet.cores / mesh.cores_per_chip)
    if 2 * fleet.cores > mesh.cores:
        return size / (mesh.levels[-1].gbps * 1e9)
    tokens = 1024  # so many that starting does not count
    cost = collective_cost(mesh, "send", tokens * size / chips, (0, fleet.cores))
    return cost.seconds / tokens


def label(deployment: Deployment) -> str:
    """What is special about a deployment."""
    degrees = {"tp": deployment.tensor, "pp": deployment.pipeline, "ep": deployment.expert}
    named = [f"{name}={n}" for name, n in degrees.items() if n > 1 or name == "tp"]
    return " ".join([deployment.mesh.name, *named, deployment.weights])


def estimated_seconds(
    architecture: Architecture, deployment: Deployment, sequences: int, tokens: int, before: int
) -> float:
    """A step's seconds, as `DeploymentTimes` asks for them: the context is what was there
    before."""
    return step_seconds(architecture, deployment, sequences, tokens, before + tokens)
