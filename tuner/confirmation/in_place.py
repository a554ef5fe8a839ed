"""What schedules that were chosen by whole models came to, and what those models are made up of."""

from dataclasses import dataclass, field

from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class ModelParts:
    """What a model is made up of, in seconds.

    Attributes:
        alone_s: sum of what its kernels take as trials measured them, each alone.
        in_place_s: what the same kernels take where they stand.
        added_s: what is in the model beside them: conversions of layouts, schedules in layouts
            that no trial measured.
    """

    alone_s: float
    in_place_s: float
    added_s: float


@dataclass(frozen=True)
class InPlace:
    """What re-ranking came to.

    Attributes:
        choices: schedules that make the model faster than the best on record do.
        before_s, after_s: seconds of the model without and with them; None if nothing was compared.
        compared: candidates tried in place.
        untuned_s: seconds of the model without any tuning, in turns with the tuned one; None if
            that was not compared.
        reverted: workloads that are pinned to their untuned schedule: the model is faster so.
        parts: what the model comes to by its parts; None if that is not known.
    """

    choices: dict[Workload, Config] = field(default_factory=dict)
    before_s: float | None = None
    after_s: float | None = None
    compared: int = 0
    untuned_s: float | None = None
    reverted: frozenset[Workload] = frozenset()
    parts: ModelParts | None = None


NOTHING = InPlace()
