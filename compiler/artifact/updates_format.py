"""Updated inputs in an artifact's manifest: pairs of names, and the size of the callers' region.

Invariant of what is read: every pair names an input and an output of one kind; the inputs that are
written where they are lie in their region one behind the other, as `areas.starts_of` places them,
and fill it: an address made of an offset in it is inside a caller's array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilesmith.compiler.recipe.areas import starts_of
from tilesmith.compiler.recipe.program import Recipe, TensorRef, Update


def caller_bytes(inputs: Sequence[TensorRef]) -> int:
    """Size of the region of arrays that are written where they are."""
    return starts_of([ref.info.nbytes for ref in inputs if ref.place.region == "caller"])[-1]


def updates_json(recipe: Recipe) -> dict[str, Any]:
    """What the manifest says of updates; nothing where there are none."""
    if not recipe.updates:
        return {}
    pairs = [[update.input, update.output] for update in recipe.updates]
    return {"updates": pairs, "caller_bytes": caller_bytes(recipe.inputs)}


def read_updates(
    manifest: Any,
    inputs: Sequence[TensorRef],
    outputs: Sequence[TensorRef],
    damaged: Callable[[str], Exception],
) -> tuple[Update, ...]:
    """The updates of a manifest, checked against inputs and outputs as read; raises `damaged`."""
    pairs = [(str(first), str(second)) for first, second in manifest.get("updates", [])]
    given = {ref.info.name: ref for ref in inputs}
    results = {ref.info.name: ref for ref in outputs}
    for name, result in pairs:
        if name not in given or result not in results:
            raise damaged(f"it updates '{name}' by '{result}'")
        before, after = given[name].info, results[result].info
        if (before.dtype, before.shape) != (after.dtype, after.shape) or not before.known:
            raise damaged(f"'{result}' is of another kind than '{name}', which it updates")
    unique = {name for name, _ in pairs}, {result for _, result in pairs}
    if min(map(len, unique)) < len(pairs):
        raise damaged("it updates an input twice, or by an output of another")
    placed = [given[name] for name, _ in pairs if given[name].place.region == "caller"]
    starts = starts_of([ref.info.nbytes for ref in placed])
    if tuple(ref.place.offset for ref in placed) != starts[:-1]:
        raise damaged("inputs that are written where they are lie elsewhere than expected")
    if manifest.get("caller_bytes", 0) != starts[-1]:
        raise damaged(f"caller_bytes is {manifest.get('caller_bytes')!r}; {starts[-1]} are updated")
    if len(placed) != sum(ref.place.region == "caller" for ref in inputs):
        raise damaged("an input lies with those that are updated, and is not")
    return tuple(Update(name, result) for name, result in pairs)
