"""How far estimates of serving are from published measurements: 16 points on trn1.32xlarge.

    python -m benchmarks.serving                 # every point, with the constants that ship
    python -m benchmarks.serving --calibrate     # fit the constants; each model by those of the
    others

Constants are fitted by Gauss-Newton on relative errors, large ones discounted (towards absolute
values, as the mean of errors has it), each held near what is known without the points (`KNOWN`) by
as much as that is worth. Constants of decoding are fitted on times a token, those of prompts on
times to the first token.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilesmith.planning.architecture import Architecture
from tilesmith.planning.configuration import Configuration
from tilesmith.planning.constants import constants
from tilesmith.planning.deployment import Deployment, Load
from tilesmith.planning.estimate import Estimate, estimate
from tilesmith.planning.reading import architecture_of
from tilesmith.search_space.mesh import load_mesh
from tilesmith.search_space.target import Target

FOLDER = Path(__file__).parent / "serving_points"
MESHES = {"trn1": "trn1.32xlarge"}

KNOWN = {
    "weights.efficiency": (1.0, 0.1),
    "cache.efficiency": (1.0, 0.3),
    "attention.passes": (1.5, 0.5),
    "layer.fixed_us": (30.0, 0.7),
    "step.fixed_us": (300.0, 0.7),
}
"""Constants of decoding: what is expected without a fit, and how far off (its logarithm)."""

KNOWN_OF_PROMPTS = {
    "collective.bandwidth": (0.35, 0.5),
    "attention.spilled_bytes": (90.0, 0.5),
    "prompt.fixed_us": (1000.0, 1.0),
}
SPREAD = 0.1
"""How far published medians of one machine are expected from any such model."""


@dataclass(frozen=True)
class Point:
    """One published measurement."""

    model: str
    architecture: Architecture
    deployment: Deployment
    load: Load
    tpot_ms: float
    ttft_ms: float
    tokens_per_s: float

    @property
    def consistent(self) -> bool:
        """Whether its tokens a second follow from its own TPOT and TTFT, within a quarter; where
        shorter sequences are served faster, they may be a few percent more."""
        load = self.load
        answer = self.ttft_ms + (load.output_tokens - 1) * self.tpot_ms
        implied = load.batch * load.output_tokens / answer * 1e3
        return 0.8 <= self.tokens_per_s / implied <= 1.25

    def estimated(self, fitted: Target | None = None) -> Estimate:
        """What we say."""
        return estimate(self.architecture, replace(self.deployment, constants=fitted), self.load)


def points(name: str = "trn1") -> list[Point]:
    """All published points of a file."""
    configurations = json.loads((FOLDER / "configurations.json").read_text())
    with (FOLDER / f"{name}.csv").open() as file:
        return [_point(row, configurations[row["model"]]) for row in csv.DictReader(file)]


def _point(row: Mapping[str, str], fields: Mapping[str, object]) -> Point:
    configuration = Configuration(row["model"], str(fields["model_type"]), fields)
    mesh = load_mesh(MESHES[row["instance"]])
    names = ("batch", "input_tokens", "output_tokens", "max_sequence")
    return Point(
        row["model"],
        architecture_of(configuration),
        Deployment(mesh, int(row["tp"]), weights=row["weights"]),  # type: ignore[arg-type]
        Load(*(int(row[name]) for name in names)),
        float(row["tpot_p50_ms"]),
        float(row["ttft_p50_ms"]),
        float(row["tokens_per_s"]),
    )


def with_values(values: Mapping[str, float], base: Target | None = None) -> Target:
    """The constants with some of them changed."""
    return (base or constants()).with_settings(values)


def fitted(known: Sequence[Point]) -> Target:
    """Constants of some points: first those of decoding, then those of prompts."""
    decoding = _fit(known, KNOWN, constants(), prompts=False)
    return _fit(known, KNOWN_OF_PROMPTS, decoding, prompts=True)


def _fit(
    known: Sequence[Point], names: Mapping[str, tuple[float, float]], base: Target, prompts: bool
) -> Target:
    centre = np.log([value for value, _ in names.values()])
    width = np.array([spread for _, spread in names.values()])

    def of(x: NDArray[np.float64]) -> Target:
        return with_values(dict(zip(names, np.exp(x).tolist(), strict=True)), base)

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        target = of(x)
        return np.array([_error(point, point.estimated(target), prompts) for point in known])

    x = centre.copy()
    for _ in range(12):
        r = residuals(x)
        step = 1e-3
        jacobian = np.stack([(residuals(x + step * e) - r) / step for e in np.eye(len(x))], axis=1)
        weight = 1 / SPREAD**2 / np.maximum(1, np.abs(r) / (0.5 * SPREAD))  # Huber
        normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(width**-2)
        slope = jacobian.T @ (weight * r) + (x - centre) / width**2
        change = np.linalg.solve(normal, slope)
        x = x - change
        if np.abs(change).max() < 0.003:
            break
    return of(x)


def _error(point: Point, found: Estimate, prompts: bool) -> float:
    if prompts:
        return found.ttft_ms / point.ttft_ms - 1
    return found.tpot_ms / point.tpot_ms - 1


def left_out(known: Sequence[Point]) -> list[tuple[Point, Estimate]]:
    """Every point by constants that were fitted without its model."""
    found = []
    for model in dict.fromkeys(point.model for point in known):
        target = fitted([point for point in known if point.model != model])
        found += [(point, point.estimated(target)) for point in known if point.model == model]
    return found


def errors(found: Iterable[tuple[Point, Estimate]]) -> dict[str, list[float]]:
    """Relative errors of all points, by quantity; of tokens a second where points agree with
    themselves."""
    pairs = list(found)
    return {
        "TPOT": [e.tpot_ms / p.tpot_ms - 1 for p, e in pairs],
        "TTFT": [e.ttft_ms / p.ttft_ms - 1 for p, e in pairs],
        "tokens/s": [e.tokens_per_s / p.tokens_per_s - 1 for p, e in pairs if p.consistent],
    }


def table(found: Sequence[tuple[Point, Estimate]]) -> str:
    """A line a point, and mean and worst errors."""
    header = (
        f"{'model':24} {'weights':7} {'batch':>5} {'limit':>6} {'input':>6}   "
        f"{'TPOT ms':>8} {'ours':>8} {'error':>6}   {'TTFT ms':>8} {'ours':>8} {'error':>6}   "
        f"{'tokens/s':>8} {'ours':>8} {'error':>6}"
    )
    lines = [header]
    for point, ours in found:
        load = point.load
        lines.append(
            f"{point.model:24} {point.deployment.weights:7} {load.batch:5} {load.limit:6} "
            f"{load.input_tokens:6}   "
            f"{point.tpot_ms:8.2f} {ours.tpot_ms:8.2f} {ours.tpot_ms / point.tpot_ms - 1:+6.0%}   "
            f"{point.ttft_ms:8.1f} {ours.ttft_ms:8.1f} {ours.ttft_ms / point.ttft_ms - 1:+6.0%}   "
            f"{point.tokens_per_s:8.1f} {ours.tokens_per_s:8.1f} "
            f"{_throughput_error(point, ours):>6}"
        )
    for name, values in errors(found).items():
        sizes = np.abs(values)
        lines.append(
            f"{name}: mean error {sizes.mean():.1%}, worst {sizes.max():.0%}, "
            f"mean of signed ones {np.mean(values):+.1%}"
        )
    return "\n".join(lines)


def _throughput_error(point: Point, ours: Estimate) -> str:
    """Of tokens a second; none where the published figure contradicts its own times."""
    error = ours.tokens_per_s / point.tokens_per_s - 1
    return f"{error:+.0%}" if point.consistent else "-"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calibrate", action="store_true", help="fit the constants, too")
    asked = parser.parse_args()
    known = points()
    print("with the constants that ship")
    print(table([(point, point.estimated()) for point in known]))
    if not asked.calibrate:
        return
    target = fitted(known)
    print("\nfitted on all points")
    for name in (*KNOWN, *KNOWN_OF_PROMPTS):
        print(f"{name:24} {target.number(name):10.4g}   shipped {constants().number(name):10.4g}")
    print(table([(point, point.estimated(target)) for point in known]))
    print("\nevery model by constants fitted on the others")
    print(table(left_out(known)))


if __name__ == "__main__":
    main()
