"""Which kernels of a compiled model were not tuned, why, and the command that tunes them.

A kernel runs a schedule that no search of its own found for one of few reasons: there is no
database, it was never tuned, too little was tried to call it a search, or it was tuned for
something else: other threads, another processor, or by an older version. What is on record of it
says which.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilesmith.search_space.results.origin import SEARCH, Origin
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.search_space.workloads.workload import Workload

if TYPE_CHECKING:
    from tilesmith.compiler.recipe.program import Recipe
    from tilesmith.compiler.recipe.variants import VaryingRecipe
    from tilesmith.jobs.requests.request import Request, Resolved
    from tilesmith.records import Best, Database

_CONVERSION = "layout_transform"


@dataclass(frozen=True)
class Untuned(JsonObject):
    """A workload without a schedule of its own.

    Attributes:
        workload: its key.
        kernels: how many kernels of the model it is.
        schedule: the `Origin` of what they run.
        why: a phrase.
    """

    workload: str
    kernels: int
    schedule: str
    why: str

    def __str__(self) -> str:
        times = f" ({self.kernels} times)" if self.kernels > 1 else ""
        return f"{self.workload}{times}: {self.schedule}; {self.why}"


def untuned_in(
    recipe: "Recipe | VaryingRecipe", asked: "Resolved", sizes: Mapping[str, int] | None = None
) -> tuple[Untuned, ...]:
    """The workloads that were not tuned, those that most kernels are first.

    Args:
        sizes: those that kernels are tuned at, of a model whose sizes vary.
    """
    kernels = Counter(_kernels(recipe, sizes or {}))
    if not kernels:
        return ()
    if asked.database is None:
        return _sorted(Untuned(*kernel, _unrecorded(kernel[2])) for kernel in _flat(kernels))
    from tilesmith.records.database import Database

    with Database.open(asked.database, create=False) as opened:
        known = _known(opened, [key for key, _ in kernels])
    return _sorted(
        Untuned(key, count, origin, _why(known.get(key, []), asked, origin))
        for key, count, origin in _flat(kernels)
    )


def tuning_command(asked: "Request") -> str:
    """The command line that tunes a model as it was asked to be compiled."""
    from tilesmith.jobs.requests.varying import option_words
    from tilesmith.jobs.subjects.subject import subject_words
    from tilesmith.records.schema.urls import without_password
    from tilesmith.search_space.hardware.target import HOST

    words = ["tilesmith", "tune", *subject_words(asked.subject)]
    words += ["--target", str(asked.target)] if asked.target != HOST else []
    if asked.database is not None:
        words += ["--database", without_password(str(asked.database))]
    words += ["--threads", str(asked.threads)] if asked.threads not in (None, 1) else []
    return shlex.join([*words, *option_words(asked)])


def _flat(kernels: Counter[tuple[str, str]]) -> Iterable[tuple[str, int, str]]:
    return ((key, count, origin) for (key, origin), count in kernels.items())


def _sorted(untuned: Iterable[Untuned]) -> tuple[Untuned, ...]:
    return tuple(sorted(untuned, key=lambda one: (-one.kernels, one.workload)))


def _kernels(
    recipe: "Recipe | VaryingRecipe", sizes: Mapping[str, int]
) -> Iterable[tuple[str, str]]:
    """Workload and origin of every kernel that is not tuned, at the sizes it would be tuned at."""
    from tilesmith.compiler.recipe.program import Recipe, kernels_of
    from tilesmith.compiler.recipe.variants import KernelPart

    if isinstance(recipe, Recipe):
        pairs = [(step.workload, step.origin) for step in kernels_of(recipe.steps)]
    else:
        parts = [part for variant in recipe.variants for part in variant.parts]
        pairs = [
            (Workload.parse(part.workload).at(sizes).key, part.origin)
            for part in parts
            if isinstance(part, KernelPart)
        ]
    return [(k, o) for k, o in pairs if o != Origin.SEARCHED and k.split()[0] != _CONVERSION]


def _known(database: "Database", keys: Sequence[str]) -> "dict[str, list[Best]]":
    """What is on record of each workload, whatever it was tuned for."""
    bests: dict[str, list[Best]] = {}
    for best in database.overview(workloads=sorted(set(keys))):
        bests.setdefault(best.record.workload_key, []).append(best)
    return bests


def _unrecorded(origin: str) -> str:
    """Why a workload has no schedule of its own where there is no database."""
    if origin == Origin.UNMEASURED:
        return "there is no database"
    return "a pack has it, of another machine or shape; there is no database"


def _why(known: "Sequence[Best]", asked: "Resolved", origin: str) -> str:
    """Why what is on record was not taken."""
    mine = asked.target.identity
    here = [best for best in known if best.record.target_identity == mine]
    same = [best for best in here if best.record.threads == asked.threads]
    if stale := [best for best in same if best.stale]:
        return f"tuned, but {', '.join(stale[0].stale_because) or 'by another version'}"
    if same and origin == Origin.MEASURED:
        return f"fewer than {SEARCH} configurations were tried beside its default"
    if same:
        return "tuned in other layouts than this model has around it"
    if here:
        counts = sorted({best.record.threads for best in here})
        plural = "" if counts == [1] else "s"
        return f"tuned for {_listed(counts)} thread{plural}, not for {asked.threads}"
    if others := sorted({best.record.target_identity for best in known}):
        what = "another processor" if asked.target.name in _names(others) else "another target"
        return f"tuned for {what} ({_listed(others)}), not for {mine}"
    if origin == Origin.ELSEWHERE:
        return "never tuned here; a pack has it, of another machine or shape"
    return "never tuned"


def _names(identities: Iterable[str]) -> set[str]:
    return {identity.rpartition("-")[0] for identity in identities}


def _listed(values: Sequence[object]) -> str:
    shown = ", ".join(map(str, values[:4]))
    return f"{shown} and {len(values) - 4} more" if len(values) > 4 else shown
