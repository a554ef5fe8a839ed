"""One number a row, from lane i of row g to all lanes of row 16 g + i (`vectors.Spread`).

SXM's distributors do it on the way to who reads all of the rows i, i + 16, ...; for any other
reader the rows are written.
"""

from dataclasses import replace

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import LANES, SUPERLANE, Ints, Rows
from tilesmith.families.lpu.codegen.selection.graphs.chains import Chains
from tilesmith.families.lpu.codegen.selection.graphs.vectors import (
    Moved,
    SpreadNumber,
    Stored,
    Vectors,
)


def on_the_way(value: SpreadNumber, places: Ints) -> Vectors | None:
    """The numbers of some rows on all their lanes; None if they are not every sixteenth row."""
    turn = int(places[0]) % SUPERLANE
    if (places % SUPERLANE != turn).any():
        return None
    lanes = tuple(lane - lane % SUPERLANE + turn for lane in range(LANES))
    return Moved("distribute", Stored(value.tensor, places // SUPERLANE, value.dtype), lanes)


def spread_rows(chains: Chains, name: str, value: SpreadNumber) -> Stored:
    """All rows, written."""
    tensor = chains.temporary(name, -(-value.count // SUPERLANE) * SUPERLANE, value.dtype)
    chains.tensors[tensor.name] = replace(tensor, stripes=SUPERLANE, block=tensor.rows)
    for turn in range(min(SUPERLANE, value.count)):
        rows = np.arange(turn, value.count, SUPERLANE, dtype=np.int64)
        moved = on_the_way(value, rows)
        assert moved is not None, "these are every sixteenth row"
        chains.write(name, moved, Rows(tensor.name, rows))
    return Stored(tensor.name, np.arange(value.count, dtype=np.int64), value.dtype)
