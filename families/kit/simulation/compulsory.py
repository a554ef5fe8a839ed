"""What a kernel has to move, whatever its schedule: the part of a roofline that memory gives.

Every operand once and the result once. A copy (a gather, a slice) reads no more of an operand than
it writes: of a table the rows that are picked, and what is not picked stays where it is.
"""

from collections.abc import Mapping
from math import prod

from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.workloads.template import Operand, template_of
from tilesmith.search_space.workloads.workload import Workload


def read_bytes(workload: Workload) -> Mapping[str, int]:
    """Bytes that have to be read, by operand."""
    template = template_of(workload.operator)
    sizes = {o.name: nbytes_of(o) for o in template.operands(workload)}
    if template.flops(workload):
        return sizes
    written = nbytes_of(template.output(workload))
    return {name: min(nbytes, written) for name, nbytes in sizes.items()}


def compulsory_bytes(workload: Workload) -> int:
    """Bytes that have to be read or written."""
    written = nbytes_of(template_of(workload.operator).output(workload))
    return sum(read_bytes(workload).values()) + written


def nbytes_of(operand: Operand) -> int:
    """Bytes of a whole tensor."""
    return prod(operand.shape) * size_of(operand.dtype)
