"""How near estimates are to the published points: what `python -m benchmarks.serving` prints."""

from __future__ import annotations

import numpy as np

from benchmarks.serving import errors, left_out, points
from benchmarks.serving_judged import judged, passes


def test_errors_on_published_points() -> None:
    found = {n: np.abs(e) for n, e in errors((p, p.estimated()) for p in points()).items()}
    assert found["TPOT"].mean() <= 0.05 and found["TPOT"].max() <= 0.12
    assert found["TTFT"].mean() <= 0.09 and found["TTFT"].max() <= 0.25
    assert found["tokens/s"].mean() <= 0.03


def test_errors_of_models_that_were_left_out() -> None:
    found = {n: np.abs(e) for n, e in errors(left_out(points())).items()}
    assert found["TPOT"].mean() <= 0.045 and found["TPOT"].max() <= 0.12
    assert found["TTFT"].mean() <= 0.115 and found["TTFT"].max() <= 0.25


def test_errors_on_points_that_nothing_was_fitted_to() -> None:
    found = judged()
    bounds = (("trn1", 0.04, 0.10, 0.11), ("inf2", 0.07, 0.36, 0.17), ("trn2", 0.20, 0.50, 0.40))
    for mesh, mean, worst, first in bounds:
        here = [(p, e) for p, e in found if p.deployment.mesh.name.startswith(mesh)]
        assert len(here) >= 9
        off = np.abs(errors(here)["TPOT"])
        assert off.mean() <= mean and off.max() <= worst
        assert np.abs(errors(here)["TTFT"]).mean() <= first
    assert np.mean([abs(ours / theirs - 1) for _, theirs, ours in passes()]) <= 0.175


def test_no_judged_point_is_one_that_constants_are_fitted_on() -> None:
    fitted = {(p.model, p.deployment, p.load) for p in points()}
    assert not fitted & {(p.model, p.deployment, p.load) for p, _ in judged()}
