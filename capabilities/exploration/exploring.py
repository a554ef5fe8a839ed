"""The Python API's search for hardware, as the command `explore` has it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from tilesmith.capabilities.exploration.request import Budget, ExploreRequest
from tilesmith.jobs.keywords import takes
from tilesmith.search_space.hardware.target import FactValue, Target

if TYPE_CHECKING:
    from tilesmith.capabilities.exploration.report import Exploration


class AskedOfExploration(TypedDict, total=False):
    """What a search for hardware may be told; see `ExploreRequest`."""

    budget: Budget
    at_most: float | None
    points: int
    confirm: int
    precision: str
    shapes: Mapping[str, tuple[int, ...]]
    settings: Mapping[str, str | FactValue]
    seed: int
    jobs: int
    workers: str


@takes(AskedOfExploration)
def explore(
    target: str | Target,
    vary: Mapping[str, str | float | Sequence[str | float]],
    models: str | Path | Sequence[str | Path] = (),
    operators: str | Sequence[str] = (),
    **asked: Unpack[AskedOfExploration],
) -> Exploration:
    """Search for hardware: vary numbers of a target, and weigh models' latency against its cost.

        found = ts.explore("trn1", {"sbuf.mib": "12:96"}, models="model.onnx")
        found.front[0].settings, found.front[0].latency_us

    Args:
        target: where the search begins.
        vary: by name of a number its values: "12:96" (doubling), "12:96:5" (five, evenly by ratio),
            or several.
        models, operators: what is to run fast: files, and texts such as "matmul m=512 n=512 k=512".
        asked: `budget` ("area" or "power"), `at_most` of it, `points`, `confirm`, `precision`,
            `shapes`, `settings`, `seed`, `jobs` and `workers`, as the command `explore`.

    Raises:
        InputError: models, variations or the budget are wrong, or nothing meets the limit.
        JobError: workers failed.
    """
    from tilesmith.capabilities.exploration.job import explore as search

    texts = tuple(f"{name}={_values(values)}" for name, values in vary.items())
    files = (models,) if isinstance(models, str | Path) else models
    named = (operators,) if isinstance(operators, str) else tuple(operators)
    asked = {"confirm": 24, "jobs": len(os.sched_getaffinity(0)), **asked}
    return search(ExploreRequest(target, texts, tuple(map(str, files)), named, **asked))


def _values(values: str | float | Sequence[str | float]) -> str:
    if isinstance(values, str | int | float):
        return str(values)
    return ",".join(map(str, values))
