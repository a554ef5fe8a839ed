"""What stands in memory: arrays as rows of lanes, and back.

Rows are those of `accesses`: the last dimension across lanes, in as many rows as it needs; lanes
beyond it hold zeros.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.dataflow import LANES
from tilesmith.families.lpu.codegen.selection.layout.accesses import shape_of
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.ir.program import Buffer


def image(buffer: Buffer, array: NDArray[Any]) -> NDArray[Any]:
    """Rows of a buffer's content, (rows, `LANES`); `array` has as many elements as the buffer."""
    return in_rows(shape_of(buffer), buffer.dtype, array)


def in_rows(shape: Sequence[int], dtype: str, array: NDArray[Any]) -> NDArray[Any]:
    """Rows of an array of a shape (at least one dimension)."""
    *lead, last = shape
    chunks = -(-last // LANES)
    rows = np.zeros((int(np.prod(lead, dtype=np.int64)), chunks * LANES), to_numpy(dtype))
    rows[:, :last] = np.asarray(array).reshape(len(rows), last)
    return rows.reshape(-1, chunks, LANES).swapaxes(0, 1).reshape(-1, LANES)


def content(shape: Sequence[int], rows: NDArray[Any]) -> NDArray[Any]:
    """The array of a shape (at least one dimension) that stands in rows."""
    *_, last = shape
    chunks = -(-last // LANES)
    places = rows.reshape(chunks, -1, LANES).swapaxes(0, 1).reshape(-1, chunks * LANES)
    return np.ascontiguousarray(places[:, :last]).reshape(shape)
