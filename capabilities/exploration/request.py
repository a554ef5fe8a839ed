"""What a search for hardware is asked for."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tilesmith.search_space.hardware.target import FactValue, Target

Budget = Literal["area", "power"]

UNITS: Mapping[Budget, str] = {"area": "mm2", "power": "W"}


@dataclass(frozen=True)
class ExploreRequest:
    """A search for hardware.

    Attributes:
        target: where it begins, by name or as a `Target`.
        vary: texts of variations (`variation.Variation.parse`).
        models: paths of models.
        operators: texts of operators, each a subject of its own beside the models.
        budget: what latency is weighed against.
        at_most: the most of the budget that counts, mm2 or W; None: no limit.
        points: designs to look at, at most about.
        confirm: designs of the front that are compiled and played, at most.
        precision, shapes, settings: of the models and the target, as `jobs.request.Request` has
            them; shapes without ranges.
        seed: of everything drawn.
        jobs: processes on this machine, without workers; one a core unless given.
        workers: "", a number of local ones, or a cluster (`WorkerPool.check` says which).
    """

    target: str | Target
    vary: tuple[str, ...]
    models: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    budget: Budget = "area"
    at_most: float | None = None
    points: int = 1000
    confirm: int = 24
    precision: str = "fp32"
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    settings: Mapping[str, str | FactValue] = field(default_factory=dict)
    seed: int = 0
    jobs: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    workers: str = ""
