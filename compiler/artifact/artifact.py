"""The artifact: a compiled model as one `.tsm` file, whether its sizes vary or not.

A zip archive, stored without compression:

    manifest.json      format version, name, target, threads, tensors, steps, report
    constants.bin      packed weights, from a page on
    code/N.o           code objects
    host/N.onnx        host nodes
    sha256             digest of the names, sizes and checksums of all of these

The manifest of a model whose sizes vary holds `sizes` and `variants`, and formulas where others
have numbers: `"batch*sequence"`. Offsets in its arena are not stored: they are planned when a size
is first run.

Reading trusts nothing: members are read by the names above only (nothing is ever extracted to
disk), none may be compressed or overlap another, so that reading never takes more memory than the
file has bytes; what was changed since it was written is refused by its digest, and whatever does
not fit is refused with a sentence (`reading`, `steps`, `variants`). The digest finds accidents and
edits, not forgery: the code inside runs natively, as a shared library's does;
`compiler.artifact.signature` says whose it is.

Invariants: `read_recipe(write_artifact(r))` equals `r`, for every recipe; equal recipes are
written as equal bytes (no time or host of writing is in them).
"""

import io
import zipfile
from pathlib import Path

from tilesmith.compiler.artifact import signature
from tilesmith.compiler.artifact.artifact_file import Members, write_archive, write_members
from tilesmith.compiler.artifact.manifest import manifest_of, manifest_text
from tilesmith.compiler.artifact.variants import Reader
from tilesmith.compiler.recipe.program import HostStep, Recipe
from tilesmith.compiler.recipe.variants import HostPart, VaryingRecipe
from tilesmith.search_space.support.errors import ModelError, TargetError, TilesmithError
from tilesmith.search_space.support.files import ending


def write_artifact(recipe: Recipe | VaryingRecipe, path: Path) -> None:
    """Write a recipe; a file appears whole or not at all, a device or pipe is written into.

    Raises:
        InputError: the path cannot be written.
        JobError: the disk is full.
    """
    write_members(path, *_members(recipe))


def artifact_bytes(recipe: Recipe | VaryingRecipe) -> bytes:
    """What `write_artifact` writes."""
    stream = io.BytesIO()
    write_archive(stream, *_members(recipe))
    return stream.getvalue()


def _members(recipe: Recipe | VaryingRecipe) -> Members:
    manifest = manifest_text(manifest_of(recipe))
    if isinstance(recipe, Recipe):
        protos = [step.proto for step in recipe.steps if isinstance(step, HostStep)]
        return manifest, recipe.pieces(), recipe.codes, protos
    parts = (part for v in recipe.variants for part in (*v.prologue, *v.parts))
    hosts = [part.proto for part in parts if isinstance(part, HostPart)]
    return manifest, [recipe.constants], recipe.codes, hosts


def read_artifact(path: Path | bytes) -> Recipe:
    """The recipe of a model whose sizes do not vary; errors as `read_recipe`, and for others."""
    recipe = read_recipe(path)
    if isinstance(recipe, VaryingRecipe):
        name = "in memory" if isinstance(path, bytes) else path.name
        raise ModelError(
            f"artifact '{name}' is of a model whose sizes vary; load it with tilesmith.load"
        )
    return recipe


def read_recipe(
    path: Path | bytes, *, mapped: bool = True, trusted_key: str | Path | None = None
) -> Recipe | VaryingRecipe:
    """Read a recipe.

    Args:
        path: of its file; or its bytes, which this process has made or verified.
        mapped: whether its weights may stay in the file (`compiler.artifact.artifact_file`).
        trusted_key: the public key that has to have signed the file, whose weights are then read
            as they were verified; None: the environment's, if it names one.

    Raises:
        ModelError: the file is missing, damaged, no artifact, of a newer format, or not signed so.
    """
    if isinstance(path, bytes):
        with zipfile.ZipFile(io.BytesIO(path)) as archive:
            return Reader(archive, "in memory", len(path), mapped).recipe()
    if not path.exists():
        raise ModelError(f"artifact '{path}' does not exist")
    key = signature.trusted_key(trusted_key)
    try:
        if key is not None:
            content = signature.verified(path, key)
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                return Reader(archive, path.name, len(content), mapped=False).recipe()
        with zipfile.ZipFile(ending(path)) as archive:
            return Reader(archive, path.name, path.stat().st_size, mapped).recipe()
    except OSError as error:
        raise ModelError(f"artifact '{path}' cannot be read: {error.strerror}") from error
    except TilesmithError as error:
        if isinstance(error, TargetError):
            raise ModelError(f"artifact '{path}' is damaged: {error}") from error
        raise
    except Exception as error:  # a zip, JSON or field that is not what it should be
        raise ModelError(
            f"'{path}' is not a compiled model, or it is damaged "
            f"({type(error).__name__}: {' '.join(str(error).split())[:120]})"
        ) from error
