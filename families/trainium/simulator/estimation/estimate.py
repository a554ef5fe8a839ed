"""`StatementCosts`: what the analytical model says of a statement, for a batch of configurations.

Rows of `data` add up from a program's parts; the span does not (`analytical` composes it).

Cost models learn from its columns (`features`), one row for a configuration. All are logarithms
(base 2, of the value plus one): times in ns, bytes, counts. The last three are the estimate itself
and what tells it (`VERDICT`); models that must judge by themselves do without.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.core import ENGINES

Array = NDArray[np.float64]

RESOURCES = (*ENGINES, "dma")
TENSOR, VECTOR, SCALAR, GPSIMD, DMA = range(len(RESOURCES))
SHARES = (*RESOURCES, "sbuf port", "psum port")
"""What instructions occupy: their engine, and a port that it may share with another."""

SBUF_PORT, PSUM_PORT = len(RESOURCES), len(RESOURCES) + 1
COUNTS = ("bytes", "instructions", "transposes", "transfers", "rows", "stored", "matmuls")
MOVED, COUNT, TRANSPOSES, TRANSFERS, ROWS, STORED, MATMULS = (
    len(SHARES) + i for i in range(len(COUNTS))
)

BALANCE = 4
"""Occupancies are combined by the norm of exponent 2**4: large, so nearly their maximum."""


@dataclass
class StatementCosts:
    """Cost of a statement for each configuration of a batch.

    Attributes:
        data: shape (14, n): ns that each of `SHARES` is occupied, then `COUNTS`: bytes to and from
            HBM, instructions, transposes on the tensor engine, DMA transfers, their rows, bytes
            stored, matmuls.
        span: ns from start to last result, run alone, shape (n,).
        steady: ns each run takes when runs follow each other (inner loops' tiles are made
            ahead), or None where that is the span.
        combined: `step`, once it was asked for.
    """

    data: Array
    span: Array
    steady: Array | None = None
    combined: Array | None = None

    @property
    def repeated(self) -> Array:
        """`steady`, or the span."""
        return self.span if self.steady is None else self.steady

    @classmethod
    def zero(cls, n: int) -> "StatementCosts":
        return cls(np.zeros((len(SHARES) + len(COUNTS), n)), np.zeros(n))

    def add(self, other: "StatementCosts", times: Any = 1.0) -> None:
        """Add `times` runs of another; its span is left to the caller."""
        self.data += other.data * times
        self.combined = None

    def times(self, n: int) -> "StatementCosts":
        """The estimate of one configuration, for each of `n`."""
        return StatementCosts(np.repeat(self.data, n, axis=1), np.repeat(self.span, n))

    def replace(self, which: NDArray[np.bool_], other: "StatementCosts") -> None:
        """Take another's estimate for some configurations; neither has a `steady` of its own."""
        self.data[:, which] = other.data[:, which]
        self.span = np.where(which, other.span, self.span)
        self.combined = None

    @property
    def occupied(self) -> Array:
        """ns of each resource, shape (5, n)."""
        return self.data[: len(RESOURCES)]

    @property
    def moved(self) -> Array:
        row: Array = self.data[MOVED]
        return row

    @property
    def count(self) -> Array:
        row: Array = self.data[COUNT]
        return row

    @property
    def transposes(self) -> Array:
        row: Array = self.data[TRANSPOSES]
        return row

    @property
    def step(self) -> Array:
        """Occupancies combined: nearly the longest, more where two are alike and get in each
        other's way.
        """
        if self.combined is None:
            shares = self.data[: len(SHARES)]
            peak = np.maximum(shares.max(axis=0), 1e-9)
            powers = shares / peak
            for _ in range(BALANCE):
                powers *= powers
            total = powers.sum(axis=0)
            for _ in range(BALANCE):
                total = np.sqrt(total)
            self.combined = peak * total
        return self.combined

    @property
    def latency(self) -> Array:
        """ns: the estimate."""
        return np.maximum(self.span, self.step)


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
