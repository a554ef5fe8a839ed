"""Serving: how true and how fast the simulation of continuous batching is.

    python -m benchmarks.batching [--requests 100000]

Waiting times of one place against Pollaczek and Khinchine's formula, the saturated throughput of a
batch against its closed form, interpolated times of steps against estimated ones, and the seconds
that a hundred thousand requests take under each policy.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

from tilesmith.capabilities.planning.batching.events import POLICIES, Engine, simulate
from tilesmith.capabilities.planning.batching.step_times import DeploymentTimes
from tilesmith.capabilities.planning.batching.traffic import Lengths, backlog, poisson
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.deployment import Deployment
from tilesmith.capabilities.planning.reading.naming import architecture_of
from tilesmith.capabilities.planning.sizing.replicas import estimated_seconds
from tilesmith.display.output import table
from tilesmith.search_space.meshes.mesh import load_mesh

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
_STEP, _ANSWER = 1e-3, 20


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    count = parser.parse_args().requests
    constant = DeploymentTimes(lambda sequences, tokens, before: _STEP)
    print(f"One place, answers of {_ANSWER} steps of 1 ms: mean wait, ms")
    print(
        table(
            ("load", "simulated", "formula"),
            [waits(load, count, constant) for load in (0.3, 0.5, 0.7, 0.9)],
        )
    )
    full = backlog(Lengths(32, 400), 1600, np.random.default_rng(0))
    found = simulate(Engine(constant, 10**6, 16), full)
    print(
        f"\nSixteen places, all full: {found.tokens_per_s:.0f} tokens/s; in theory {16 / _STEP:.0f}"
    )
    architecture = architecture_of(Configuration("Llama 3 8B", "llama", LLAMA_3_8B))
    deployment = Deployment(load_mesh("trn1.32xlarge"), tensor=8)
    seconds = partial(estimated_seconds, architecture, deployment)
    print("\nSteps of Llama 3 8B on 8 cores, interpolated against estimated: error, %")
    print(table(("steps", "mean", "worst"), errors(seconds)))
    print(f"\n{count} requests of 300 + 200 tokens on average, 12 a second")
    rows = [served(policy, count, DeploymentTimes(seconds)) for policy in POLICIES]
    print(table(("policy", "simulated in s", "us a request", "ttft p99 ms", "tpot p99 ms"), rows))


def waits(load: float, count: int, times: DeploymentTimes) -> tuple[float, float, float]:
    """Load, mean wait simulated, and by the formula for constant service, in milliseconds."""
    service = _STEP * _ANSWER
    traffic = poisson(load / service, count, Lengths(7, _ANSWER), np.random.default_rng(0))
    found = simulate(Engine(times, 10_000, 1), traffic)
    formula = load * service / (2 * (1 - load))
    return load, float((found.ttft_s - _STEP).mean()) * 1e3, formula * 1e3


def errors(seconds: partial[float]) -> list[tuple[str, float, float]]:
    """Mean and worst error of interpolation, of decoding and of prompts."""
    generator, times = np.random.default_rng(0), DeploymentTimes(seconds)
    draws = {
        "decoding": [(int(s), 1, int(b)) for s, b in zip(
            generator.integers(1, 200, 300), generator.integers(1, 8000, 300), strict=True)],
        "prompts": [(1, int(t), 0) for t in generator.integers(2, 8000, 300)],
        "pieces": [(1, int(t), int(b)) for t, b in zip(
            generator.integers(2, 2048, 300), generator.integers(0, 6000, 300), strict=True)],
    }  # fmt: skip
    rows = []
    for name, asked in draws.items():
        found = [times.decode(s, b) if t == 1 else times.prefill(s, t, b) for s, t, b in asked]
        wanted = np.array([seconds(*at) for at in asked])
        off = np.abs(np.array(found) / wanted - 1) * 100
        rows.append((name, float(off.mean()), float(off.max())))
    return rows


def served(
    policy: str, count: int, times: DeploymentTimes
) -> tuple[str, float, float, float, float]:
    """A policy, seconds of the simulation, and what it found."""
    traffic = poisson(12.0, count, Lengths(300, 200, 0.5, 0.5), np.random.default_rng(1))
    engine = Engine(times, 200_000, 128, policy, budget=512)  # type: ignore[arg-type]
    start = time.perf_counter()
    found = simulate(engine, traffic)
    spent = time.perf_counter() - start
    late = (float(np.percentile(s, 99)) * 1e3 for s in (found.ttft_s, found.tpot_s))
    return policy, spent, spent / count * 1e6, *late


if __name__ == "__main__":
    main()
