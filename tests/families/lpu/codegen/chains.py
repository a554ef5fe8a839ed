"""Programs that tests schedule, with their numpy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import (
    PRODUCTS,
    ChainBuilder,
    Dataflow,
    Operation,
    Rows,
    VectorTensor,
)
from tilesmith.search_space.hardware.target import load_target

Arrays = dict[str, NDArray[Any]]


def chip(**settings: Any) -> Chip:
    """An LPU, with facts changed (dots as two underscores)."""
    changed = {name.replace("__", "."): value for name, value in settings.items()}
    return Chip.of(load_target("lpu1").with_settings(changed))


def rows(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """A matrix as rows of 320 lanes: for each 320 columns all of its rows."""
    cuts = [values[:, at : at + 320] for at in range(0, values.shape[1], 320)]
    return np.concatenate([np.pad(c, ((0, 0), (0, 320 - c.shape[1]))) for c in cuts]).astype(dtype)


def matmul(m: int, n: int, k: int, dtype: str, seed: int = 0) -> tuple[Dataflow, Arrays, Arrays]:
    """y = x w^T, K in two halves that are added in VXM; inputs, and what to expect."""
    rng, out = np.random.default_rng(seed), PRODUCTS[dtype]
    x, w = (
        rng.standard_normal(shape) if dtype == "float16" else rng.integers(-128, 128, shape)
        for shape in ((m, k), (n, k))
    )
    x, w = x.astype(dtype), w.astype(dtype)
    steps, cuts = -(-k // 320), -(-n // 320)
    tensors = [
        VectorTensor("x", steps * m, dtype, "input", m),
        VectorTensor("w", steps * n, dtype, "constant", n),
        VectorTensor("y", cuts * m, out, "output", m),
    ]
    chains = []
    for j in range(cuts):
        columns, sums = min(320, n - 320 * j), dict[int, str]()
        for t in range(steps):
            b, name = ChainBuilder(f"product {j}.{t}", m), f"sum {j}.{t}"
            moving = b.read(Rows.of("x", t * m, (m, 1)))
            add = b.read(Rows.of(sums[t % 2], 0, (m, 1))) if t % 2 in sums else None
            weights = Rows.of("w", t * n + 320 * j, (columns, 1))
            b.write(
                b.product(moving, weights, min(320, k - 320 * t), add), Rows.of(name, 0, (m, 1))
            )
            tensors.append(VectorTensor(name, m, out))
            sums[t % 2] = name
            chains.append(b.chain())
        b = ChainBuilder(f"end {j}", m)
        parts = [b.read(Rows.of(name, 0, (m, 1))) for name in sums.values()]
        end = Operation("add", (0, 1), out) if len(parts) == 2 else Operation("copy", (0,), out)
        b.write(b.compute(parts, end), Rows.of("y", j * m, (m, 1)))
        chains.append(b.chain())
    flow = Dataflow(f"matmul {m}x{n}x{k}", {t.name: t for t in tensors}, tuple(chains))
    y = x.astype(np.float64) @ w.astype(np.float64).T
    return flow, {"x": rows(x, dtype), "w": rows(w, dtype)}, {"y": rows(y, out)}
