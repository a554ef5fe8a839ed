"""Training shared out on a real Ray of its own: the same model as in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.jobs.pools import helpers
from tilesmith.jobs.tuning import models as jobs
from tilesmith.jobs.tuning.models import train_models
from tilesmith.records import Database, TuningRecord
from tilesmith.records.learning import cost_models
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge
from tilesmith.tuner.pretrained.model_fitting import FittingRecipe

TARGET = cpu_target("made-up", "avx512", "x86_64-unknown-linux-gnu")
SIZES = ((64, 64, 64), (128, 48, 96), (32, 256, 64), (96, 96, 32))


@pytest.mark.extra
def test_workers_make_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setattr(jobs, "TREES", (FittingRecipe("trees", 2, 10, 0.3),))
    rng = np.random.default_rng(0)
    with Database.open(str(tmp_path / "t.db")) as database:
        database.register_target(TARGET)
        for m, n, k in SIZES:
            workload = Workload.parse(f"matmul m={m} n={n} k={k}")
            configs = list(dict.fromkeys(space_of(workload, TARGET).sample(rng, 12)))
            latencies = judge(workload, TARGET, configs).latency.tolist()
            database.add(
                TuningRecord.of(workload, TARGET, c, MeasureResult("ok", "hardware", (s,)))
                for c, s in zip(configs, latencies, strict=True)
            )
        for workers in ("", "1"):
            with helpers(workers) as mapped:
                train_models(database, mapped=mapped)
        assert cost_models.text_of(database, 1) == cost_models.text_of(database, 2)


def test_workers_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="workers = 'many' is not understood"), helpers("many"):
        pass
