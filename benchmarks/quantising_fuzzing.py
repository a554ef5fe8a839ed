"""`quantize` over random float32 models, each way: near the model, or refused in a sentence.

    python -m benchmarks.quantising_fuzzing [--cases 100] [--seed 0] [--first 0]

Each model is quantised on three samples by every way of `WAYS`; what is written is compiled, and
its outputs are compared with onnxruntime's of the written file and of the float32 one. Only what
has nothing to quantise may be refused. Exit code 1 if an output is wrong, or anything else raised.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

try:
    from benchmarks.subjects.graphs.moving_steps import move, number
    from benchmarks.subjects.graphs.quantised_graphs import Graph, plain_session, random_graph
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None
import tilesmith as ts

Array = NDArray[Any]

WAYS: dict[str, dict[str, Any]] = {
    "minmax": {}, "mse, symmetric": {"method": "mse", "symmetric": True},
    "percentile, residuals": {"method": "percentile:99.99", "fuse_residuals": True},
    "equalised": {"equalise": True}, "budget": {"budget": 0.01},
    "int8 weights": {"weights": "int8", "block": 16},
    "int4 weights": {"weights": "int4", "block": 16, "method": "mse"},
}  # fmt: skip
"""Arguments of `ts.quantize`."""

MOST = {"int4 weights": 0.5}
"""By way, what outputs may be off, by the norm of all; else `_MOST`."""

_MOST = 0.2

NOTHING = "can be quantised: it has no"
"""What a refusal says that is right."""


def _draw(g: Graph, *shape: int) -> str:
    return g.constant(g.rng.standard_normal(shape) / max((1, *shape[-1:])) ** 0.5, np.float32)


def convolution(g: Graph) -> object:
    x = g.pick(lambda v: v.dtype == np.float32 and 3 <= v.ndim <= 5)
    if not x:
        return None
    value = g.value(x)
    channels, spatial, size = value.shape[1], value.ndim - 2, int(g.rng.choice([1, 2, 3]))
    groups = int(g.rng.choice([1, 1, channels]))
    out = groups * int(g.rng.integers(1, 4))
    inputs = [x, _draw(g, out, channels // groups, *[size] * spatial)]
    if g.rng.random() < 0.6:
        inputs.append(_draw(g, out))
    y = g.one("Conv", *inputs, group=groups, pads=[size // 2] * (2 * spatial))
    if y and g.rng.random() < 0.4:
        scale = g.constant(g.rng.uniform(0.5, 2, out), np.float32)
        variance = g.constant(g.rng.uniform(0.1, 2, out), np.float32)
        y = g.one("BatchNormalization", y, scale, _draw(g, out), _draw(g, out), variance)
    return y and g.rng.random() < 0.5 and g.one("Relu", y)


def product(g: Graph) -> object:
    x = g.pick(lambda v: v.dtype == np.float32 and v.ndim >= 2)
    if not x:
        return None
    rows, depth = g.value(x).shape[-2:]
    columns = int(g.rng.choice([rows, 1, 5, 8]))
    if g.value(x).ndim > 2 or g.rng.random() < 0.4:
        y = g.one("MatMul", x, _draw(g, depth, columns))
        return y and g.rng.random() < 0.5 and g.one("Add", y, _draw(g, columns))
    turned = int(g.rng.integers(2))
    inputs = [x, _draw(g, columns, depth) if turned else _draw(g, depth, columns)]
    forms = [(columns,), (1, columns), (rows, 1), (rows, columns), (), (1,)]
    if g.rng.random() < 0.8:
        inputs.append(_draw(g, *forms[int(g.rng.integers(len(forms)))]))
    factors = {"alpha": 0.5, "beta": 2.0} if g.rng.random() < 0.3 else {}
    return g.one("Gemm", *inputs, transB=turned, **factors)


def between(g: Graph) -> object:
    """A product of two tensors that vary, a normalisation, or a factor without axes."""
    x = g.pick(lambda v: v.dtype == np.float32 and v.ndim >= 2)
    if not x:
        return None
    value, kind = g.value(x), int(g.rng.integers(3))
    if kind == 0:
        order = [*range(value.ndim - 2), value.ndim - 1, value.ndim - 2]
        other = g.one("Transpose", x, perm=order)
        return other and g.one("MatMul", x, other)
    if kind == 1:
        return g.one("LayerNormalization", x, _draw(g, value.shape[-1]), axis=-1)
    return g.one("Mul", x, g.input(np.array(1.5, np.float32)))


STEPS = (convolution, convolution, product, product, between, move, number, number)


def _off(ours: dict[str, Array], wanted: dict[str, Array]) -> float:
    """The norm of all differences by that of what is wanted."""
    above = sum(float(((ours[n].astype(np.float64) - wanted[n]) ** 2).sum()) for n in wanted)
    below = sum(float((wanted[n].astype(np.float64) ** 2).sum()) for n in wanted)
    return (above / max(below, 1e-9)) ** 0.5


def _run(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    session = plain_session(model)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def outcome(graph: Graph, way: str) -> tuple[str, str]:
    """Verdict and reason of quantising a model in a way."""
    model, feeds = graph.model(), graph.given
    samples = [{n: np.asarray(v * f) for n, v in feeds.items()} for f in np.float32([1, 0.5, -1])]
    try:
        written = ts.quantize(model, samples, **WAYS[way]).model
        ours = ts.compile(written).run(feeds)
    except ts.TilesmithError as error:
        return ("nothing to do" if NOTHING in str(error) else "refused"), str(error)
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"
    off, apart = _off(ours, _run(model, feeds)), _off(ours, _run(written, feeds))
    if off > MOST.get(way, _MOST) or apart > max(0.03, off):
        return "wrong", f"{off:.3g} off the float32 model, {apart:.3g} off onnxruntime"
    return "near", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    for case in range(asked.first, asked.first + asked.cases):
        graph = random_graph(np.random.default_rng((asked.seed, case)), STEPS, bytes_in=0)
        for way in WAYS if graph.steps else ():
            verdict, reason = outcome(graph, way)
            counts[verdict] += 1
            if verdict in ("refused", "raised", "wrong"):
                print(f"{case} {way}, {verdict}: {' '.join(reason.split())[:300]}", flush=True)
                asked.findings.mkdir(parents=True, exist_ok=True)
                onnx.save(graph.model(), str(asked.findings / f"{asked.seed}_{case}.onnx"))
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    return int(bool(counts["refused"] + counts["raised"] + counts["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
