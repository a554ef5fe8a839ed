"""Workloads of all sizes, as generators of training and test data for cost models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.workload import Workload

Maker = Callable[[np.random.Generator], str]
"""Draws a workload's key."""

_FEWEST = 12
"""Configurations a space must have to teach something."""


def drawn(
    target: Target, count: int, rng: np.random.Generator
) -> list[tuple[Workload, SearchSpace]]:
    """`count` distinct workloads a target has a choice of schedules for, with their spaces."""
    makers = _MAKERS[target.family]
    names = list(makers)
    shares = np.array([makers[name][0] for name in names])
    found: dict[str, tuple[Workload, SearchSpace]] = {}
    while len(found) < count:
        maker = makers[names[int(rng.choice(len(names), p=shares / shares.sum()))]][1]
        try:
            workload = Workload.parse(maker(rng))
            space = space_of(workload, target)
        except WorkloadError:  # too large for the target, or an odd shape it has no schedule for
            continue
        if space.size >= _FEWEST:
            found[workload.key] = workload, space
    return list(found.values())


def _size(rng: np.random.Generator, low: int, high: int) -> int:
    """Log-uniform, every second time rounded down to a multiple of 16, small ones of 4."""
    drawn = int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))
    step = 16 if drawn >= 32 else 4
    return max(low, drawn // step * step) if rng.random() < 0.5 else max(low, drawn)


def _matmul(low: float, high: float, largest: int, suffix: str, variants: tuple[str, ...]) -> Maker:
    def make(rng: np.random.Generator) -> str:
        while True:
            m, n, k = _size(rng, 1, largest), _size(rng, 1, largest), _size(rng, 3, largest)
            if low < float(m) * n * k < high:
                break
        return f"matmul m={m} n={n} k={k}{suffix}{rng.choice(variants)}"

    return make


def _conv(suffix: str, sizes: tuple[int, ...], channels: int) -> Maker:
    def make(rng: np.random.Generator) -> str:
        kernel = int(rng.choice([1, 3, 3, 3, 5, 7]))
        side = max(int(rng.choice(sizes)), kernel)
        c, oc = _size(rng, 3, channels), _size(rng, 16, channels)
        stride = int(rng.choice([1, 1, 2]))
        return (
            f"conv2d c={c} h={side} w={side} oc={oc} kh={kernel} kw={kernel} stride={stride} "
            f"pad={kernel // 2} const=weight{suffix}"
        )

    return make


def _depthwise(suffix: str) -> Maker:
    def make(rng: np.random.Generator) -> str:
        kernel, side = int(rng.choice([3, 5, 7])), int(rng.choice([14, 28, 56, 57, 112]))
        stride = int(rng.choice([1, 2]))
        return (
            f"depthwise_conv2d c={_size(rng, 16, 512)} h={side} w={side} kh={kernel} kw={kernel} "
            f"stride={stride} pad={kernel // 2} const=weight{suffix}"
        )

    return make


def _attention(low: int, high: int, features: tuple[int, ...], variants: tuple[str, ...]) -> Maker:
    def make(rng: np.random.Generator) -> str:
        m = _size(rng, low, high)
        n = m if rng.random() < 0.7 else _size(rng, low, high)
        head, heads = int(rng.choice(features)), int(rng.choice([1, 2, 4]))
        suffix = variants[0] if len(variants) == 1 else rng.choice(variants)
        return f"attention m={m} n={n} k={head} heads={heads}{suffix}"

    return make


_SIDES = (7, 13, 14, 17, 27, 28, 31, 35, 56, 112)
_CPU_VARIANTS = ("", " const=b", " ta=1", " tb=1", " batch=12", " batch=8 tb=1")
_HEADS = (8, 16, 24, 32, 36, 40, 48, 64, 64, 64, 80, 128)
_CPU_MASKS = ("", "", " mask=row", " mask=shared", " mask=heads")
_TRAINIUM_SIDES = (14, 28, 35, 40, 56)
_TRAINIUM_VARIANTS = ("", " const=b", " ta=1", " tb=1", " epilogue=bias")
_BF16 = " dtype=bfloat16"

_MAKERS: Mapping[str, Mapping[str, tuple[float, Maker]]] = {
    "cpu": {
        "matmul": (0.45, _matmul(2e5, 2e9, 4100, "", _CPU_VARIANTS)),
        "conv2d": (0.35, _conv("", _SIDES, 512)),
        "depthwise_conv2d": (0.1, _depthwise("")),
        "attention": (0.1, _attention(8, 1024, _HEADS, _CPU_MASKS)),
    },
    "trainium": {
        "matmul": (0.3, _matmul(2e6, 8e8, 8200, _BF16, _TRAINIUM_VARIANTS)),
        "matmul float32": (0.15, _matmul(2e6, 8e8, 8200, "", _TRAINIUM_VARIANTS)),
        "conv2d": (0.2, _conv(_BF16, _TRAINIUM_SIDES, 256)),
        "conv2d float32": (0.15, _conv("", _TRAINIUM_SIDES, 256)),
        "attention": (0.15, _attention(32, 512, (32, 64, 128), (_BF16,))),
        "depthwise_conv2d": (0.05, _depthwise(_BF16)),
    },
}
"""By target family: operators with their shares and makers. Those of accelerators are of a size
whose instruction streams are played in milliseconds.
"""
