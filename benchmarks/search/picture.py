"""Regret curves as pictures, PNG and SVG; needs matplotlib (the extra `plots`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray


def draw(title: str, curves: Mapping[str, NDArray[np.float64]], path: Path) -> None:
    """Median slowdown against the optimum over trials, the middle half of the seeds shaded.

    Args:
        curves: multiples of the optimum by strategy, each of shape (seeds, trials), at least 1.
        path: without the suffix; `.png` and `.svg` are written.
    """
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    for name, seeds in curves.items():
        trials = np.arange(1, seeds.shape[1] + 1)
        low, median, high = np.quantile(seeds, (0.25, 0.5, 0.75), axis=0)
        (line,) = axes.plot(trials, median, label=name)
        axes.fill_between(trials, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
    axes.axhline(1.05, color="grey", linewidth=0.8, linestyle="--")
    axes.set_ylim(0.99, 2.0)
    axes.set_xlabel("trials")
    axes.set_ylabel("slowdown against the optimum (median, quartiles)")
    axes.set_title(title, fontsize=9)
    axes.legend(frameon=False)
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=120)
