"""How far estimates of serving are from published measurements: 16 points on trn1.32xlarge, to
which constants are fitted. Others, to which none is: `benchmarks/serving_judged.py`.

    python -m benchmarks.serving                 # every point, with the constants that ship
    python -m benchmarks.serving --calibrate     # fit the constants; each model by those of the
    others
    python -m benchmarks.serving --priors 0.5,1,2    # ... from expectations so many times as large

Constants are fitted by Gauss-Newton on relative errors, large ones discounted (towards absolute
values, as the mean of errors has it), each held loosely near what documents make expect (`KNOWN`).
None of these expectations comes from the points; most leave a factor of two or more either way.
`--priors` multiplies all of them at once, which shows how much of the errors hangs on them.
Constants of decoding are fitted on times a token, those of prompts on times to the first token.
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

from tilesmith.capabilities.planning.architecture import Architecture
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
from tilesmith.capabilities.planning.estimates.constants import constants
from tilesmith.capabilities.planning.estimates.estimate import Estimate, estimate
from tilesmith.capabilities.planning.reading.naming import architecture_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.meshes.mesh import load_mesh

FOLDER = Path(__file__).parent / "serving_points"
MESHES = {"trn1": "trn1.32xlarge", "inf2": "inf2.48xlarge", "trn2": "trn2.48xlarge"}

KNOWN = {
    "weights.efficiency": (1.0, 0.5),  # streams are as fast as the simulator has them
    "cache.efficiency": (1.0, 0.5),
    "attention.passes": (1.41, 0.7),  # one softmax, or one over the cache and one beside it
    "layer.fixed_us": (24.0, 1.0),  # a dozen kernels: 1.3 us to start a DMA, 0.6 of static cycles
    "step.fixed_us": (1000.0, 1.5),  # a host's call and sampling: some 0.2 to 5 ms
}
"""Constants of decoding: what is expected without the points, and how far off (its logarithm)."""

KNOWN_OF_PROMPTS = {
    # nccom-test's guide: a sum over two cores of a chip has 40.7 GB/s where 122 are costed, so
    # engines add what 61 GB/s take, 0.22 of a core's 272
    "collective.bandwidth": (0.22, 0.3),
    # scale, mask, maximum, subtraction, exponential, sum, division, cast: read and write 8 bytes
    "attention.spilled_bytes": (64.0, 0.7),
    "prompt.fixed_us": (2000.0, 1.5),  # a host's call, tokens in, sampling
}
SPREAD = 0.1
"""How far published medians of one machine are expected from any such model."""


@dataclass(frozen=True)
class Point:
    """One published measurement.

    Attributes:
        tokens_per_s: 0 where it was not published.
        prompts: sequences whose prompts are worked on together; the load's batch decodes.
    """

    model: str
    architecture: Architecture
    deployment: Deployment
    load: DeploymentLoad
    tpot_ms: float
    ttft_ms: float
    tokens_per_s: float
    prompts: int

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
        on = replace(self.deployment, constants=fitted)
        whole = estimate(self.architecture, on, self.load)
        if self.prompts == self.load.batch:
            return whole
        one = estimate(self.architecture, on, replace(self.load, batch=self.prompts))
        return replace(whole, ttft_ms=one.ttft_ms)


def points(name: str = "trn1") -> list[Point]:
    """All published points of a file."""
    with (FOLDER / f"{name}.csv").open() as file:
        return [_point(row) for row in csv.DictReader(file)]


def published(model: str) -> Architecture:
    """A model of `configurations.json`."""
    fields = json.loads((FOLDER / "configurations.json").read_text())[model]
    return architecture_of(Configuration(model, str(fields["model_type"]), fields))


def _point(row: Mapping[str, str]) -> Point:
    mesh = load_mesh(MESHES[row["instance"]])
    names = ("batch", "input_tokens", "output_tokens", "max_sequence")
    return Point(
        row["model"],
        published(row["model"]),
        Deployment(mesh, int(row["tp"]), weights=row["weights"]),  # type: ignore[arg-type]
        DeploymentLoad(*(int(row[name]) for name in names)),
        float(row["tpot_p50_ms"]),
        float(row["ttft_p50_ms"]),
        float(row["tokens_per_s"] or 0),
        int(row.get("prompts") or row["batch"]),
    )


def with_values(values: Mapping[str, float], base: Target | None = None) -> Target:
    """The constants with some of them changed."""
    return (base or constants()).with_settings(values)


def fitted(known: Sequence[Point], factor: float = 1.0) -> Target:
    """Constants of some points: first those of decoding, then those of prompts.

    Args:
        factor: what all expectations are multiplied by.
    """
    decoding = _fit(known, KNOWN, constants(), factor, prompts=False)
    return _fit(known, KNOWN_OF_PROMPTS, decoding, factor, prompts=True)


def _fit(
    known: Sequence[Point],
    names: Mapping[str, tuple[float, float]],
    base: Target,
    factor: float,
    *,
    prompts: bool,
) -> Target:
    centre = np.log([value * factor for value, _ in names.values()])
    width = np.array([spread for _, spread in names.values()])
    low, high = np.log([np.maximum(base.fact(name).limits, 1e-9) for name in names]).T

    def of(x: NDArray[np.float64]) -> Target:
        inside = np.clip(np.exp(x), np.exp(low), np.exp(high))
        return with_values(dict(zip(names, inside.tolist(), strict=True)), base)

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        target = of(x)
        return np.array([_error(point, point.estimated(target), prompts) for point in known])

    x = np.clip(centre, low, high)
    for _ in range(30):
        r = residuals(x)
        step = 1e-3  # backwards, as what is at its limit can only fall
        jacobian = np.stack([(r - residuals(x - step * e)) / step for e in np.eye(len(x))], axis=1)
        weight = 1 / SPREAD**2 / np.maximum(1, np.abs(r) / (0.5 * SPREAD))  # Huber
        normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(width**-2)
        slope = jacobian.T @ (weight * r) + (x - centre) / width**2
        after = np.clip(x - np.linalg.solve(normal, slope), low, high)
        change, x = after - x, after
        if np.abs(change).max() < 0.003:
            break
    return of(x)


def _error(point: Point, found: Estimate, prompts: bool) -> float:
    if prompts:
        return found.ttft_ms / point.ttft_ms - 1
    return found.tpot_ms / point.tpot_ms - 1


def left_out(known: Sequence[Point], factor: float = 1.0) -> list[tuple[Point, Estimate]]:
    """Every point by constants that were fitted without its model."""
    found = []
    for model in dict.fromkeys(point.model for point in known):
        target = fitted([point for point in known if point.model != model], factor)
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
    return "\n".join([*lines, *summary(found)])


def summary(found: Sequence[tuple[Point, Estimate]]) -> list[str]:
    """Mean and worst errors, a line a quantity."""
    return [
        f"{name}: mean error {np.abs(values).mean():.1%}, worst {np.abs(values).max():.0%}, "
        f"mean of signed ones {np.mean(values):+.1%}"
        for name, values in errors(found).items()
        if values
    ]


def _throughput_error(point: Point, ours: Estimate) -> str:
    """Of tokens a second; none where the published figure contradicts its own times."""
    if not point.consistent:
        return "-"
    return f"{ours.tokens_per_s / point.tokens_per_s - 1:+.0%}"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calibrate", action="store_true", help="fit the constants, too")
    parser.add_argument(
        "--priors", metavar="FACTORS", help="errors left out by expectations so many times as large"
    )
    asked = parser.parse_args()
    known = points()
    if asked.priors:
        for factor in map(float, asked.priors.split(",")):
            print(f"every model by the others, from expectations x {factor:g}")
            print("\n".join(f"  {line}" for line in summary(left_out(known, factor))))
        return
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
