"""From model files to graphs, workloads, executables and artifacts, for the front door's jobs."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.jobs.in_model import Choices, pinned
from tilesmith.jobs.reports import CompileReport
from tilesmith.jobs.subjects import WeightedWorkload, is_model, workloads_of
from tilesmith.search_space.dtypes import to_numpy
from tilesmith.search_space.errors import InputError, ModelError
from tilesmith.search_space.files import check_output
from tilesmith.search_space.target import Target
from tilesmith.search_space.workload import shape_text

if TYPE_CHECKING:
    from tilesmith.compiler.executable import Executable
    from tilesmith.compiler.graph import Graph, Node
    from tilesmith.jobs.subjects import Model, Subject

Shapes = Mapping[str, tuple[int, ...]]

ARTIFACT_SUFFIX = ".tsm"


@dataclass(frozen=True)
class Parts:
    """What a subject comes to.

    Attributes:
        workloads: the distinct ones, weighted.
        notes: for the reader, what is left out of them.
        kernels: the model as kernels; None if the subject is no model.
    """

    workloads: list[WeightedWorkload]
    notes: tuple[str, ...] = ()
    kernels: Graph | None = None


def is_artifact(subject: Subject) -> bool:
    """Whether the subject is the path of a compiled model."""
    return isinstance(subject, str | Path) and str(subject).endswith(ARTIFACT_SUFFIX)


def parts_of(
    subject: Subject,
    shapes: Shapes | None,
    target: Target | None = None,
    precision: str = "fp32",
) -> Parts:
    """The distinct workloads of a model (or those given).

    Args:
        target: that models are compiled for; on accelerators, operators without a schedule are
            left out.
        precision: of the kernels of an fp32 model on an accelerator.

    Raises:
        ModelError: the model cannot be read, or none of its operators has a template.
    """
    if not is_model(subject):
        return Parts(workloads_of(subject))  # type: ignore[arg-type]
    from tilesmith.compiler.backend import backends
    from tilesmith.compiler.build import prepared, scheduled
    from tilesmith.compiler.onnx.importer import import_model

    graph = import_model(subject, shapes)  # type: ignore[arg-type]
    if target is not None and (target.family in backends or precision != "fp32"):
        graph = scheduled(graph, target, precision)
    else:
        graph = prepared(graph)
    counts = Counter(node.workload for node in graph.nodes if node.workload is not None)
    if not counts:
        raise ModelError(f"no operator of '{graph.name}' has a template; nothing to work on")
    host = Counter(host_operator(node) for node in graph.nodes if node.kind == "host")
    notes = tuple(f"{count} {name} on the host, not counted" for name, count in host.items())
    return Parts([WeightedWorkload(w, float(n)) for w, n in counts.items()], notes, graph)


def host_operator(node: Node) -> str:
    """What a host node computes: an ONNX operator, or one of ours that has no schedule here."""
    from tilesmith.compiler.host.nodes import REFERENCE

    return (
        str(node.attribute("workload")).split()[0] if node.operator == REFERENCE else node.operator
    )


def build_executable(
    model: Model,
    target: Target,
    database: str | Path | None,
    shapes: Shapes | None = None,
    threads: int = 1,
    require_tuned: bool = False,
    precision: str = "fp32",
) -> Executable:
    """Compile a model with a database's schedules (None: with defaults only)."""
    from tilesmith.compiler.build import build
    from tilesmith.compiler.onnx.importer import import_model

    graph = import_model(model, shapes)
    source = source_text(Path(model)) if isinstance(model, str | Path) else ""
    if database is None:
        return build(graph, target, None, threads, require_tuned, source, precision=precision)
    from tilesmith.records.database import Database

    with Database.open(str(database), create=False) as opened:

        def pins(kernels: Graph) -> Choices:
            return pinned(opened, kernels, target, threads)

        return build(graph, target, opened, threads, require_tuned, source, pins, precision)


def source_text(model: Path) -> str:
    """What an artifact remembers of its model's file: its name and what it held, not where."""
    with model.open("rb") as file:
        return f"{model.name} sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def executable_of(
    model: str | Path,
    target: Target,
    database: str | Path | None,
    shapes: Shapes | None = None,
    threads: int | None = None,
    precision: str = "fp32",
) -> Executable:
    """Load an artifact, or compile a model (by its suffix it is known which).

    Raises:
        InputError: an artifact for another number of threads, or other shapes, than asked for.
    """
    if not is_artifact(model):
        return build_executable(model, target, database, shapes, threads or 1, precision=precision)
    from tilesmith.compiler.executable import Executable

    loaded = Executable.load(model)
    if threads not in (None, loaded.recipe.threads):
        raise InputError(
            f"'{model}' was compiled for --threads {loaded.recipe.threads}; "
            f"compile the model again for {threads}"
        )
    fixed = {info.name: info.shape for info in loaded.inputs}
    for name, shape in (shapes or {}).items():
        if fixed.get(name) != tuple(shape):
            raise InputError(
                f"'{model}' was compiled for inputs of fixed shapes; compile the model again with "
                f"--shape {name}={shape_text(shape)}"
            )
    return loaded


def compile_to(
    model: str | Path,
    artifact: Path,
    target: Target,
    database: str | Path | None,
    shapes: Shapes | None = None,
    threads: int = 1,
    require_tuned: bool = False,
    precision: str = "fp32",
) -> CompileReport:
    """Compile a model and write the artifact; says what became of each operator."""
    from tilesmith.compiler.backend import backend_of, measures_models

    check_output(artifact, model, *([] if database is None else [database]))
    start = time.perf_counter()
    executable = build_executable(
        model, target, database, shapes, threads, require_tuned, precision
    )
    executable.save(artifact)
    report = executable.report
    simulated = None
    if measures_models(target, "simulator"):
        simulated = backend_of(target).simulate(executable.recipe)
    return CompileReport(
        tuned=report.tuned,
        nearest=report.fallback,
        default=report.default,
        stale=report.stale,
        host_operators=report.host_nodes,
        conversions=report.conversions,
        artifact=str(artifact),
        compile_s=time.perf_counter() - start,
        peak_bytes=report.peak_bytes,
        precision=report.precision,
        simulated=simulated,
    )


def random_inputs(executable: Executable, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Seeded inputs that fit: normal numbers, small positive integers, or flags."""
    rng = np.random.default_rng(seed)
    found: dict[str, NDArray[Any]] = {}
    for info in executable.inputs:
        dtype = to_numpy(info.dtype)
        if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
            found[info.name] = rng.integers(0, 2, info.dims).astype(dtype)
        else:
            found[info.name] = rng.standard_normal(info.dims).astype(dtype)
    return found
