"""Models as libraries for programs without Python: what `compile --emit` and `emit_library` do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tilesmith.jobs.compiling import arranging, build_recipe
from tilesmith.jobs.databases import here
from tilesmith.jobs.reports import CompileReport
from tilesmith.jobs.request import Asked, Request
from tilesmith.jobs.subjects import is_artifact
from tilesmith.jobs.untuned import untuned_in
from tilesmith.search_space.errors import InputError, ModelError
from tilesmith.search_space.target import HOST, Target

if TYPE_CHECKING:
    from tilesmith.compiler.artifact import Reader
    from tilesmith.compiler.memory import Arrange
    from tilesmith.compiler.program import Recipe
    from tilesmith.compiler.shipping import Kind, Library, LibraryRequest, Weights
    from tilesmith.jobs.request import Resolved
    from tilesmith.jobs.subjects import Model


def emit_library(
    model: Model,
    output: str | Path,
    target: str | Target = HOST,
    database: str | Path | None = None,
    *,
    kind: Kind = "library",
    weights: Weights = "inside",
    prefix: str = "",
    require_tuned: bool = False,
    **asked: Unpack[Asked],
) -> Library:
    """Compile a model, for this machine or another, as a library for programs without Python.

    Args:
        model: as `compile` takes it, or the path of an artifact, whose own target counts.
        output: where to write it; a C header lies beside it, under the same name with `.h`.
        kind: "library" (shared), "object" (relocatable), or "archive" (a static library).
        weights: "inside", or in a "file" beside it (`.weights`), which processes map and share.
        prefix: what the names of its functions begin with; "": the model's name.
        target, database, require_tuned, asked: as `compile`.

    Raises:
        TargetError: models run on the target by simulation alone.
        InputError: sizes vary; a file cannot be written; unknown kind or prefix.
        ModelError: parts of the model run on the host.
        DependencyError: nothing here links shared libraries for the target.
        CodegenError, JobError: code generation or linking fails, or the disk is full.
    """
    from tilesmith.compiler.shipping import LibraryRequest

    request = LibraryRequest(Path(output), kind, weights, prefix)
    resolved = Request(model, target, here(database), **asked).resolved()
    report = emitted(resolved, request, require_tuned)
    assert report.library is not None
    return report.library


def emitted(
    asked: Resolved,
    request: LibraryRequest,
    require_tuned: bool = False,
    optimal_memory: bool = False,
) -> CompileReport:
    """Compile a model, or take a compiled one, and write it as a library.

    Args:
        asked: a model, or the path of an artifact, whose own target counts.
        optimal_memory: as `compile_to`.

    Raises:
        TargetError: models run on the target by simulation alone.
        InputError: sizes vary; a file cannot be written.
        ModelError: parts of the model run on the host.
        DependencyError: nothing here links shared libraries for the target.
        JobError: linking fails, or the disk is full.
    """
    from tilesmith.compiler.backend import backend_of

    start = time.perf_counter()
    request.check(*[str(s) for s in (asked.subject, asked.database) if isinstance(s, str | Path)])
    memory = arranging(optimal_memory)
    recipe = _recipe(asked, require_tuned, memory)
    library = backend_of(recipe.target).emit_library(recipe, request)
    report = recipe.report
    return CompileReport(
        tuned=report.tuned,
        nearest=report.fallback,
        default=report.default,
        stale=report.stale,
        host_operators=report.host_nodes,
        conversions=report.conversions,
        artifact=str(request.output),
        compile_s=time.perf_counter() - start,
        peak_bytes=report.peak_bytes,
        precision=report.precision,
        memory=memory.largest if memory and memory.found else None,
        untuned=() if is_artifact(asked.subject) else untuned_in(recipe, asked),
        library=library,
    )


def _recipe(asked: Resolved, require_tuned: bool, arrange: Arrange | None) -> Recipe:
    from tilesmith.compiler.artifact import read_by
    from tilesmith.compiler.backend import backend_of
    from tilesmith.compiler.program import Recipe

    if is_artifact(asked.subject):
        return read_by(Path(str(asked.subject)), _fixed)
    backend_of(asked.target).check_emits(asked.target)
    found = build_recipe(asked, require_tuned, arrange)
    if isinstance(found, Recipe):
        return found
    size = found.recipe.sizes[0]
    raise InputError(
        f"'{size.name}' is given a range, and a library is for one size; bind it, for example "
        f"--shape {size.name}={size.high}"
    )


def _fixed(reader: Reader) -> Recipe:
    """What is in an artifact; `ModelError` where its sizes vary."""
    from tilesmith.compiler.artifact import VARYING_FORMAT

    if reader.version == VARYING_FORMAT:
        raise ModelError(
            f"artifact '{reader.name}' is of a model whose sizes vary, and a library is for one "
            "size; compile the model itself, its sizes bound with --shape"
        )
    return reader.recipe()
