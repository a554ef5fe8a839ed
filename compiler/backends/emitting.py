"""`Emitting`: executables that can be written as libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tilesmith.compiler.backends.shipping import (
    Kind,
    Library,
    LibraryRequest,
    Shippable,
    Weights,
    emitter_of,
)


class _HasRecipe(Protocol):
    @property
    def recipe(self) -> Shippable: ...


class Emitting:
    """What has a recipe; see the module's docstring."""

    def emit_library(
        self: _HasRecipe,
        path: str | Path,
        kind: Kind = "library",
        *,
        weights: Weights = "inside",
        prefix: str = "",
    ) -> Library:
        """Write the model as a library for programs without Python, a C header beside it.

        Args:
            path, kind, weights, prefix: as `LibraryRequest`.

        Raises:
            TargetError: the target's models are simulated here.
            ModelError: parts of it run on the host, or it is a model at one of many sizes.
            DependencyError: nothing here links shared libraries.
            InputError, JobError: a file cannot be written, or linking fails.
        """
        request = LibraryRequest(Path(path), kind, weights, prefix)
        request.check()
        return emitter_of(self.recipe.target).emit(self.recipe, request)
