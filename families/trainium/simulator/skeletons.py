"""What configurations have in common: skeletons, lowered once, of which each is a few numbers.

    space, configs -> skeletons with settings and tile sizes -> estimates, or an instruction stream

A program is lowered once for each skeleton (`families.kit.programs.skeleton`); configurations of
one are estimated together, as arrays. Targets that differ in rates alone share them (`alike`).
What was lowered is kept for the latest workloads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.families.kit.programs.skeleton import marked, parted, settled
from tilesmith.families.kit.simulation.compulsory import compulsory_bytes
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.selection.from_program import Plans, generate
from tilesmith.families.trainium.codegen.selection.staging import constants_of, stage
from tilesmith.families.trainium.simulator.estimation.analytical import Analysis
from tilesmith.families.trainium.simulator.estimation.estimate import Array, StatementCosts
from tilesmith.search_space.hardware.target import FactValue, Target
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.ir.settings import Settings
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import ConfigError, WorkloadError
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.workload import Workload

KEPT = 256
"""Skeletons kept lowered."""

LOWERED_KEPT = 1024
"""Skeletons whose programs are kept, for targets that differ in rates."""

SHAPE = (
    "cores_per_chip", "hbm.gib_chip", "psum.", "sbuf.",
    "tensor.cols", "tensor.fp8_k_max", "tensor.moving_free", "tensor.rows",
)  # fmt: skip
"""Facts, or beginnings of their names, that are sizes; all others are rates."""

STRUCTURES_KEPT = 8192
"""Structures whose skeleton is known."""


def skeleton_of(
    workload: Workload, target: Target, space: SearchSpace, config: Config
) -> tuple[Analysis, Settings]:
    """A configuration's skeleton, ready to be evaluated, and its settings."""
    names = space.setting_knobs
    structure = space.structure(config)
    analysis, settings = _skeleton(workload, target, marked(structure, names))
    return analysis, settled(settings, structure, names)


@lru_cache(maxsize=STRUCTURES_KEPT)
def _skeleton(workload: Workload, target: Target, structure: Config) -> tuple[Analysis, Settings]:
    """The skeleton of a structure, knobs that are settings marked, and its settings."""
    skeleton, settings = _parts(workload, alike(target), structure)
    return _analysis(workload, target, skeleton), settings


@lru_cache(maxsize=STRUCTURES_KEPT)
def _parts(workload: Workload, alike: Target, structure: Config) -> tuple[Schedule, Settings]:
    return parted(scheduler_of(workload, alike).schedule(workload, alike, structure))


@lru_cache(maxsize=KEPT)
def alike(target: Target) -> Target:
    """The first target met that has the same sizes. Programs depend on nothing else (rates only
    order a space's parts), so targets that differ in rates, as many design points do, share them.
    """
    facts = tuple((name, fact.value) for name, fact in target.facts if name.startswith(SHAPE))
    return _first(target.name, facts).setdefault("met", target)


@lru_cache(maxsize=KEPT)
def _first(name: str, sizes: tuple[tuple[str, FactValue], ...]) -> dict[str, Target]:
    return {}


@lru_cache(maxsize=KEPT)
def simulated_space(workload: Workload, target: Target) -> SearchSpace:
    check_size(workload, target)
    return space_of(workload, alike(target))


def check_size(workload: Workload, target: Target) -> None:
    """Raise `WorkloadError` where a core's memory does not hold the operands."""
    core = Core.of(target)
    needed = compulsory_bytes(workload)
    if needed > core.hbm_bytes:
        raise WorkloadError(
            f"workload '{workload}' needs {needed / 2**30:.1f} GiB; a core of target "
            f"'{target.name}' has {core.hbm_bytes / 2**30:.1f} GiB (hbm.gib_chip)"
        )


def default_config(workload: Workload, target: Target) -> Config:
    """The default configuration.

    Raises:
        WorkloadError: not even the smallest tiles fit; which limit they break is said.
    """
    try:
        return default_of(workload, target)
    except ConfigError as error:
        raise WorkloadError(
            f"no schedule of workload '{workload}' fits target '{target.name}': {error}"
        ) from error


@lru_cache(maxsize=KEPT)
def _analysis(workload: Workload, target: Target, skeleton: Schedule) -> Analysis:
    return _lowered(workload, alike(target), skeleton).on(Core.of(target))


@dataclass(eq=False)
class _Lowered:
    """A skeleton, lowered and verified once, and its first analysis."""

    workload: Workload
    program: Program
    known: Analysis | None = None

    def on(self, core: Core) -> Analysis:
        """The analysis on a core of the same sizes."""
        if self.known is None:
            self.known = Analysis(self.program, core, constants_of(self.program, self.workload))
        return self.known.on(core)


@lru_cache(maxsize=LOWERED_KEPT)
def _lowered(workload: Workload, alike: Target, skeleton: Schedule) -> _Lowered:
    program = lower(skeleton)
    verify(program, alike)
    return _Lowered(workload, program)


@lru_cache(maxsize=KEPT)
def _plans(analysis: Analysis, tiles: tuple[tuple[str, int], ...]) -> Plans:
    """A skeleton with these tile sizes, ready for code generation."""
    return Plans(analysis.program.bind(dict(tiles)), analysis.core.target)


def instruction_stream(workload: Workload, target: Target, config: Config) -> InstructionStream:
    """The instruction stream of one configuration.

    Raises:
        ConfigError: the configuration is outside the workload's space.
        CodegenError: the operator has a part that no instruction does.
    """
    space = simulated_space(workload, target)
    space.validate(config)
    analysis, settings = skeleton_of(workload, target, space, config)
    plans = _plans(analysis, tuple(space.tiles(config).items()))
    return generate(plans, Core.of(target), settings)


def staged_stream(workload: Workload, target: Target, config: Config) -> InstructionStream:
    """The same with constants laid out as they are loaded, as a model has them: what is timed."""
    stream = instruction_stream(workload, target, config)
    analysis, _ = skeleton_of(workload, target, simulated_space(workload, target), config)
    return stage(stream, analysis.constants).stream


@dataclass
class _Group:
    """Configurations of one skeleton: their places in a batch, settings and tile sizes."""

    analysis: Analysis
    members: list[int] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)
    tiles: list[dict[str, int]] = field(default_factory=list)

    def evaluate(self) -> tuple[StatementCosts, Array]:
        """Estimates, and memory taken."""
        columns = {name: np.array([t[name] for t in self.tiles]) for name in self.tiles[0]}
        settings = [column[0] if len(set(column)) == 1 else np.array(column)
                    for column in zip(*self.settings, strict=True)]  # fmt: skip
        return self.analysis.evaluate(columns, len(self.members), settings)


def estimates(
    workload: Workload, target: Target, configs: Sequence[Config]
) -> tuple[StatementCosts, Array, list[int]]:
    """Estimates of all configurations, what memory they take, and the place of each in them."""
    space = simulated_space(workload, target)
    groups: dict[int, _Group] = {}
    for index, config in enumerate(configs):
        analysis, settings = skeleton_of(workload, target, space, config)
        group = groups.setdefault(id(analysis), _Group(analysis))
        group.members.append(index)
        group.settings.append(settings)
        group.tiles.append(space.tiles(config))
    parts: list[StatementCosts] = []
    memory: list[Array] = []
    order: list[int] = []
    for group in groups.values():
        estimate, taken = group.evaluate()
        parts.append(estimate)
        memory.append(taken)
        order += group.members
    whole = StatementCosts(
        np.concatenate([p.data for p in parts], axis=1), np.concatenate([p.span for p in parts])
    )
    place = [0] * len(order)
    for position, index in enumerate(order):
        place[index] = position
    return whole, np.concatenate(memory, axis=1), place
