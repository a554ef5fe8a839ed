"""Which matrix products an operator is: what an array of multiply-adders does of a model.

Every machine of the family counts by these. Invariant: the operations of the products are those of
the operator's definition, its epilogue apart.
"""

from dataclasses import dataclass

from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class EqualProducts:
    """`count` matrix products of m x n x k, one after the other."""

    count: int
    m: int
    n: int
    k: int


def products_of(workload: Workload) -> tuple[EqualProducts, ...]:
    """The matrix products that an operator is on such an array.

    A convolution is one of pixels x filters x window elements for each image and group (SCALE-Sim's
    mapping), a depthwise one for each channel; attention is two for each head.

    Raises:
        WorkloadError: it is none.
    """
    integer = workload.integer
    match workload.operator:
        case "matmul":
            return (EqualProducts(integer("batch"), integer("m"), integer("n"), integer("k")),)
        case "conv2d" | "depthwise_conv2d":
            depthwise = workload.operator == "depthwise_conv2d"
            groups = integer("c") if depthwise else integer("groups")
            filters = groups if depthwise else integer("oc")
            height, width = template_of(workload.operator).output(workload).shape[2:4]
            window = integer("c") // groups * integer("kh") * integer("kw")
            count = integer("n") * groups
            return (EqualProducts(count, height * width, filters // groups, window),)
        case "attention":
            m, n, k, v = (integer(name) for name in "mnkv")
            heads = integer("batch") * integer("heads")
            return EqualProducts(heads, m, n, k), EqualProducts(heads, m, v or k, n)
    raise WorkloadError(
        f"a systolic array simulates matrix products; operator '{workload.operator}' is none, "
        "use matmul, conv2d, depthwise_conv2d or attention"
    )
