"""Regret curves as an SVG picture, without a plotting library."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np
from numpy.typing import NDArray

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 130, 40, 45
_COLOURS = ("#0b6e4f", "#c1440e", "#3b5bdb", "#7048a8", "#868e96", "#b8860b")
_HIGHEST = 2.0
"""Slowdown at the top of the picture; curves above it are cut."""


def svg(title: str, curves: Mapping[str, NDArray[np.float64]]) -> str:
    """Median slowdown against the optimum over trials, one line a strategy.

    Args:
        curves: multiples of the optimum by strategy, each of shape (trials,), at least 1.
    """
    trials = max(len(curve) for curve in curves.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    for slowdown in (1.0, 1.05, 1.25, 1.5, 1.75, 2.0):
        y = _y(slowdown)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="#dddddd"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{slowdown:g}</text>'
        )
    for number in range(0, trials + 1, max(1, trials // 5)):
        x = _x(number, trials)
        y = _HEIGHT - _BOTTOM + 16
        parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{number}</text>')
    for colour, (name, curve) in zip(_COLOURS, curves.items(), strict=False):
        points = " ".join(
            f"{_x(i + 1, trials):.1f},{_y(float(value)):.1f}" for i, value in enumerate(curve)
        )
        end = _y(float(curve[-1])) + 4
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{_WIDTH - _RIGHT + 8}" y="{end:.1f}" fill="{colour}">{escape(name)}</text>'
        )
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
        "trials (slowdown against the optimum, median)</text></svg>"
    )
    return "\n".join(parts)


def _x(trial: int, trials: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * trial / trials


def _y(slowdown: float) -> float:
    share = (min(slowdown, _HIGHEST) - 1) / (_HIGHEST - 1)
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share
