"""Shard a model over a mesh: by annotations, or as well as it can be done.

axes      what the caller says: {"data": 4, "tensor": 8}, or all cores as one axis
specs     of some tensors: the others follow (propagation), or are chosen around them
program   one for all cores; its collectives, costs and memory are the report
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from tilesmith.jobs.extras import required
from tilesmith.jobs.keywords import takes
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.files import ending
from tilesmith.search_space.support.json_object import JsonObject

if TYPE_CHECKING:
    from tilesmith.capabilities.sharding.cores.streams import ShardedStreams
    from tilesmith.capabilities.sharding.layouts.specs import Spec
    from tilesmith.capabilities.sharding.partitioning.costs import Costs
    from tilesmith.capabilities.sharding.partitioning.partition import Sharding
    from tilesmith.capabilities.sharding.partitioning.pipeline import MeshPipeline
    from tilesmith.capabilities.sharding.partitioning.program import ShardedProgram
    from tilesmith.capabilities.sharding.partitioning.report import Account
    from tilesmith.compiler.backends.many_cores import Played
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.jobs.requests.request import Settings, Shapes
    from tilesmith.jobs.subjects.subject import Model
    from tilesmith.search_space.meshes.mesh import Mesh

AXES = ("data", "expert", "tensor")
"""Axes of cores that one program runs on, outermost first."""

PIPELINE = "pipeline"
"""The degree that is stages of a pipeline, each on cores of its own."""


@dataclass(frozen=True)
class ShardRequest:
    """A sharding as its caller named it.

    Attributes:
        mesh: name or path of the machine, or the machine.
        degrees: cores along axes by name, and stages of a pipeline; others are one long. None at
            all: all of `cores`, along "tensor" if there are specs, else along two axes.
        microbatches: how many batches of the model's size a pipeline takes one after another.
        cores: how many cores of the machine; None: as many as the degrees make, or all.
        specs: by tensor, in the form of `capabilities.sharding.layouts.specs`.
        optimise: choose what the specs leave open, instead of propagating them; without specs that
            is done in any case.
        effort: limit of the solver, in its own deterministic time.
        timeline: compile the program for its cores, link it to one stream each, and play them.
    """

    model: "Model"
    mesh: "str | Mesh"
    degrees: Mapping[str, int] = field(default_factory=dict)
    cores: int | None = None
    specs: Mapping[str, str] = field(default_factory=dict)
    optimise: bool = False
    shapes: "Shapes" = field(default_factory=dict)
    settings: "Settings" = field(default_factory=dict)
    microbatches: int = 1
    effort: float = 60.0
    timeline: bool = False


@dataclass(frozen=True, eq=False)
class Sharded(
    JsonObject,
    keys="model:program.name mesh:machine axes cores objective_us bound_us gap "
    "memory_limit_bytes:limit_bytes *account pipeline? timeline:played?",
):
    """A sharded model and what it costs.

    Attributes:
        objective_us, bound_us: of the optimisation: what was found and what nothing is below; None
            where specs were propagated. Its computing counts every node alone, unfused.
        streams, played: the cores' instruction streams (`streams.run(inputs)` executes them), and
            how they were played; None where that was not asked for.
    """

    program: "ShardedProgram"
    account: "Account"
    machine: str
    axes: Mapping[str, int]
    limit_bytes: int
    objective_us: float | None = None
    bound_us: float | None = None
    pipeline: "MeshPipeline | None" = None
    streams: "ShardedStreams | None" = None
    played: "Played | None" = None

    def __repr__(self) -> str:
        axes = " x ".join(f"{name} {size}" for name, size in self.axes.items())
        return (
            f"<Sharded '{self.program.name}' over {axes} of {self.machine}: {self.estimate_us:.4g} "
            "us estimated>"
        )

    @property
    def cores(self) -> int:
        return math.prod(self.axes.values())

    @property
    def gap(self) -> float | None:
        """The distance to the lower bound, as a share of the cost."""
        if self.objective_us is None or self.bound_us is None:
            return None
        return 0.0 if self.objective_us <= self.bound_us else 1 - self.bound_us / self.objective_us

    @property
    def estimate_us(self) -> float:
        """Microseconds of a run by rooflines, nothing overlapped; of all microbatches."""
        if self.pipeline is not None:
            return self.pipeline.latency_us
        return self.account.compute_us + self.account.communication_us


class AskedOfSharding(TypedDict, total=False):
    """Keywords of `tilesmith.shard`; see `ShardRequest`."""

    degrees: Mapping[str, int]
    data: int
    expert: int
    tensor: int
    pipeline: int
    cores: int | None
    specs: Mapping[str, str]
    optimise: bool
    shapes: "Shapes"
    settings: "Settings"
    microbatches: int
    effort: float
    timeline: bool


@takes(AskedOfSharding)
def shard(model: "Model", mesh: "str | Mesh", **asked: Unpack[AskedOfSharding]) -> Sharded:
    """Cut a model over the cores of a mesh, and say what that costs.

        found = ts.shard("model.onnx", "trn1.32xlarge", cores=4, timeline=True)
        found.account.communication_us, found.played.makespan_us
        outputs = found.streams.run({"x": x})       # instruction by instruction, on all cores

    Args:
        mesh: the machine: a mesh by name, or a .toml file.
        asked: `data`, `expert`, `tensor` and `pipeline`, cores along these axes (`degrees` is all
            of them: {"data": 4, "tensor": 8}), and fields of `ShardRequest`: `cores`, `specs`
            ({"x": "data,-,tensor"}), `optimise`, `timeline` and so on.

    Raises:
        InputError: model, mesh, or what is asked of them (and its kinds).
        DependencyError: OR-tools is needed and not installed.
    """
    rest: dict[str, Any] = {**asked}
    axes = {name: rest.pop(name) for name in (*AXES, PIPELINE) if name in rest}
    degrees = {**rest.pop("degrees", {}), **axes}
    return sharded(ShardRequest(model, mesh, degrees, **rest))


def sharded(request: ShardRequest) -> Sharded:
    """Shard a model.

    Raises:
        TargetError, ModelError, InputError: the machine, the model, or what is asked of them.
        DependencyError: OR-tools is needed and not installed.
    """
    from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
    from tilesmith.capabilities.sharding.partitioning.costs import Costs
    from tilesmith.capabilities.sharding.partitioning.partition import partition
    from tilesmith.capabilities.sharding.partitioning.prepare import shardable
    from tilesmith.capabilities.sharding.partitioning.report import account
    from tilesmith.jobs.requests.graphs import graph_of

    machine = machine_of(request.mesh, request.settings)
    axes = axes_of(machine, request.degrees, request.cores, bool(request.specs))
    stages = axes.get(PIPELINE, 1)
    graph = shardable(graph_of(request.model, request.shapes))
    costs = Costs(machine, LogicalMesh.of({n: axes[n] for n in axes if n != PIPELINE}))
    given = given_specs(graph, costs.mesh.sizes, request.specs)
    objective = bound = None
    if request.optimise or not given:
        required("ortools", extra="ortools")
        from tilesmith.capabilities.sharding.search.best import best_sharding

        limit = costs.core_bytes * stages  # of a pipeline each stage holds a part
        best = best_sharding(graph, costs, given, request.effort, limit)
        sharding, objective, bound = best.sharding, best.objective / 1e3, best.bound / 1e3
    else:
        sharding = _propagated(graph, costs, given)
    pipeline = None
    if stages > 1:
        from tilesmith.capabilities.sharding.partitioning.pipeline import pipeline_of

        pipeline = pipeline_of(sharding, costs, stages, request.microbatches)
    program = partition(sharding, None if pipeline is None else pipeline.stage_of(graph))
    program = replace(program, precision=costs.precision)
    _check_memory(program, costs, graph.title)
    streams = _streams(program, machine, request.microbatches) if request.timeline else None
    return Sharded(
        program, account(program, costs), machine.name, axes, costs.core_bytes, objective, bound,
        pipeline, streams, None if streams is None else streams.play(),
    )  # fmt: skip


def _streams(program: "ShardedProgram", machine: "Mesh", microbatches: int) -> "ShardedStreams":
    from tilesmith.capabilities.sharding.cores.streams import streams_of

    batches = microbatches if max(program.stages, default=0) else 1
    return streams_of(program, machine, batches)


def _check_memory(program: "ShardedProgram", costs: "Costs", title: str) -> None:
    """Raise `InputError` where a core's memory is too small, naming a mesh that is not."""
    needed = program.weight_bytes + program.activation_bytes
    if needed <= costs.core_bytes:
        return
    weights = sum(value.nbytes for value in program.values.values())
    other = smallest_mesh(weights, program.activation_bytes, costs.machine.target.family)
    advice = (
        f"the smallest mesh that would do is '{other.name}' with {other.cores} cores"
        if other is not None
        else "no mesh that is known has enough"
    )
    raise InputError(
        f"'{title}' over {program.mesh} of mesh '{costs.machine.name}' needs "
        f"{amount(needed)} a core (weights {amount(program.weight_bytes)}), "
        f"{amount(needed - costs.core_bytes)} more than the {amount(costs.core_bytes)} there are; "
        f"{advice}"
    )


def smallest_mesh(weights: int, activations: int, family: str) -> "Mesh | None":
    """The known mesh of a family, of least memory, whose cores hold weights cut evenly.

    Args:
        weights: bytes of the whole model.
        activations: bytes on one core.
    """
    from tilesmith.search_space.meshes.mesh import load_mesh, mesh_names

    meshes = [load_mesh(name) for name in mesh_names()]
    fitting = [
        mesh
        for mesh in meshes
        if mesh.target.family == family
        and weights / mesh.cores + activations <= mesh.chip_gib * 2**30 / mesh.cores_per_chip
    ]
    return min(fitting, key=lambda m: (m.chip_gib * m.chips, len(m.name), m.name), default=None)


def amount(size: float) -> str:
    """Bytes as text, in the unit that suits their size."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.4g} {unit}"
    return f"{size:.0f} bytes"


def _propagated(graph: "Graph", costs: "Costs", given: "Mapping[str, Spec]") -> "Sharding":
    from tilesmith.capabilities.sharding.partitioning.propagation import propagate

    return propagate(graph, costs, given)


def machine_of(mesh: "str | Mesh", settings: "Settings") -> "Mesh":
    """The machine of a request; `TargetError` where there is none."""
    from tilesmith.search_space.meshes.mesh import load_mesh

    machine = load_mesh(mesh) if isinstance(mesh, str) else mesh
    return machine.with_settings(settings) if settings else machine


def axes_of(
    machine: "Mesh", degrees: Mapping[str, int], cores: int | None, along_one: bool = False
) -> dict[str, int]:
    """Cores along each axis.

    Args:
        along_one: whether all are along "tensor" where no degrees are given; else two axes, which
            may cut one dimension together or two.

    Raises:
        InputError: degrees that do not divide the cores.
    """
    if cores is not None and (cores < 1 or machine.cores % cores):
        raise InputError(
            f"{cores} cores do not divide the {machine.cores} of mesh '{machine.name}'; "
            f"{divisors(machine.cores)} do"
        )
    asked = {name: size for name, size in degrees.items() if size is not None}
    there = machine.cores if cores is None else cores
    wanted = math.prod(asked.values())
    if not asked:
        return {"tensor": there} if along_one else _square(there)
    if wanted > there or there % wanted:
        text = " x ".join(f"{name} {size}" for name, size in asked.items())
        text += f" = {wanted}" if len(asked) > 1 else ""
        raise InputError(
            f"{text} does not divide the {there} cores of mesh '{machine.name}'; "
            f"products that do: {divisors(there)}"
        )
    if cores is not None and wanted != cores:
        raise InputError(
            f"--cores is {cores} and the degrees make {wanted}; leave one of them out, or make "
            "them equal"
        )
    degrees_above_one = {name: asked[name] for name in (*AXES, PIPELINE) if asked.get(name, 1) > 1}
    return degrees_above_one or {"tensor": 1}


def _square(cores: int) -> dict[str, int]:
    """Two axes of about the same length."""
    outer = max(n for n in range(1, cores + 1) if cores % n == 0 and n * n <= cores)
    return {"data": outer, "tensor": cores // outer} if outer > 1 else {"tensor": cores}


def divisors(number: int) -> str:
    """The numbers that divide one, as text."""
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def given_specs(
    graph: "Graph", sizes: Mapping[str, int], texts: Mapping[str, str]
) -> "dict[str, Spec]":
    """Specs of tensors from their texts.

    Raises:
        InputError: a tensor the model does not have, an unknown axis, what does not divide.
    """
    from tilesmith.capabilities.sharding.layouts.specs import parse

    given = {}
    for name, text in texts.items():
        info = graph.tensors.get(name)
        if info is None:
            near = ", ".join(list(graph.tensors)[:6])
            raise InputError(
                f"the model has no tensor '{name}' to give a spec; it has {near}, ... "
                "('tilesmith shard' lists all)"
            )
        given[name] = parse(text, info.dims, sizes, name)
    return given


def read_annotations(path: Path) -> dict[str, str]:
    """Specs from a JSON file: {"tensor": "axis,-,axis", ...}.

    Raises:
        InputError: no such file, or it is not that.
    """
    try:
        annotations = json.loads(ending(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"annotations '{path}' cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"annotations '{path}' are not JSON: {error}") from error
    known = isinstance(annotations, dict) and all(
        isinstance(value, str) for value in annotations.values()
    )
    if not known:
        raise InputError(f'annotations \'{path}\' are no object of texts; write {{"x": "data,-"}}')
    return dict(annotations)
