"""What bits=same costs: models compiled with it and without, timed in turns on one core.

    python -m benchmarks.same_bits_cost [--only NAME ...] [--tune SECONDS] [--folder FOLDER]

Four models: ResNet-50, an encoder of BERT's form, a causal decoder of GPT-2's form over 64 tokens,
and the same for one token after 255 others. Untuned schedules, or with --tune those of two tuning
jobs of so many seconds each, whose databases are kept in the folder. The ratio is the time with
bits=same over that without; the last line is the geometric mean.
"""

import argparse
import math
import os
import tempfile
from pathlib import Path

import numpy as np
import onnx

import tilesmith
from benchmarks.models import Builder, _gelu, _linear, _norm, encoder, resnet50
from tilesmith.compiler.graph.seed_weights import seed_weights
from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.jobs.measures.timing import interleave, pinned


def decoder(rows: int, past: int, layers: int = 4, width: int = 768) -> onnx.ModelProto:
    """GPT-2's blocks on embedded tokens, 1 x rows x width, after `past` others whose keys and
    values are inputs."""
    b, depth = Builder(), 64
    heads, x, inputs = width // depth, "x", {"x": (1, rows, width)}
    mask = np.triu(np.full((rows, past + rows), -1e9, np.float32), past + 1)
    for layer in range(layers):
        y, parts = _norm(b, x, width), []
        for part in "qkv":
            split = b.constant(np.array([1, rows, heads, depth], dtype=np.int64))
            y_part = b.op("Reshape", _linear(b, y, width, width), split)
            parts.append(b.op("Transpose", y_part, perm=[0, 2, 1, 3]))
            if part != "q" and past:
                name = f"{part}{layer}"
                inputs[name] = (1, heads, past, depth)
                parts[-1] = b.op("Concat", name, parts[-1], axis=2)
        q, k, v = parts
        scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = b.op("Div", scores, b.constant(8.0))
        scores = b.op("Add", scores, b.constant(mask)) if rows > 1 else scores
        mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
        shape = b.constant(np.array([1, rows, width], dtype=np.int64))
        joined = b.op("Reshape", b.op("Transpose", mixed, perm=[0, 2, 1, 3]), shape)
        x = b.op("Add", x, _linear(b, joined, width, width))
        hidden = _gelu(b, _linear(b, _norm(b, x, width), width, 4 * width))
        x = b.op("Add", x, _linear(b, hidden, 4 * width, width))
    return seed_weights(b.model(f"decoder{rows}", inputs, x))


MODELS = {
    "ResNet-50": resnet50,
    "encoder": encoder,
    "decoder, 64 tokens": lambda: decoder(64, 0),
    "decoding": lambda: decoder(1, 255),
}


def ratio(name: str, folder: Path, tune: float, seconds: float) -> tuple[float, float]:
    """Milliseconds without bits=same, and the times with it over those without."""
    model, contenders = MODELS[name](), {}
    for bits in ("any", "same"):
        database = folder / f"{name} {bits}.db" if tune else None
        if database is not None and not database.exists():
            tilesmith.tune(model, database=database, time_limit=tune, bits=bits)
        executable = tilesmith.compile(model, database=database, bits=bits)
        contenders[bits] = executable.bind(random_inputs(executable)).run
    with pinned(1):
        times = interleave(contenders, seconds, warm_up=2)
    return times["any"].median_ms, times["same"].median_ms / times["any"].median_ms


def main() -> None:
    os.environ.setdefault("TILESMITH_PACKS", "none")  # a pack may know these models
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--tune", type=float, default=0.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    ratios = []
    for name in options.only:
        ms, times = ratio(name, folder, options.tune, options.seconds)
        ratios.append(times)
        print(f"{name}: {ms:.3f} ms without, with bits=same {times:.3f} times that", flush=True)
    print(f"geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")


if __name__ == "__main__":
    main()
