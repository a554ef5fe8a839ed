"""Det and Inverse on the host, in numpy, which has none of float16.

`onnx.reference` fails there for Det; ONNX has no Inverse, com.microsoft does.
"""

import numpy as np

from tilesmith.compiler.host.operators.call import OperatorCall, Results, host_operator


@host_operator("Det")
def det(call: OperatorCall) -> Results:
    """Determinants of the matrices along the last two axes; opsets 11 to 22."""
    (x,) = call.inputs
    wide = x.astype(np.result_type(x.dtype, np.float32))
    return (np.asarray(np.linalg.det(wide)).astype(x.dtype),)


@host_operator("Inverse")
def inverse(call: OperatorCall) -> Results:
    """Inverses of the matrices along the last two axes.

    Raises:
        ValueError: a matrix has none.
    """
    (x,) = call.inputs
    wide = x.astype(np.result_type(x.dtype, np.float32))
    return (np.asarray(np.linalg.inv(wide)).astype(x.dtype),)
