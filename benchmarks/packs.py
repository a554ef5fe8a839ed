"""How much of tuning a pack gives: models untuned, with a pack and no database, and with a tuned
database, run in turns.

    python -m benchmarks.packs MODEL.onnx ... --database tuning.db --pack cpu.jsonl

Ratios are of medians, over the tuned model's; each model is compiled three times first (into
--folder, where artifacts that are there already are taken), so that a busy machine may compile and
a quiet one run (`--compile-only`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

import tilesmith as ts

WAYS = ("untuned", "pack", "tuned")


def compiled(model: Path, way: str, database: str, pack: str, folder: Path) -> Path:
    """The artifact of a model, compiled in one of three ways."""
    path = folder / f"{model.stem}.{way}.tsm"
    if not path.exists():
        told = {"untuned": (None, ["none"]), "pack": (None, [pack]), "tuned": (database, ["none"])}
        known, packs = told[way]
        ts.compile(str(model), database=known, packs=packs).save(path)
    return path


def in_turns(paths: list[Path], seconds: float) -> list[float]:
    """Median seconds of a run of each artifact, run one after the other."""
    models = [ts.load(path) for path in paths]
    rng = np.random.default_rng(0)
    inputs = {
        info.name: rng.standard_normal(info.shape).astype(info.dtype) for info in models[0].inputs
    }
    times: list[list[float]] = [[] for _ in models]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for model, mine in zip(models, times, strict=True):
            model.run(inputs)  # its weights and code come back into the caches
            start = time.perf_counter()
            model.run(inputs)
            mine.append(time.perf_counter() - start)
    return [statistics.median(mine) for mine in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--database", required=True)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--folder", type=Path, default=Path("build/packs"))
    parser.add_argument("--seconds", type=float, default=8.0, help="of running a model")
    parser.add_argument("--compile-only", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    ratios: list[list[float]] = []
    for model in asked.models:
        paths = [compiled(model, way, asked.database, asked.pack, asked.folder) for way in WAYS]
        if asked.compile_only:
            continue
        untuned, packed, tuned = in_turns(paths, asked.seconds)
        ratios.append([untuned / tuned, packed / tuned])
        print(
            f"{model.stem:16} tuned {tuned * 1e3:8.3f} ms, untuned {ratios[-1][0]:.3f}, "
            f"pack {ratios[-1][1]:.3f} of it",
            flush=True,
        )
    if ratios:
        means = np.exp(np.log(ratios).mean(axis=0))
        print(f"geometric mean: untuned {means[0]:.3f}, pack {means[1]:.3f} of tuned")


if __name__ == "__main__":
    main()
