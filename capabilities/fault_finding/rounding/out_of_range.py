"""Where a model's numbers leave the range of a narrow element type, as a sentence.

Float16 ends at 65,504. What is larger in fp32 becomes infinite, infinities less infinities are no
numbers, and from there on nothing says where they came from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilesmith.capabilities.fault_finding.stepping.report import TensorRow
from tilesmith.capabilities.fault_finding.stepping.steps import Arrays
from tilesmith.compiler.passes.narrow_kernels import largest


def left_range(rows: Sequence[TensorRow], tensors: Arrays, exact: Arrays, dtype: str) -> str:
    """A sentence on the first tensor that is infinite where fp32 has a finite number too large for
    the type, if infinities or what is no number come of it; else "".

    Args:
        rows: in topological order.
        exact: tensors in fp32, cut to the type's range.
    """
    if not any(row.error.nan or row.error.inf for row in rows):
        return ""
    for row in rows:
        wanted = exact[row.name]
        if wanted.dtype != np.float32:
            continue
        over = np.abs(wanted) >= largest(dtype)
        lost = int((over & np.isinf(np.asarray(tensors[row.name], np.float32))).sum())
        if lost:
            return (
                f"{row.operator} '{row.node}' leaves the range of {dtype}: {lost:,} of the "
                f"{wanted.size:,} elements of '{row.name}' are over {largest(dtype):,.0f} in fp32 "
                "and infinite here, and what is computed of them may be no number; scale its "
                "weights down, or use another precision (int8)"
            )
    return ""
