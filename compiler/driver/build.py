"""`build`: from a graph to an executable, with schedules from a tuning database.

    graph -> passes -> settle (schedules, layouts) -> compile -> assemble -> Executable

`extract_tasks` stops after the kernels: what a tuner has to tune.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tilesmith.codegen.programs.structures import MOST_TRIED, WITHOUT_CODE, others_of
from tilesmith.compiler.assembly.assembly import assemble
from tilesmith.compiler.backends.backend import Compiled, backend_of
from tilesmith.compiler.backends.recorded import Records
from tilesmith.compiler.driver.pipeline import passes_for, simplify, to_kernels
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.passes.fallback import FallBack
from tilesmith.compiler.recipe.memory import Arrange, plan_arena
from tilesmith.compiler.recipe.placement import device_tensors
from tilesmith.compiler.recipe.program import Recipe
from tilesmith.compiler.recipe.updates import with_updates
from tilesmith.compiler.rewriting.graph_pass import apply
from tilesmith.compiler.rewriting.rounds import Rounds
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.compiler.settling.in_model import Choices, assignments, between_kernels, fastest
from tilesmith.compiler.settling.settlement import Settled, UnconvertibleError, settle
from tilesmith.compiler.settling.tables import share_tables
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import counted
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError, ModelError, WorkloadError
from tilesmith.search_space.workloads.workload import Workload

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelTask:
    """A distinct workload of a model and how often the model runs it."""

    workload: Workload
    weight: int


@dataclass(frozen=True)
class BuildOptions:
    """How a model is compiled.

    Attributes:
        threads: how many threads run each kernel.
        precision: of the kernels of an fp32 model: "fp32", "bf16" or (on CPUs) "fp16".
        require_tuned: refuse a model with a workload that was never tuned, and choose among
            measured layouts only.
        source: what to remember of the model's file.
        updates: by input the output that its array is to hold after a run.
        arrange: places activations in their arena.
        chips: over how many of the target the model may go, in a pipeline.
        bits: what may become of the last bits of sums: one of `workload.SUMS`.
    """

    threads: int = 1
    precision: str = "fp32"
    require_tuned: bool = False
    source: str = ""
    updates: Mapping[str, str] = field(default_factory=dict)
    arrange: Arrange = plan_arena
    chips: int = 1
    bits: str = "any"


DEFAULTS = BuildOptions()

Pinned = Callable[[Graph], Mapping[Workload, Config]]
"""Gives, for a model as kernels, schedules to use whatever the records say."""


@dataclass(frozen=True)
class Schedules:
    """Where schedules come from; as arguments of `build`.

    `tuned` says whether they are, or are to be, on record: long ranges of sizes then are several
    regions.
    """

    target: Target
    database: Records | None = None
    options: BuildOptions = DEFAULTS
    pinned: Pinned | None = None
    tuned: bool = False

    def chooser(self, graph: Graph) -> ScheduleChooser:
        """What chooses them for a model as kernels; `ModelError` where only tuned ones are wanted,
        and one is missing."""
        chooser = ScheduleChooser(
            self.target, self.database, self.options.threads,
            self.pinned(graph) if self.pinned is not None else {},
            measured_only=self.options.require_tuned,
        )  # fmt: skip
        if self.options.require_tuned:
            require_tuned(graph, chooser)
        return chooser


def prepared(graph: Graph) -> Graph:
    """The graph as kernels, before schedules and layouts are chosen."""
    return to_kernels(simplify(graph))


def extract_tasks(graph: Graph, target: Target) -> tuple[ModelTask, ...]:
    """The distinct workloads of a model on a target, in the order it first runs them."""
    kernels = scheduled(graph, target)
    counts: Counter[Workload] = Counter()
    for inner, often in ((kernels, 1), *kernels.inside()):
        for node in inner.nodes:
            if node.workload is not None:
                counts[node.workload] += often
    return tuple(ModelTask(workload, weight) for workload, weight in counts.items())


def build(
    graph: Graph,
    target: Target,
    database: Records | None = None,
    options: BuildOptions = DEFAULTS,
    pinned: Pinned | None = None,
) -> Executable:
    """Compile a model, ready to run here: `recipe_of`, as an executable.

    Raises:
        TargetError: models cannot run on this machine; the rest as `recipe_of`.
    """
    return Executable(recipe_of(graph, target, database, options, pinned))


def recipe_of(
    graph: Graph,
    target: Target,
    database: Records | None = None,
    options: BuildOptions = DEFAULTS,
    pinned: Pinned | None = None,
) -> Recipe:
    """Compile a model, for whatever machine.

    Args:
        graph: as imported.
        target: what to compile for; its family decides the backend.
        database: tuning records; None compiles with default schedules.
        pinned: schedules to use whatever the records say.

    Returns:
        what an executable is made of; its `report` says how many kernels are tuned, fell back or
        are untuned.

    Raises:
        ModelError: `require_tuned` and something was never tuned; the model is larger than the
            target's memory; or a precision the target's kernels do not have.
        TargetError: models cannot run on this target.
        CodegenError: a schedule could not be turned into code.
    """
    backend = backend_of(target)  # before anything is scheduled for what cannot run it
    backend.check_chips(target, options.chips)
    if options.updates:
        graph = with_updates(graph, options.updates)
    lowered = scheduled(graph, target, options.precision, options.bits)
    if backend.falls_back:
        _check_size(lowered, target, options.chips)
    chooser = Schedules(target, database, options, pinned).chooser(lowered)
    recipe = fastest_recipe(lowered, chooser, options.arrange, options.chips)
    return replace(recipe, source=options.source)


def fastest_recipe(
    lowered: Graph, chooser: ScheduleChooser, arrange: Arrange = plan_arena, chips: int = 1
) -> Recipe:
    """The recipe of a model as kernels; of several assignments of schedules the fastest."""
    target, backend = chooser.target, backend_of(chooser.target)

    def assembled(changed: Mapping[Workload, Config]) -> Recipe:
        settled, kernels = _settled(lowered, chooser.preferring(changed))
        recipe = assemble(settled, kernels, target, chooser.threads, arrange)
        return replace(recipe, chips=chips) if chips > 1 else recipe

    others: list[Choices] = []
    if backend.falls_back and not chooser.measured_only:
        chooser = chooser.preferring(between_kernels(lowered, chooser))
        others = assignments(lowered, chooser, backend)
    return fastest([{}, *others], assembled, backend) if others else assembled({})


def scheduled(
    graph: Graph,
    target: Target,
    precision: str = "fp32",
    bits: str = "any",
    *,
    bodies: bool = True,
) -> Graph:
    """The kernels of a model on a target.

    Kernels without a schedule are on the host, and so are loops and branches without `bodies`.
    Errors as `build`.
    """
    backend = backend_of(target)
    if backend.falls_back:
        backend.check(target)
    return apply(graph, passes_for(target, precision, bits, bodies=bodies))


def _check_size(graph: Graph, target: Target, chips: int) -> None:
    tensors = device_tensors(graph) | graph.constants.keys()
    needed = sum(graph.info(name).nbytes for name in tensors if graph.info(name).known)
    backend_of(target).check_size(target, graph, needed, chips)


def _settled(
    graph: Graph, chooser: ScheduleChooser
) -> tuple[Settled, dict[tuple[Workload, Config], Compiled]]:
    """Schedules and code; where a family falls back, kernels without code get other schedules, and
    those that have none go to the host."""
    turns: dict[Workload, Iterator[Config]] = {}
    most = len(_computed(graph)) * (MOST_TRIED + 1) + 1
    rounds = Rounds(f"giving kernels of '{graph.title}' other schedules or to the host", most)
    while True:
        rounds.another()
        refused: dict[Workload, Config] = {}
        unfit: frozenset[Workload] = frozenset()
        try:
            settled = share_tables(settle(graph, chooser), chooser)
            kernels = compile_kernels(settled, chooser.target, refused)
            if not refused:
                return settled, kernels
            error = CodegenError(f"no code came of {', '.join(sorted(w.key for w in refused))}")
        except UnconvertibleError as stuck:
            unfit, error = stuck.workloads, stuck
        if not backend_of(chooser.target).falls_back or not _computed(graph) & {*refused, *unfit}:
            raise error
        others: dict[Workload, Config] = {}
        for workload, config in refused.items():
            if workload not in turns:
                turns[workload] = others_of(workload, chooser.target, config)
            if (other := next(turns[workload], None)) is not None:
                others[workload] = other
        chooser = chooser.with_choices(others)
        if unfit := unfit | (refused.keys() - others.keys()):
            graph = apply(graph, (FallBack(chooser.target, unfit),))


def _computed(graph: Graph) -> set[Workload]:
    return {node.workload for node in graph.nodes if node.workload is not None}


def compile_kernels(
    settled: Settled, target: Target, refused: dict[Workload, Config] | None = None
) -> dict[tuple[Workload, Config], Compiled]:
    """Code of every distinct (workload, configuration).

    Args:
        refused: takes workloads that no code came of, and by which configuration, where the
            target's family can fall back.
    """
    backend = backend_of(target)
    compiled: dict[tuple[Workload, Config], Compiled] = {}
    start = time.perf_counter()
    for option in (o for inner in settled.every() for o in inner.options.values()):
        if option.workload is not None and option.config is not None:
            key = (option.workload, option.config)
            if key not in compiled:
                begun = time.perf_counter()
                try:
                    compiled[key] = backend.compile(option.workload, target, option.config)
                except (*WITHOUT_CODE, WorkloadError):
                    if refused is None or not backend.falls_back:
                        raise
                    refused[option.workload] = option.config
                took = (time.perf_counter() - begun) * 1e3
                _LOG.debug("code of %s (%s): %.1f ms", *key, took)
    took = time.perf_counter() - start
    _LOG.info("code of %d kernels for %s: %.2f s", len(compiled), target.name, took)
    return compiled


def require_tuned(graph: Graph, chooser: ScheduleChooser) -> None:
    """Raise `ModelError` if no search found the schedule of a workload of the graph."""
    missing = {
        node.workload.key: chooser.best(node.workload).origin
        for inner in (graph, *(inside for inside, _ in graph.inside()))
        for node in inner.nodes
        if node.workload is not None and not chooser.best(node.workload).origin.is_tuned
    }
    if missing:
        raise ModelError(
            f"{len(missing)} workloads of '{graph.title}' have no schedule that a search found "
            f"with these threads ({counted(Counter(missing.values()))}), the first is "
            f"'{next(iter(missing))}'; tune the model with more --trials, or leave out "
            "--require-tuned"
        )
