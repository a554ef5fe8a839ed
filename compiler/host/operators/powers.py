"""Erf and Pow on the host: `onnx.reference` rounds erf of float64 to float32, and refuses whole
numbers to the power of negative ones."""

import numpy as np

from tilesmith.compiler.host.operators.call import OperatorCall, Results, host_operator
from tilesmith.search_space.workloads.error_function import erf


@host_operator("Erf")
def error_function(call: OperatorCall) -> Results:
    """The error function, in the type of its input (9)."""
    (x,) = call.inputs
    return (erf(x).astype(x.dtype),)


@host_operator("Pow")
def power(call: OperatorCall) -> Results:
    """x to the power of y, in the type of x (7, 12, 13, 15).

    A whole number's negative power is a fraction cut towards zero, as onnxruntime's is; of zero,
    which ONNX leaves open, it is the largest number of the type, as infinity is where it is cast.
    """
    x, y = call.inputs
    if not (x.dtype.kind in "iu" and y.dtype.kind in "i" and np.any(y < 0)):
        return (np.power(x, y).astype(x.dtype),)
    zeroth = np.where(x == 0, np.iinfo(x.dtype).max, 0)
    negative = np.where(x == -1, 1 - 2 * (y & 1), np.where(x == 1, 1, zeroth))
    return (np.where(y < 0, negative, np.power(x, np.maximum(y, 0))).astype(x.dtype),)
