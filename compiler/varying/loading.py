"""Artifacts of either kind, loaded: the one place that looks which kind a file is."""

from __future__ import annotations

from pathlib import Path

from tilesmith.compiler.artifact.artifact import VARYING_FORMAT, Reader, read_by
from tilesmith.compiler.recipe.program import Recipe
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.varying.artifact import varying_recipe
from tilesmith.compiler.varying.executable import VaryingExecutable
from tilesmith.compiler.varying.recipe import VaryingRecipe


def load(
    path: str | Path, *, mapped: bool = True, trusted_key: str | Path | None = None
) -> Executable | VaryingExecutable:
    """Read what `save` wrote.

    Args:
        mapped: whether weights may stay in the file, shared by all who load it, as long as nobody
            overwrites it in place.
        trusted_key: as `compiler.artifact.read_by`.

    Raises:
        ModelError: missing, damaged, not an artifact, of a newer format, or not signed so.
        TargetError: it needs an instruction set this machine does not have.
    """
    recipe = read_by(Path(path), recipe_in, mapped=mapped, trusted_key=trusted_key)
    return VaryingExecutable(recipe) if isinstance(recipe, VaryingRecipe) else Executable(recipe)


def recipe_in(reader: Reader) -> Recipe | VaryingRecipe:
    """What an artifact of either kind holds."""
    return varying_recipe(reader) if reader.version == VARYING_FORMAT else reader.recipe()
