"""Models as libraries for programs without Python: what `compile --emit` and `emit_library` do."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tilesmith.jobs.compilation.compiling import arranging, build_recipe
from tilesmith.jobs.compilation.reports import CompileReport
from tilesmith.jobs.compilation.untuned import Untuned, untuned_in
from tilesmith.jobs.databases import here
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.requests.request import Asked, Request
from tilesmith.jobs.subjects.subject import is_artifact
from tilesmith.search_space.hardware.target import HOST, Target

if TYPE_CHECKING:
    from tilesmith.compiler.backends.shipping import Kind, Library, LibraryRequest, Weights
    from tilesmith.compiler.recipe.memory import Arrange
    from tilesmith.compiler.recipe.program import Recipe
    from tilesmith.compiler.recipe.variants import VaryingRecipe
    from tilesmith.jobs.requests.request import Resolved
    from tilesmith.jobs.subjects.subject import Model


@takes(Asked)
def emit_library(
    model: "Model",
    output: str | Path,
    target: str | Target = HOST,
    database: str | Path | None = None,
    *,
    kind: "Kind" = "library",
    weights: "Weights" = "inside",
    prefix: str = "",
    require_tuned: bool = False,
    **asked: Unpack[Asked],
) -> "Library":
    """Compile a model, for this machine or another, as a library for programs without Python.

    Args:
        model: as `compile` takes it, or the path of an artifact, whose own target counts.
        output: where to write it; a C header lies beside it, `model.h` for model.so and libmodel.a.
        kind: "library" (shared), "object" (relocatable), or "archive" (a static library).
        weights: "inside", or in a "file" beside it (`.weights`), which processes map and share.
        prefix: what the names of its functions begin with; "": the model's name.
        target, database, require_tuned, asked: as `compile`.

    Raises:
        TargetError: models run on the target by simulation alone.
        InputError: a file cannot be written; unknown kind or prefix.
        ModelError: parts of the model run on the host; sizes are open and have no range.
        DependencyError: nothing here links shared libraries for the target.
        CodegenError, JobError: code generation or linking fails, or the disk is full.
    """
    from tilesmith.compiler.backends.shipping import LibraryRequest

    request = LibraryRequest(Path(output), kind, weights, prefix)
    resolved = Request(model, target, here(database), **asked).resolved()
    report = emitted(resolved, request, require_tuned)
    assert report.library is not None
    return report.library


def emitted(
    asked: "Resolved",
    request: "LibraryRequest",
    require_tuned: bool = False,
    optimal_memory: bool = False,
) -> CompileReport:
    """Compile a model, or take a compiled one, and write it as a library.

    Args:
        asked: a model, or the path of an artifact, whose own target counts.
        optimal_memory: as `compile_to`.

    Raises:
        TargetError: models run on the target by simulation alone.
        InputError: a file cannot be written.
        ModelError: parts of the model run on the host; sizes are open and have no range.
        DependencyError: nothing here links shared libraries for the target.
        JobError: linking fails, or the disk is full.
    """
    from tilesmith.compiler.backends.shipping import emitter_of

    start = time.perf_counter()
    request.check(*[str(s) for s in (asked.subject, asked.database) if isinstance(s, str | Path)])
    memory = arranging(optimal_memory)
    recipe = _recipe(asked, require_tuned, memory)
    library = emitter_of(recipe.target).emit(recipe, request)
    report = recipe.report
    return CompileReport(
        **report.counts,
        host_operators=report.host_nodes,
        conversions=report.conversions,
        artifact=str(request.output),
        compile_s=time.perf_counter() - start,
        peak_bytes=report.peak_bytes,
        precision=report.precision,
        memory=memory.largest if memory and memory.arenas else None,
        untuned=() if is_artifact(asked.subject) else _untuned(recipe, asked),
        library=library,
    )


def _untuned(recipe: "Recipe | VaryingRecipe", asked: "Resolved") -> tuple[Untuned, ...]:
    """As `untuned_in`, at the sizes that schedules are chosen for."""
    from tilesmith.compiler.recipe.program import Recipe
    from tilesmith.compiler.varying.sizes.regions import typical

    if isinstance(recipe, Recipe):
        return untuned_in(recipe, asked)
    return untuned_in(recipe, asked, typical(recipe.variants[-1].region))


def _recipe(
    asked: "Resolved", require_tuned: bool, arrange: "Arrange | None"
) -> "Recipe | VaryingRecipe":
    from tilesmith.compiler.artifact.artifact import read_recipe
    from tilesmith.compiler.backends.shipping import emitter_of

    if is_artifact(asked.subject):
        return read_recipe(Path(str(asked.subject)))
    emitter_of(asked.target)
    return build_recipe(asked, require_tuned, arrange)
