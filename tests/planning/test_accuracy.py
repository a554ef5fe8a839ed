"""How near estimates are to the published points: what `python -m benchmarks.serving` prints."""

from __future__ import annotations

import numpy as np

from benchmarks.serving import errors, left_out, points


def test_errors_on_published_points() -> None:
    found = {n: np.abs(e) for n, e in errors((p, p.estimated()) for p in points()).items()}
    assert found["TPOT"].mean() <= 0.05 and found["TPOT"].max() <= 0.12
    assert found["TTFT"].mean() <= 0.16


def test_errors_of_models_that_were_left_out() -> None:
    found = {n: np.abs(e) for n, e in errors(left_out(points())).items()}
    assert found["TPOT"].mean() <= 0.06 and found["TPOT"].max() <= 0.15
    assert found["TTFT"].mean() <= 0.20
