"""Pretrained cost models: what is known of a family of targets before anything is measured.

One file a target family in `cost_models/pretrained/`, made by `python -m
benchmarks.search.pretrain` from simulated schedules of workloads of all sizes: a few small networks
whose mean ranks the configurations of a workload none of them saw, so that even the first batch of
a job is good. The job's own model then learns what they get wrong (`Samples.prior`), and drops them
where they do harm.

A model sees every feature three times: as it is, less its mean over a few configurations drawn from
the workload's space, and that in units of their deviation. "Fewer bytes moved than usual here"
means the same for all workloads; "2^20 bytes" does not. And it sees the knobs, by name. Invariant:
a model made for other versions of spaces, simulators or features than the running ones is reported
and not used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.errors import InputError
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.population import Population
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.versions import FEATURES, SIMULATOR, SPACE
from tilesmith.search_space.workload import Workload
from tilesmith.tuner.cost_model import Floats
from tilesmith.tuner.knob_features import KnobColumns
from tilesmith.tuner.network import Ensemble

FOLDER = Path(__file__).parent / "cost_models" / "pretrained"
REFERENCE = 48
"""Configurations of a space that features are compared with."""
_LEAST_SPREAD = 0.1
"""Least deviation that features are measured in."""

_log = logging.getLogger(__name__)


def versions() -> dict[str, str]:
    """What a model must have been made for to be used."""
    return {"space": SPACE, "simulator": SIMULATOR, "features": FEATURES}


def reference(space: SearchSpace, workload: Workload) -> Population:
    """The configurations a workload's features are compared with: always the same ones."""
    rng = np.random.default_rng(int(workload.digest, 16))
    return space.breeder.sample(rng, min(REFERENCE, 4 * space.size), balanced=True)


def usual(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a workload's features are compared with: mean and deviation, shape (2, f), of those of
    its reference configurations, (n, f).
    """
    return np.stack([features.mean(axis=0), np.maximum(features.std(axis=0), _LEAST_SPREAD)])


def relative(features: NDArray[np.float32], usually: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features (n, f) as they are, less the usual, and that in deviations, shape (n, 3 f)."""
    apart = features - usually[0]
    return np.ascontiguousarray(np.hstack([features, apart, apart / usually[1]]), np.float32)


class Pretrained:
    """Networks that rank the schedules of one target family.

    Args:
        networks: what they say, log seconds less a constant of the workload, is lower for faster
            schedules.
        columns: features they were trained on.
        knobs: the columns of the knobs they were trained on.
    """

    def __init__(self, networks: Ensemble, columns: int, knobs: KnobColumns) -> None:
        self._networks = networks
        self.columns = columns
        self.knobs = knobs

    def predict(
        self,
        features: NDArray[np.float32],
        usually: NDArray[np.float32],
        configs: Sequence[Config],
    ) -> Floats:
        """Log seconds less an unknown constant of the workload, shape (n,).

        Args:
            features: of the configurations, shape (n, columns).
            usually: what they are compared with, shape (2, columns).
        """
        rows = np.hstack([relative(features, usually), self.knobs.rows(configs)])
        return self._networks.predict(np.nan_to_num(rows))

    def save(self, path: Path, made_from: Mapping[str, str]) -> None:
        """Write JSON with the versions in force and a note on what it was made from."""
        saved = {
            "versions": versions(),
            "made_from": dict(made_from),
            "columns": self.columns,
            "knobs": self.knobs.to_json(),
            **self._networks.to_json(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(saved) + "\n")

    @classmethod
    def load(cls, path: Path) -> Pretrained | None:
        """The model of a file; None, and a warning, if it was made for other versions.

        Raises:
            InputError: the file is no pretrained model.
        """
        try:
            saved = json.loads(path.read_bytes())
            stamps = dict(saved["versions"])
            stale = [name for name, now in versions().items() if stamps.get(name) != now]
            model = None if stale else cls._of(saved)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"'{path}' is not a pretrained cost model") from error
        if stale:
            _log.warning(
                "the pretrained cost model %s was made for another version of: %s; tuning goes on "
                "without it (python -m benchmarks.search.pretrain makes it anew)",
                path.name,
                ", ".join(stale),
            )
        return model

    @classmethod
    def _of(cls, saved: Mapping[str, Any]) -> Pretrained:
        columns, knobs = int(saved["columns"]), KnobColumns.from_json(saved["knobs"])
        return cls(Ensemble.from_json(saved), columns, knobs)


@cache
def pretrained(family: str) -> Pretrained | None:
    """The model that comes with the package for a target family, if there is a current one."""
    path = FOLDER / f"{family}.json"
    return Pretrained.load(path) if path.exists() else None
