"""`build`: from a graph to an executable, with schedules from a tuning database.

    graph -> simplify -> to_kernels -> settle (schedules, layouts) -> compile -> assemble ->
    Executable

`extract_tasks` stops after the kernels: what a tuner has to tune.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from compiler.assembly import assemble
from compiler.backend import Compiled, backend_of
from compiler.executable import Executable
from compiler.graph import Graph
from compiler.options import Chooser, Records
from compiler.pipeline import simplify, to_kernels
from compiler.settlement import Settled, settle
from search_space.config import Config
from search_space.errors import ModelError
from search_space.target import Target
from search_space.workload import Workload


@dataclass(frozen=True)
class ModelTask:
    """A distinct workload of a model and how often the model runs it."""

    workload: Workload
    weight: int


def prepared(graph: Graph) -> Graph:
    """The graph as kernels, before schedules and layouts are chosen."""
    return to_kernels(simplify(graph))


def extract_tasks(graph: Graph) -> tuple[ModelTask, ...]:
    """The distinct workloads of a model, in the order it first runs them."""
    counts = Counter(node.workload for node in prepared(graph).nodes if node.workload is not None)
    return tuple(ModelTask(workload, weight) for workload, weight in counts.items())


def build(
    graph: Graph,
    target: Target,
    database: Records | None = None,
    threads: int = 1,
    require_tuned: bool = False,
    source: str = "",
) -> Executable:
    """Compile a model.

    Args:
        graph: as imported.
        target: what to compile for; its family decides the backend.
        database: tuning records; None compiles with default schedules.
        threads: how many threads run each kernel.
        require_tuned: refuse a model with a workload that was never tuned, and choose among
            measured layouts only.
        source: path of the model's file, to be remembered.

    Returns:
        an executable; its `report` says how many kernels are tuned, fell back or are untuned.

    Raises:
        ModelError: `require_tuned` and something was never tuned.
        TargetError: models cannot run on this target, or not on this machine.
        CodegenError: a schedule could not be turned into code.
    """
    backend_of(target)  # before anything is scheduled for a machine that cannot run it
    lowered = prepared(graph)
    chooser = Chooser(target, database, threads, measured_only=require_tuned)
    if require_tuned:
        _require_tuned(lowered, chooser)
    settled = settle(lowered, chooser)
    recipe = assemble(settled, compile_kernels(settled, target), target, threads)
    return Executable(replace(recipe, source=source))


def compile_kernels(settled: Settled, target: Target) -> dict[tuple[Workload, Config], Compiled]:
    """Code of every distinct (workload, configuration)."""
    backend = backend_of(target)
    compiled: dict[tuple[Workload, Config], Compiled] = {}
    for option in settled.options.values():
        if option.workload is not None and option.config is not None:
            key = (option.workload, option.config)
            if key not in compiled:
                compiled[key] = backend.compile(option.workload, target, option.config)
    return compiled


def _require_tuned(graph: Graph, chooser: Chooser) -> None:
    missing = [
        node.workload.key
        for node in graph.nodes
        if node.workload is not None
        and chooser.best(node.workload).origin in ("fallback", "default")
    ]
    if missing:
        raise ModelError(
            f"{len(set(missing))} workloads of '{graph.name}' were never tuned with these threads, "
            f"the first is '{missing[0]}'; tune the model or leave out --require-tuned"
        )
