"""Figures of code generation and simulation for trn1.

    python benchmarks/accelerator/figures.py [speed] [products] [tuned] [fidelities]
                                             [stationary] [operators] [attention] [movement]

speed: instructions a second of the builder and of the timeline engine, configurations a second of
    the analytical model.
products: the best configuration of two large matrix products. tuned: the best of a convolution.
fidelities: how the analytical model ranks sampled configurations against the timeline.
operators, movement: default schedules, and the best of a small search, against their rooflines.
stationary: products of which either operand may be stationary. attention: the default and the best
    of its neighbourhood, on trn1 and trn2.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy.stats import spearmanr
from subjects import kernels

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge, measure, simulate

TARGET = load_target("trn1")
PRODUCTS = ("matmul m=4096 n=4096 k=4096 dtype=bfloat16", "matmul m=4096 n=12288 k=5120")
TUNED = ("conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=weight dtype=bfloat16",)
SAMPLED = (
    "matmul m=2048 n=2048 k=1024 dtype=bfloat16",
    "matmul m=1024 n=2048 k=1024",
    "matmul m=128 n=3072 k=768 dtype=bfloat16 epilogue=bias,gelu_tanh",
    "conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=weight dtype=bfloat16",
    "conv2d c=256 h=14 w=14 oc=256 kh=3 kw=3 pad=1 const=weight",
)
OPERATORS = (
    PRODUCTS[0],
    *SAMPLED[1:],
    "matmul m=128 n=128 k=64 batch=12 tb=1 dtype=bfloat16",
    "conv2d c=3 h=224 w=224 oc=64 kh=7 kw=7 stride=2 pad=3 const=weight epilogue=bias,relu",
    "conv2d c=256 h=56 w=56 oc=64 kh=1 kw=1 const=weight epilogue=bias,relu",
    "softmax shape=1536x128",
    "layer_norm shape=128x384",
    "elementwise shape=1x256x56x56 expression=relu(add(x0,x1))",
    "reduce shape=2048x49 kind=mean axes=1",
)
MOVEMENT = (
    "transpose shape=512x768 perm=1x0",
    "transpose shape=2048x2048 perm=1x0 dtype=bfloat16",
    "transpose shape=128x12x64 perm=1x0x2",
    "layout_transform shape=1x64x56x56 src=NCHW dst=NHWC",
    "concat shape=1x256x28x28 axis=1 parts=128x128",
    "slice shape=1x128x56x56 starts=0x64x0x0 sizes=1x64x56x56",
    "slice shape=1x64x56x56 starts=0x0x0x0 sizes=1x64x28x28 steps=1x1x2x2",
    "pad shape=1x64x56x56 before=0x0x1x1 after=0x0x1x1",
    "resize shape=1x64x28x28 sizes=1x64x56x56",
    "gather shape=30522x384 indices=1x128",
)
ATTENTION = (
    ("attention m=128 n=128 k=64 heads=12 dtype=bfloat16", 160),
    ("attention m=128 n=128 k=64 heads=12 mask=row dtype=bfloat16", 96),
    ("attention m=128 n=128 k=64 heads=12", 96),
    ("attention m=512 n=512 k=64 heads=12 dtype=bfloat16", 64),
    ("attention m=2048 n=2048 k=64 heads=12 dtype=bfloat16", 0),
)
"""Attention, and how many neighbours of its default are played."""

SAMPLES, SEEDS = 200, (0, 1, 2)
SEARCHED, SEARCH_PLAYED = 1000, 12
"""Configurations that a small search judges, and how many of them it plays."""

STATIONARY = (
    "matmul m=130 n=2048 k=2048 ta=1",
    "matmul m=4096 n=128 k=4096 ta=1",
    "matmul m=1024 n=2048 k=1024",
    "matmul m=2048 n=2048 k=128 ta=1",
)
PLAYED = 6
"""Configurations of a large product that are played on the timeline."""


def speed() -> None:
    """Of the builder and the two engines, in processor time: what one core does."""
    begun = time.process_time()
    written = sum(len(kernels.matmul(Core.of(TARGET))) for _ in range(3))
    whole = time.process_time() - begun
    print(f"kernels written by hand, verified: {written / whole:,.0f} instructions/s")
    stream = kernels.matmul(Core.of(TARGET))
    timeline(stream)
    repeats = 20
    played = timeline(stream)
    begun = time.process_time()
    for _ in range(repeats):
        played = timeline(stream)
    whole = (time.process_time() - begun) / repeats
    print(f"timeline, costs included: {len(stream) / whole / 1e6:.2f} million instructions/s")
    begun = time.process_time()
    for _ in range(repeats):
        played.replay()
    engine = (time.process_time() - begun) / repeats
    print(f"timeline engine alone: {len(stream) / engine / 1e6:.2f} million instructions/s")
    for text in SAMPLED[:1] + SAMPLED[3:4]:
        workload = Workload.parse(text)
        configs = list(space_of(workload, TARGET))
        many = (configs * (10_000 // len(configs) + 1))[:10_000]
        judge(workload, TARGET, configs)  # lowers every structure once
        begun = time.process_time()
        judge(workload, TARGET, many)
        rate = len(many) / (time.process_time() - begun)
        print(f"analytical: {rate:,.0f} configurations/s for {text}")


def products() -> None:
    """The best of the whole space: all judged by the analytical model, its first few played."""
    for text in PRODUCTS:
        workload = Workload.parse(text)
        begun = time.process_time()
        configs = list(space_of(workload, TARGET))
        order = np.argsort(judge(workload, TARGET, configs).latency)[:PLAYED]
        played = [simulate(workload, TARGET, configs[i], "timeline") for i in order]
        best = min(played, key=lambda result: result.latency_us)
        elapsed = time.process_time() - begun
        details = best.details
        print(
            f"{text}: {best.latency_us / 1e3:.3f} ms, "
            f"{details['tensor_peak_share']:.1%} of the bf16 peak, "
            f"{details['bytes_moved'] / 1e6:.0f} MB moved, {details['transposes']} transposes, "
            f"roofline {details['roofline_us'] / 1e3:.3f} ms, "
            f"{len(configs)} configurations, "
            f"{elapsed:.0f} s of one processor\n    {details['config']}"
        )


def tuned() -> None:
    """The best of the whole space by the analytical model's first hundred."""
    for text in TUNED:
        workload = Workload.parse(text)
        configs = list(space_of(workload, TARGET))
        order = np.argsort(judge(workload, TARGET, configs).latency)[:100]
        best = min(
            (simulate(workload, TARGET, configs[i], "timeline") for i in order),
            key=lambda result: result.latency_us,
        )
        floor = best.details["roofline_us"]
        print(
            f"{text}: {best.latency_us:.2f} us, roofline {floor:.2f} us "
            f"({best.latency_us / floor:.2f} x), bound by {best.bound}, {len(configs)} "
            f"configurations\n    {best.details['config']}"
        )


def fidelities() -> None:
    """Rank correlation over sampled configurations, and the roofline below both."""
    for text in (*SAMPLED, ATTENTION[0][0]):
        workload = Workload.parse(text)
        space = space_of(workload, TARGET)
        floor = simulate(workload, TARGET, None, "roofline").latency_us
        ranks, ratios, picks = [], [], []
        for seed in SEEDS:
            configs = list(dict.fromkeys(space.sample(np.random.default_rng(seed), SAMPLES)))
            judged = judge(workload, TARGET, configs).latency * 1e6
            played = measure(workload, TARGET, configs).latency * 1e6
            assert (floor <= judged * 1.01).all() and (floor <= played).all()
            ranks.append(float(spearmanr(judged, played).statistic))
            ratios.append(float(np.median(judged / played)))
            picks.append(float(played[judged.argmin()] / played.min()))
        print(
            f"{text}: Spearman {', '.join(f'{rank:.3f}' for rank in ranks)} over samples of "
            f"{SAMPLES} configurations, median ratio {np.mean(ratios):.2f}, best judged is "
            f"{', '.join(f'{pick:.2f}' for pick in picks)} x the best"
        )


def searched(workload: Workload, configs: list[Config]) -> float:
    """The best latency in us of the few configurations that the analytical model likes best."""
    order = np.argsort(judge(workload, TARGET, configs).latency)[:SEARCH_PLAYED]
    return float(measure(workload, TARGET, [configs[i] for i in order]).latency.min()) * 1e6


def stationary() -> None:
    """The best tiled schedules with either operand stationary."""
    for text in STATIONARY:
        workload = Workload.parse(text)
        every = list(space_of(workload, TARGET))
        tiled = [config for config in every if config["algorithm"] == "tiled"]
        best = {
            name: searched(workload, [c for c in tiled if c["stationary"] == name]) for name in "ab"
        }
        print(f"{text}: a stationary {best['a']:.1f} us, b stationary {best['b']:.1f} us")


def attention() -> None:
    """Fused attention: the default, and the best of a walk from it through its neighbours."""
    for name in ("trn1", "trn2"):
        target = load_target(name)
        for text, trials in ATTENTION:
            workload = Workload.parse(text)
            default = simulate(workload, target, None, "timeline")
            found = walk(workload, target, trials)
            best = min(found, default.latency_us)
            floor = default.details["roofline_us"]
            print(
                f"{name}, {text}: default {default.latency_us:.1f} us, best of {trials} neighbours "
                f"{best:.1f} us, roofline {floor:.1f} us ({best / floor:.2f} x), "
                f"{default.details['bytes_moved'] / 1e6:.2f} MB moved, bound by {default.bound}, "
                f"{space_of(workload, target).size} configurations"
            )


def walk(workload: Workload, target: Target, trials: int) -> float:
    """The least us of up to `trials` configurations, each a neighbour of one of the best four."""
    space, rng = space_of(workload, target), np.random.default_rng(0)
    played: dict[Config, float] = {}
    batch = [default_of(workload, target)]
    while batch:
        times = measure(workload, target, batch).latency * 1e6
        played.update(zip(batch, map(float, times), strict=True))
        best = sorted(played, key=lambda config: played[config])[:4]
        parents = space.breeder.encode([best[i % len(best)] for i in range(64)])
        drawn = space.breeder.decode(space.breeder.mutate(parents, rng))
        new = [config for config in dict.fromkeys(drawn) if config not in played]
        batch = new[: min(16, max(0, trials - len(played)))]
    return min(played.values())


def movement() -> None:
    """Data movement: default schedules against their rooflines."""
    operators(MOVEMENT)


def operators(texts: tuple[str, ...] = OPERATORS) -> None:
    """Default schedules, and the best of a small search, against their rooflines (start costs
    included)."""
    for text in texts:
        workload = Workload.parse(text)
        result = simulate(workload, TARGET, None, "timeline")
        floor = result.details["roofline_us"]
        space = space_of(workload, TARGET)
        drawn = space.sample(np.random.default_rng(0), SEARCHED)
        best = min(result.latency_us, searched(workload, list(dict.fromkeys(drawn))))
        print(
            f"{text}: default {result.latency_us:.1f} us ({result.latency_us / floor:.2f} x), "
            f"tuned {best:.1f} us ({best / floor:.2f} x), roofline {floor:.1f} us, "
            f"default bound by {result.bound}"
        )


def main() -> None:
    parts = {
        "speed": speed, "products": products, "tuned": tuned, "fidelities": fidelities,
        "stationary": stationary,
        "operators": operators, "attention": attention, "movement": movement,
    }  # fmt: skip
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    asked = parser.parse_args().parts
    if unknown := [name for name in asked if name not in parts]:
        parser.error(f"no part '{unknown[0]}'; there are {', '.join(parts)}")
    for name in asked or parts:
        print(f"-- {name}")
        parts[name]()


if __name__ == "__main__":
    main()
