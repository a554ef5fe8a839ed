"""A kernel in numpy: its template's reference and the epilogue's formulas.

It exists apart from `reference`, which runs whole graphs, because a host node may stand for a
kernel. Invariant: uses no schedule and no generated code.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads import epilogue
from tilesmith.search_space.workloads.template import template_of


def run_kernel(node: Node, values: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """A kernel's result in its template's logical shape.

    Raises:
        JobError: an index is out of range.
    """
    workload = node.work
    template = template_of(workload.operator)
    operands = {
        operand.name: np.asarray(values[name]).reshape(operand.shape)
        for operand, name in zip(template.operands(workload), node.inputs, strict=True)
    }
    for name, extents in template.index_extents(workload).items():
        if fault := index_fault(operands[name], extents):
            raise JobError(f"{workload.operator} '{node.name}' {fault}")
    with np.errstate(all="ignore"):
        value = template.reference(workload, operands)
        value = epilogue.reference(
            workload.epilogue, value, operands, template.channel_axis(workload)
        )
    return np.asarray(value, dtype=to_numpy(template.output(workload).dtype))
