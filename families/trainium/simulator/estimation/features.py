"""What cost models learn from: columns of the analytical estimate, one row for a configuration.

All are logarithms (base 2, of the value plus one): times in ns, bytes, counts. The last three are
the estimate itself and what tells it (`VERDICT`); models that must judge by themselves do without.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.simulator.estimation.estimate import (
    COUNTS,
    MOVED,
    ROWS,
    SHARES,
    TRANSFERS,
    Array,
    StatementCosts,
)

COLUMNS = (
    *SHARES, *COUNTS, "bytes a row", "bytes a transfer", "SBUF bytes a partition",
    "PSUM bytes a partition", "latency", "latency over roofline", "exposed",
)  # fmt: skip
"""Names of the columns: busy time of engines and ports, counts, means, memory in use, verdict."""

VERDICT = tuple(COLUMNS.index(n) for n in ("latency", "latency over roofline", "exposed"))
"""Columns that are the estimate, or tell it: `exposed` is what no engine is busy in."""


def features(estimate: StatementCosts, memory: Array, roofline: float) -> NDArray[np.float32]:
    """Columns `COLUMNS` of a batch, shape (n, len(COLUMNS)).

    Args:
        memory: bytes of SBUF and PSUM a partition that tiles take, shape (2, n).
        roofline: of the workload, in ns.
    """
    moved = estimate.data[MOVED]
    columns = [
        *estimate.data,
        moved / np.maximum(estimate.data[ROWS], 1.0),
        moved / np.maximum(estimate.data[TRANSFERS], 1.0),
        *memory,
        estimate.latency,
        estimate.latency / max(roofline, 1e-9),
        estimate.latency - estimate.step,
    ]
    return np.log2(np.stack(columns, axis=1) + 1.0).astype(np.float32)
