"""Pretrained cost models: what is known of a family of targets before anything is measured.

One file a target family in `cost_models/pretrained/`, made by `python -m
benchmarks.search.pretrain` from simulated schedules of workloads of all sizes. Such a model ranks
the configurations of a workload it never saw, so that even the first batch of a job is good; the
job's own model then learns what it gets wrong (`Samples.prior`), and drops it where it does harm.

A model sees every feature twice: as it is, and less its mean over a few configurations drawn from
the workload's space. "Fewer bytes moved than usual here" means the same for all workloads; "2^20
bytes" does not. Invariant: a model made for other versions of spaces, simulators or features than
the running ones is reported and not used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_space.errors import InputError
from search_space.space import SearchSpace
from search_space.versions import FEATURES, SIMULATOR, SPACE
from search_space.workload import Workload
from tuner.cost_model import Floats
from tuner.population import Breeder, Population

FOLDER = Path(__file__).parent / "cost_models" / "pretrained"
REFERENCE = 48
"""Configurations of a space that features are compared with."""

_log = logging.getLogger(__name__)


def versions() -> dict[str, str]:
    """What a model must have been made for to be used."""
    return {"space": SPACE, "simulator": SIMULATOR, "features": FEATURES}


def reference(space: SearchSpace, workload: Workload) -> Population:
    """The configurations a workload's features are compared with: always the same ones."""
    rng = np.random.default_rng(int(workload.digest, 16))
    return Breeder(space).sample(rng, min(REFERENCE, 4 * space.size), balanced=True)


def relative(features: NDArray[np.float32], usual: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features (n, f) as they are and less `usual` (f,), shape (n, 2 f)."""
    return np.ascontiguousarray(np.hstack([features, features - usual]), np.float32)


class Pretrained:
    """Boosted trees that rank the schedules of one target family.

    Args:
        booster: xgboost's, trained to rank (higher is faster).
        scale: log seconds that one unit of its score is worth.
        columns: features it was trained on.
    """

    def __init__(self, booster: Any, scale: float, columns: int) -> None:
        self._booster = booster
        self.scale = scale
        self.columns = columns

    def predict(self, features: NDArray[np.float32], usual: NDArray[np.float32]) -> Floats:
        """Log seconds less an unknown constant of the workload, shape (n,)."""
        rows = np.nan_to_num(relative(features, usual), posinf=3e38, neginf=-3e38)
        return -self.scale * np.asarray(self._booster.inplace_predict(rows), np.float64)

    def save(self, path: Path, made_from: Mapping[str, str]) -> None:
        """Write UBJSON with the versions in force and a note on what it was made from."""
        stamps = {**versions(), "scale": repr(self.scale), "columns": str(self.columns)}
        self._booster.set_attr(**stamps, **made_from)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._booster.save_raw("ubj"))

    @classmethod
    def load(cls, path: Path) -> Pretrained | None:
        """The model of a file; None, and a warning, if it was made for other versions.

        Raises:
            InputError: the file is no pretrained model.
        """
        import xgboost

        booster = xgboost.Booster({"nthread": 1})
        try:
            booster.load_model(bytearray(path.read_bytes()))
            stamps: dict[str, Any] = booster.attributes()
            scale, columns = float(stamps["scale"]), int(stamps["columns"])
        except (xgboost.core.XGBoostError, KeyError, ValueError) as error:
            raise InputError(f"'{path}' is not a pretrained cost model") from error
        stale = [name for name, now in versions().items() if stamps.get(name) != now]
        if stale:
            _log.warning(
                "the pretrained cost model %s was made for another version of: %s; tuning goes on "
                "without it (python -m benchmarks.search.pretrain makes it anew)",
                path.name,
                ", ".join(stale),
            )
            return None
        return cls(booster, scale, columns)


@cache
def pretrained(family: str) -> Pretrained | None:
    """The model that comes with the package for a target family, if there is a current one."""
    path = FOLDER / f"{family}.ubj"
    return Pretrained.load(path) if path.exists() else None
