"""Schedules chosen for the model, not for the kernel alone, where a target can tell beforehand.

On an accelerator a tensor that stays on chip costs nothing to store and load, so the schedule that
is best alone (it may have paid to store in long rows, or moved rows between partitions) need not be
the one the model wants. Three assignments are compared whole: every kernel's best alone, its best
beside neighbours that keep activations on chip, and its default. Invariant: the model is never
slower than with defaults, or with the best alone, as far as the target can tell.
"""

from collections.abc import Callable, Mapping

from tilesmith.codegen.programs.structures import inside_of
from tilesmith.compiler.backends.backend import Backend
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.recipe.program import Recipe
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

RIVALS = 6
"""Records of a workload that are compared, the fastest first; its default besides."""

Choices = dict[Workload, Config]


def between_kernels(graph: Graph, chooser: ScheduleChooser) -> Choices:
    """Untuned schedules that differ between kernels from what they are alone: rows that neighbours
    keep on chip come in no longer pieces. A model of one kernel has no neighbours."""
    kernels = [n.workload for n in graph.nodes if n.workload is not None]
    if len(kernels) < 2:
        return {}
    choices: Choices = {}
    for workload in dict.fromkeys(kernels):
        best = chooser.best(workload)
        config = inside_of(workload, chooser.target)
        if best.origin is Origin.UNMEASURED and config != best.config:
            choices[workload] = config
    return choices


def assignments(graph: Graph, chooser: ScheduleChooser, backend: Backend) -> list[Choices]:
    """Schedules to compare in the whole model, beside every kernel's best alone.

    Empty where a kernel costs in a model what it costs alone.
    """
    target = chooser.target
    inside: Choices = {}
    default: Choices = {}
    for workload in dict.fromkeys(n.workload for n in graph.nodes if n.workload is not None):
        usual = inside_of(workload, target)
        alone = chooser.best(workload).config
        rivals = [alone, usual, *_recorded(workload, chooser)]
        rivals = [config for config in dict.fromkeys(rivals) if config in chooser.space(workload)]
        if len(rivals) == 1:
            continue
        results = backend.measure_in_model(workload, target, rivals)
        if results is None:
            return []
        best = _fastest(rivals, results)
        if best not in (None, alone):
            inside[workload] = best
        if usual != alone:
            default[workload] = usual
    return [choices for choices in (inside, default) if choices]


def _fastest(rivals: list[Config], results: list[MeasureResult]) -> Config | None:
    """The first of the fastest; None if none of them works."""
    times = [(r.latency, place) for place, r in enumerate(results) if r.latency is not None]
    return rivals[min(times)[1]] if times else None


def _recorded(workload: Workload, chooser: ScheduleChooser) -> list[Config]:
    if chooser.database is None:
        return []
    records = chooser.database.top(workload, chooser.target, threads=chooser.threads, limit=RIVALS)
    return [record.config for record in records if record.latency is not None]


def fastest(
    candidates: list[Mapping[Workload, Config]],
    build: Callable[[Mapping[Workload, Config]], Recipe],
    backend: Backend,
) -> Recipe:
    """The recipe of the assignment that is fastest in the whole model; the first among equals."""
    recipes = [build(choices) for choices in candidates]
    seconds = [backend.estimate_model(recipe) or 0.0 for recipe in recipes]
    return recipes[min(range(len(recipes)), key=seconds.__getitem__)]
