"""From model files to graphs, workloads, executables and artifacts, for the front door's jobs."""

import hashlib
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.jobs.compilation.in_model import Choices, pinned
from tilesmith.jobs.compilation.reports import CompileReport, VariantReport
from tilesmith.jobs.compilation.untuned import untuned_in
from tilesmith.jobs.extras import required
from tilesmith.jobs.packs import with_packs
from tilesmith.jobs.requests.graphs import graph_of, updates_of
from tilesmith.jobs.requests.request import Request, Resolved
from tilesmith.jobs.subjects.subject import (
    WeightedWorkload,
    is_artifact,
    is_compiled,
    is_model,
    workloads_of,
)
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import InputError, ModelError
from tilesmith.search_space.support.files import check_output, ending
from tilesmith.search_space.workloads.workload import Workload

if TYPE_CHECKING:
    from tilesmith.compiler.backends.recorded import Records
    from tilesmith.compiler.driver.build import Pinned
    from tilesmith.compiler.graph.graph import Graph, Node
    from tilesmith.compiler.recipe.memory import Arrange
    from tilesmith.compiler.recipe.optimal_memory import OptimalMemory
    from tilesmith.compiler.recipe.program import Recipe
    from tilesmith.compiler.recipe.variants import VaryingRecipe
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.compiler.varying.executable import VaryingExecutable
    from tilesmith.jobs.requests.request import Shapes
    from tilesmith.jobs.requests.varying import Varying
    from tilesmith.search_space.expressions.sizes import Size


@dataclass(frozen=True)
class SubjectParts:
    """What a subject comes to.

    Attributes:
        workloads: the distinct ones, weighted.
        notes: for the reader, what is left out of them.
        kernels: the model as kernels; None if the subject is no model.
    """

    workloads: list[WeightedWorkload]
    notes: tuple[str, ...] = ()
    kernels: "Graph | None" = None


def parts_of(asked: Resolved) -> SubjectParts:
    """The distinct workloads of a model (or those given).

    On accelerators, operators without a schedule are left out.

    Raises:
        ModelError: the model cannot be read, or none of its operators has a template.
    """
    from tilesmith.compiler.backends.backend import backends

    if not is_model(asked.subject):
        if asked.precision != "fp32" and asked.target.family in backends:
            backends[asked.target.family].pipeline(asked.target, asked.precision)  # is there one?
        return SubjectParts(_with_bits(workloads_of(asked.subject), asked))  # type: ignore[arg-type]
    from tilesmith.compiler.driver.build import prepared, scheduled
    from tilesmith.jobs.requests.varying import varying_of

    varying = varying_of(asked.model, asked.shapes)
    if varying is not None and varying.declared.sizes:
        return _parts_of_sizes(varying, asked)
    graph = graph_of(asked.model, asked.shapes)
    if asked.target.family in backends or asked.precision != "fp32" or asked.bits != "any":
        graph = scheduled(graph, asked.target, asked.precision, asked.bits)
    else:
        graph = prepared(graph)
    counts = Counter(node.workload for node in graph.nodes if node.workload is not None)
    if not counts:
        raise ModelError(f"no operator of '{graph.title}' has a template; nothing to work on")
    host = Counter(host_operator(node) for node in graph.nodes if node.kind == "host")
    notes = tuple(f"{count} {name} on the host, not counted" for name, count in host.items())
    return SubjectParts([WeightedWorkload(w, float(n)) for w, n in counts.items()], notes, graph)


def _with_bits(workloads: list[WeightedWorkload], asked: Resolved) -> list[WeightedWorkload]:
    """Operators by name, with the bits that are asked for."""
    if asked.bits == "any":
        return workloads
    from tilesmith.compiler.backends.backend import backend_of
    from tilesmith.compiler.passes.same_bits import with_same_bits

    backend_of(asked.target).check_bits(asked.target, asked.bits)
    return [replace(one, workload=with_same_bits(one.workload)) for one in workloads]


def _parts_of_sizes(model: "Varying", asked: Resolved) -> SubjectParts:
    """The workloads at the sizes that schedules are chosen for."""
    from tilesmith.jobs.requests.varying import typical_graphs

    counts: Counter[Workload] = Counter()
    notes = []
    for graph, where in typical_graphs(model, asked):
        counts.update(node.workload for node in graph.nodes if node.workload is not None)
        notes.append(f"counted at {where}")
    return SubjectParts([WeightedWorkload(w, float(n)) for w, n in counts.items()], tuple(notes))


def host_operator(node: "Node") -> str:
    """What a host node computes: an ONNX operator, or one of ours that has no schedule here."""
    from tilesmith.compiler.host.nodes import REFERENCE

    return (
        str(node.attribute("workload")).split()[0] if node.operator == REFERENCE else node.operator
    )


def build_executable(
    asked: Resolved, require_tuned: bool = False, arrange: "Arrange | None" = None
) -> "Executable | VaryingExecutable":
    """Compile a model with a database's schedules (without one: with defaults only).

    Args:
        arrange: places activations; None: by first fit.
    """
    from tilesmith.compiler.recipe.program import Recipe
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.compiler.varying.executable import VaryingExecutable

    recipe = build_recipe(asked, require_tuned, arrange)
    return Executable(recipe) if isinstance(recipe, Recipe) else VaryingExecutable(recipe)


def build_recipe(
    asked: Resolved, require_tuned: bool = False, arrange: "Arrange | None" = None
) -> "Recipe | VaryingRecipe":
    """The same for any machine: what an executable is made of."""
    from tilesmith.compiler.driver.build import BuildOptions, Schedules, recipe_of
    from tilesmith.compiler.varying.build import build_varying
    from tilesmith.jobs.requests.varying import varying_of

    varying = varying_of(asked.model, asked.shapes)
    if asked.updates and varying is not None and varying.declared.sizes:
        raise InputError(
            f"input '{next(iter(asked.updates))}' is to be updated in place, which models whose "
            "sizes vary cannot do yet; give one size for each, or leave the update out"
        )

    def options() -> BuildOptions:  # once the model is read: it may not be there
        source = source_text(Path(asked.model)) if isinstance(asked.model, str | Path) else ""
        updates = {**updates_of(asked.model), **asked.updates}
        chosen = BuildOptions(
            asked.threads, asked.precision, require_tuned, source, updates, chips=asked.chips,
            bits=asked.bits,
        )  # fmt: skip
        return chosen if arrange is None else replace(chosen, arrange=arrange)

    def built(database: "Records | None", pins: "Pinned | None") -> "Recipe | VaryingRecipe":
        if varying is not None and varying.declared.sizes:
            tuned = asked.database is not None  # a pack is of few sizes
            schedules = Schedules(asked.target, database, options(), pins, tuned)
            return build_varying(varying.file, varying.declared, schedules)
        graph = graph_of(asked.model, asked.shapes)
        return recipe_of(graph, asked.target, database, options(), pins)

    if asked.database is None:
        return built(with_packs(None, asked.packs, asked.target), None)
    from tilesmith.records.database import Database

    with Database.open(asked.database, create=False) as opened:

        def pins(kernels: "Graph") -> Choices:
            return pinned(opened, kernels, asked.target, asked.threads)

        return built(with_packs(opened, asked.packs, asked.target), pins)


def build_fixed(asked: Resolved, require_tuned: bool = False) -> "Executable":
    """`build_executable` for one size of everything.

    Raises:
        InputError: a size is given a range.
    """
    from tilesmith.compiler.runtime.executable import Executable

    executable = build_executable(asked, require_tuned)
    if not isinstance(executable, Executable):
        size = executable.recipe.sizes[0]
        raise InputError(
            f"'{size.name}' is given a range, and this needs one size; write for example "
            f"--shape {size.name}={size.high}"
        )
    return executable


def source_text(model: Path) -> str:
    """What an artifact remembers of its model's file: its name and what it held, not where.

    Raises:
        ModelError: the file is missing or cannot be read.
    """
    try:
        with ending(model).open("rb") as file:
            return f"{model.name} sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except FileNotFoundError as error:
        raise ModelError(f"model file '{model}' does not exist") from error
    except OSError as error:
        raise ModelError(f"model file '{model}' cannot be read: {error.strerror}") from error


def executable_of(request: Request) -> "Executable | VaryingExecutable":
    """Load an artifact, take what is loaded, or compile a model (by its suffix it is known which).

    Raises:
        InputError: an artifact for another number of threads, or other shapes, than asked for.
    """
    asked = request.resolved()
    if not is_artifact(request.subject):
        return build_executable(asked)
    from tilesmith.compiler.varying.executable import VaryingExecutable, load
    from tilesmith.jobs.requests.varying import shape_words, sizes_for

    given = request.subject
    loaded = given if is_compiled(given) else load(str(given))
    if request.threads not in (None, loaded.recipe.threads):
        raise InputError(
            f"'{request.subject}' was compiled for --threads {loaded.recipe.threads}; "
            f"compile the model again for {request.threads}"
        )
    if isinstance(loaded, VaryingExecutable):
        sizes_for(loaded, asked.shapes)
        return loaded
    fixed = {info.name: info.shape for info in loaded.inputs}
    for name, shape in asked.shapes.items():
        if fixed.get(name) != tuple(shape):
            raise InputError(
                f"'{request.subject}' was compiled for inputs of fixed shapes; compile the model "
                f"again with --shape {shape_words({name: shape})[0]}"
            )
    return loaded


def at_one_size(executable: "Executable | VaryingExecutable", shapes: "Shapes") -> "Executable":
    """The executable at the sizes that `shapes` say, or in the middle of its ranges."""
    from tilesmith.compiler.varying.executable import VaryingExecutable
    from tilesmith.jobs.requests.varying import sizes_for

    if not isinstance(executable, VaryingExecutable):
        return executable
    inputs = {info.name for info in executable.inputs}
    ranged = any(isinstance(extent, tuple) for said in shapes.values() for extent in said) or any(
        len(said) == 2 for name, said in shapes.items() if name not in inputs
    )
    return executable.at(sizes_for(executable, {} if ranged else shapes))


def arranging(optimal_memory: bool) -> "OptimalMemory | None":
    """What searches for the smallest arena, if that is asked for.

    Raises:
        DependencyError: OR-tools is asked for, and not installed.
    """
    from tilesmith.compiler.recipe.optimal_memory import OptimalMemory

    if not optimal_memory:
        return None
    required("ortools", extra="ortools")
    return OptimalMemory()


def compile_to(
    asked: Resolved, artifact: Path, require_tuned: bool = False, optimal_memory: bool = False
) -> CompileReport:
    """Compile a model file and write the artifact; says what became of each operator.

    Args:
        optimal_memory: search for the smallest arena, and report how small one can be.

    Raises:
        DependencyError: OR-tools is asked for, and not installed.
    """
    from tilesmith.compiler.backends.backend import backend_of, measures_models
    from tilesmith.compiler.passes.integer_products import noting_unfolded
    from tilesmith.compiler.rewriting.graph_pass import observed
    from tilesmith.compiler.runtime.executable import Executable

    memory = arranging(optimal_memory)
    check_output(artifact, str(asked.model), *filter(None, [asked.database]))
    start = time.perf_counter()
    unfolded: dict[str, str] = {}
    with observed(noting_unfolded(unfolded)):
        executable = build_executable(asked, require_tuned, memory)
    executable.save(artifact)
    sizes, variants = _ranges_of(executable)
    typical = {} if isinstance(executable, Executable) else executable.typical
    report = executable.report
    simulated = None
    if isinstance(executable, Executable) and measures_models(asked.target, "simulator"):
        simulated = backend_of(asked.target).simulate(executable.recipe)
    return CompileReport(
        **report.counts,
        host_operators=report.host_nodes,
        conversions=report.conversions,
        artifact=str(artifact),
        compile_s=time.perf_counter() - start,
        peak_bytes=report.peak_bytes,
        precision=report.precision,
        simulated=simulated,
        host_runtimes=tuple(node.runtime for node in executable.host_nodes),
        sizes=sizes,
        variants=variants,
        unfolded=unfolded,
        memory=memory.largest if memory and memory.arenas else None,
        untuned=untuned_in(executable.recipe, asked, typical),
    )


def _ranges_of(
    executable: "Executable | VaryingExecutable",
) -> "tuple[tuple[Size, ...], tuple[VariantReport, ...]]":
    """Of a model whose sizes vary: its sizes, and what became of it in each region."""
    from tilesmith.compiler.runtime.executable import Executable

    if isinstance(executable, Executable):
        return (), ()
    recipe = executable.recipe
    variants = (VariantReport.of(variant.region, variant.report) for variant in recipe.variants)
    return recipe.sizes, tuple(variants)


def random_inputs(executable: "Executable | Graph", seed: int = 0) -> dict[str, NDArray[Any]]:
    """Seeded inputs that fit: normal numbers, small positive integers, or flags."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, NDArray[Any]] = {}
    for info in executable.inputs:
        if not info.known:
            raise InputError(
                f"input '{info.name}' of '{executable.title}' is of {info.dtype}, for which no "
                "random values are made; give it in a program: tilesmith.load(...).run(...)"
            )
        dtype = to_numpy(info.dtype)
        if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
            inputs[info.name] = rng.integers(0, 2, info.dims).astype(dtype)
        else:
            inputs[info.name] = rng.standard_normal(info.dims).astype(dtype)
    return inputs
