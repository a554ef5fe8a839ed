"""BlockQuantisedMatMul in numpy: its template's reference, leading axes as rows."""

import math

import numpy as np

from tilesmith.compiler.host.operators.call import OperatorCall, Results, host_operator
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


@host_operator("BlockQuantisedMatMul")
def block_quantised_matmul(call: OperatorCall) -> Results:
    a, q, scale, zero = (call.input(position) for position in range(4))
    names = ("n", "k", "bits", "block", "activations")
    stated = {name: call.attributes[name] for name in names}
    stated |= {"m": max(1, math.prod(a.shape[:-1])), "zeros": int(zero is not None)}
    stated["scales"] = str(scale.dtype)
    workload = Workload.of("block_quantised_matmul", stated)
    arrays = {"a": a.reshape(-1, a.shape[-1]), "q": q, "scale": scale}
    arrays |= {} if zero is None else {"zero": zero}
    product = template_of(workload.operator).reference(workload, arrays)
    return (np.asarray(product.reshape(*a.shape[:-1], -1), a.dtype),)
