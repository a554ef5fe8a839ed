"""Pretrained cost models: what is known of a family of targets before anything is measured.

They are kept in a tuning database, made from its own trials (`tuner.pretrained.model_training`);
none comes with the package (docs/decisions/0055). A model ranks the
configurations of a workload it never saw, so that even the first batch of a job is good. The job's
own model then learns what it gets wrong (`Samples.prior`), and drops it where it does harm.

A model sees every feature three times: as it is, less its mean over a few configurations drawn from
the workload's space, and that in units of their deviation. "Fewer bytes moved than usual here"
means the same for all workloads; "2^20 bytes" does not. And it sees the knobs, by name. Where the
judge's latency is shown, it may say how far from that a measurement is (`residual`). Invariants: a
model made for other versions of spaces, simulators or features than the running ones is reported
and not used; nothing in a model's text can do worse than rank badly.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.results.versions import CODEGEN, FEATURES, SIMULATOR, SPACE
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.population import Population
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.pretrained.learners import Ensemble, Trees
from tilesmith.tuner.surrogates.cost_model import Floats, log_analytical
from tilesmith.tuner.surrogates.knob_features import KnobColumns

REFERENCE = 48
"""Configurations of a space that features are compared with."""
MOST_BYTES = 4_000_000
"""Length of a model's text."""
_LEAST_SPREAD = 0.1
"""Least deviation that features are measured in."""


def versions(measured_by: MeasuredBy = "simulator") -> dict[str, str]:
    """What a model of that way of measuring must have been made for to be used."""
    current = {"space": SPACE, "simulator": SIMULATOR, "features": FEATURES}
    return current | ({"codegen": CODEGEN} if measured_by == "hardware" else {})


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


class Learner(Protocol):
    """What was fitted: `Ensemble` or `Trees`."""

    def predict(self, inputs: NDArray[np.float32]) -> Floats:
        """Return scores of shape (n,) for rows of shape (n, inputs)."""
        ...

    def to_json(self) -> dict[str, Any]:
        """JSON values that give it back."""
        ...


class Pretrained:
    """Ranks the schedules of one target family.

    Args:
        learner: what it says, log seconds less a constant of the workload, is lower for faster
            schedules.
        columns: features it was trained on.
        knobs: the columns of the knobs it was trained on.
        residual: whether the logarithm of the analytical latency is to be added.
    """

    def __init__(
        self, learner: Learner, columns: int, knobs: KnobColumns, residual: bool = False
    ) -> None:
        self._learner = learner
        self.columns = columns
        self.knobs = knobs
        self.residual = residual

    def predict(
        self,
        features: NDArray[np.float32],
        usually: NDArray[np.float32],
        configs: Sequence[Config],
        analytical: Floats,
    ) -> Floats:
        """Log seconds less an unknown constant of the workload, shape (n,).

        Args:
            features: of the configurations, shape (n, columns).
            usually: what they are compared with, shape (2, columns).
            analytical: latencies in seconds, shape (n,), NaN where there is none.
        """
        said = self._learner.predict(inputs(features, usually, self.knobs.rows(configs)))
        return said + log_analytical(analytical) if self.residual else said

    def to_text(self, made_from: Mapping[str, str], measured_by: MeasuredBy = "simulator") -> str:
        """JSON with the versions in force and a note on what it was made from."""
        saved = {
            "versions": versions(measured_by),
            "made_from": dict(made_from),
            "kind": "trees" if isinstance(self._learner, Trees) else "networks",
            "residual": self.residual,
            "columns": self.columns,
            "knobs": self.knobs.to_json(),
            **self._learner.to_json(),
        }
        return json.dumps(saved)

    @classmethod
    def parsed(
        cls, text: str, name: str, measured_by: MeasuredBy = "simulator"
    ) -> "tuple[Pretrained | None, list[str]]":
        """The model of a text; None, and which versions differ, if it was made for others.

        Every array is checked: the text may come from anywhere.

        Raises:
            InputError: the text is no pretrained model; `name` says which in the message.
        """
        if len(text) > MOST_BYTES:
            raise InputError(
                f"'{name}' is not a pretrained cost model: it has {len(text):,} bytes, "
                f"{MOST_BYTES:,} at most are read"
            )
        try:
            saved = json.loads(text)
            stamps = dict(saved["versions"])
            stale = [n for n, now in versions(measured_by).items() if stamps.get(n) != now]
            return (None if stale else cls._of(saved)), stale
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(f"'{name}' is not a pretrained cost model") from error

    @classmethod
    def _of(cls, saved: Mapping[str, Any]) -> "Pretrained":
        columns, knobs = int(saved["columns"]), KnobColumns.from_json(saved["knobs"])
        if not 0 < columns < MOST_BYTES:
            raise ValueError("a model has columns")
        width = 3 * columns + knobs.width
        learner: Ensemble | Trees
        if saved.get("kind", "networks") == "trees":
            learner = Trees.from_json(saved, width)
        else:
            learner = Ensemble.from_json(saved)
            if len(learner.mean) != width:
                raise ValueError("networks are of other columns than their model says")
        return cls(learner, columns, knobs, bool(saved.get("residual", False)))


def inputs(
    features: NDArray[np.float32], usually: NDArray[np.float32], knobs: NDArray[np.float32]
) -> NDArray[np.float32]:
    """What a learner sees of configurations, shape (n, 3 f + knobs), finite."""
    return np.nan_to_num(np.hstack([relative(features, usually), knobs]))
