"""Sweeps: every combination estimated, fronts of what was estimated, and what cannot be, said."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.capabilities.planning.test_architectures import PUBLISHED, read
from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
from tilesmith.capabilities.planning.estimates.estimate import estimate
from tilesmith.capabilities.planning.serving.job import Outputs, plan_sweep
from tilesmith.capabilities.planning.sweeps.grid import ALL, Grid
from tilesmith.capabilities.planning.sweeps.prices import Price
from tilesmith.capabilities.planning.sweeps.sweep import COLUMNS, sweep
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.search_space.support.errors import InputError

LLAMA = read(PUBLISHED["Llama 3 8B"][0])
MESH = load_mesh("trn1.32xlarge")


def test_open_degrees_are_all_that_divide_and_have_room() -> None:
    found = {(d.tensor, d.pipeline) for d in Grid((MESH,), pipeline=ALL).deployments()}
    powers = [1, 2, 4, 8, 16, 32]
    assert found == {(t, p) for t in powers for p in powers if t * p <= 32}
    experts = [d.expert for d in Grid((MESH,), tensor=(8,), expert=ALL).deployments()]
    assert experts == [1, 2, 4, 8]
    with pytest.raises(InputError, match="are more than mesh"):
        list(Grid((MESH,), tensor=(32,), data=(2,)).deployments())


def test_every_point_is_its_estimate() -> None:
    grid = Grid((MESH,), tensor=(8, 32), weights=("bf16", "int8"), batches=(1, 4), outputs=(64,))
    found = sweep(LLAMA, grid, {"trn1.32xlarge": Price(32.0)})
    assert len(found.points) == 8 and not found.refusals
    for point in found.points:
        where = Deployment(MESH, point.deployment.tensor, weights=point.deployment.weights)
        expected = estimate(LLAMA, where, DeploymentLoad(point.load.batch, 128, 64))
        row = point.row()
        assert row["tpot_ms"] == expected.tpot_ms
        assert row["chips"] == where.tensor // 2
        per_chip = expected.tokens_per_s / (where.tensor // 2)
        assert row["tokens_per_s_per_chip"] == pytest.approx(per_chip)
        assert row["usd_per_million_tokens"] == pytest.approx(2.0 / (per_chip * 3600) * 1e6)


def test_no_point_beats_one_of_the_front_in_both() -> None:
    grid = Grid((MESH,), pipeline=ALL, batches=(1, 8, 64), outputs=(64,))
    found = sweep(LLAMA, grid, {})
    front = found.on("tpot")
    assert 2 <= len(front) < len(found.points)
    assert not found.on("cost"), "nobody names a price"
    for point in found.points:
        better = [
            other
            for other in front
            if other.estimate.tpot_ms <= point.estimate.tpot_ms
            and other.tokens_per_s_per_chip >= point.tokens_per_s_per_chip
        ]
        assert better, "each is on the front, or behind one that is"
        assert ("tpot" in point.fronts) == (point in front)


def test_what_cannot_be_is_counted_and_the_last_reason_given() -> None:
    big = read(PUBLISHED["Llama 3 8B"][0])
    grid = Grid((load_mesh("trn1.2xlarge"),), batches=(1, 4096), inputs=(4096,), outputs=(4096,))
    found = sweep(big, grid, {})
    assert sum(refusal.count for refusal in found.refusals) == 4 - len(found.points) > 0
    assert all("GiB are missing" in refusal.example for refusal in found.refusals)
    huge = Grid((load_mesh("trn1.2xlarge"),), batches=(4096,), inputs=(4096,))
    with pytest.raises(InputError, match="GiB are missing"):
        sweep(big, huge, {})


def test_a_sweep_is_written_as_csv_and_json(tmp_path: Path) -> None:
    grid = Grid((MESH,), tensor=(16, 32), batches=(1, 2))
    planned = plan_sweep(LLAMA, grid, Outputs(csv=tmp_path / "points.csv"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "points.csv").read_text())))
    assert len(rows) == 4 and tuple(rows[0]) == COLUMNS
    data = json.loads(json.dumps(planned.to_json()))
    assert [float(row["tpot_ms"]) for row in rows] == [p["tpot_ms"] for p in data["points"]]
    assert set(data["fronts"]) == {"tpot", "ttft", "cost"} and data["refused"] == 0
    assert "points are on a front" in planned.text()
    with pytest.raises(InputError, match="cannot be written"):
        plan_sweep(LLAMA, grid, Outputs(csv=tmp_path / "no" / "points.csv"))
