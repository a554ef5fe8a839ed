"""Det on the host, in numpy, which has no determinants of float16: `onnx.reference` fails there."""

from __future__ import annotations

import numpy as np

from tilesmith.compiler.host.call import Call, Results


def det(call: Call) -> Results:
    """Determinants of the matrices along the last two axes; opsets 11 to 22."""
    (x,) = call.inputs
    wide = x.astype(np.result_type(x.dtype, np.float32))
    return (np.asarray(np.linalg.det(wide)).astype(x.dtype),)
