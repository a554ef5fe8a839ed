"""How often honest machines are set aside, and how soon those that lie are, by simulation.

    python benchmarks/fleet_standing.py [--machines 10000] [--trials 1000] [--seed 0]

Groups of eight machines of one kind read their control kernel beside every trial. Honest machines
differ from one another by up to 1 %, and their readings scatter: by a normal logarithm, or as on a
busy machine, where one reading in five is late by up to half. A group's first machine lies in its
own way from the hundredth trial on: it is slower by so much, or its readings are random.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

try:
    import numpy as np
    from numpy.typing import NDArray

    from tilesmith.tuner.machine_trust.standing import Standing
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

GROUP = 8
HONEST_FROM = 100
Floats = NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, ...]], Floats]


def normal(scale: float) -> Noise:
    """Logarithms of readings that scatter alike."""
    return lambda rng, shape: rng.normal(0.0, scale, shape)


def busy(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Readings where others are at work too: 2 % of scatter, one in five late by up to half."""
    late = rng.random(shape) < 0.2
    return rng.normal(0.0, 0.02, shape) + np.where(late, np.log1p(rng.random(shape) / 2), 0.0)


NOISES: dict[str, Noise] = {
    "1 %": normal(0.01), "5 %": normal(0.05), "15 %": normal(0.15), "busy": busy
}  # fmt: skip
LIES: dict[str, Callable[[np.random.Generator, Floats], Floats]] = {
    "5 % slower": lambda rng, found: found + np.log(1.05),
    "10 % slower": lambda rng, found: found + np.log(1.10),
    "30 % slower": lambda rng, found: found + np.log(1.30),
    "30 % faster": lambda rng, found: found - np.log(1.30),
    "random": lambda rng, found: rng.uniform(-0.7, 0.7, found.shape),
    "1 % slower every 20 trials": lambda rng, found: found + 0.01 * np.arange(len(found)) / 20,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one group: honest machines set aside, and when the liar was (None: never)."""

    honest: int
    caught: int | None


def groups(
    rng: np.random.Generator, count: int, trials: int, noise: Noise, lie: str | None
) -> Iterator[Outcome]:
    """Groups of machines, played to the end."""
    for _ in range(count):
        levels = rng.uniform(-0.005, 0.005, GROUP)
        logs = levels[None, :] + noise(rng, (trials, GROUP))
        if lie is not None:
            logs[HONEST_FROM:, 0] = LIES[lie](rng, logs[HONEST_FROM:, 0])
        yield _played(np.exp(logs) * 1e-4, lie is not None)


def _played(seconds: Floats, lies: bool) -> Outcome:
    standing, caught = Standing(), None
    names = [f"m{number}" for number in range(seconds.shape[1])]
    for turn, row in enumerate(seconds):
        for name, reading in zip(names, row, strict=True):
            standing.read(name, float(reading))
        if lies and caught is None and names[0] in standing.aside:
            caught = turn - HONEST_FROM + 1
            break
    return Outcome(len(standing.aside) - (caught is not None), caught)


def main() -> None:
    """Print one line for each noise and lie, and everything as JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machines", type=int, default=10_000)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--liars", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, found = np.random.default_rng(asked.seed), {}
    start = time.monotonic()
    for name, noise in NOISES.items():
        count = asked.machines // GROUP // len(NOISES)
        honest = sum(o.honest for o in groups(rng, count, asked.trials, noise, None))
        found[f"honest, noise {name}"] = [count * GROUP, honest]
        print(f"noise {name}: {honest} of {count * GROUP} honest machines set aside", flush=True)
        for lie in LIES:
            outcomes = list(groups(rng, asked.liars, HONEST_FROM + 1500, noise, lie))
            when = sorted(o.caught for o in outcomes if o.caught is not None)
            middle = statistics.median(when) if when else None
            wrong = sum(o.honest for o in outcomes)
            found[f"{lie}, noise {name}"] = [len(when), asked.liars, middle, when[-1:], wrong]
            print(
                f"  {lie}: {len(when)} of {asked.liars} set aside, after {middle} trials (median), "
                f"{when[-1] if when else None} (most); {wrong} honest peers with them",
                flush=True,
            )
    print(json.dumps({"seconds": round(time.monotonic() - start, 1), **found}))


if __name__ == "__main__":
    main()
