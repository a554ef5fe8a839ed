"""Operators that `onnx.reference` computes wrongly or not at all: which, and who computes them.

Found by comparing with onnxruntime and the standard's text. Invariant: a function takes a
`OperatorCall` and returns the outputs in order, values and dtypes as ONNX's text defines them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import cache

from tilesmith.compiler.host.operators.call import OperatorCall, Results
from tilesmith.compiler.host.operators.columns import col2im
from tilesmith.compiler.host.operators.earlier import (
    flattened_log_softmax,
    flattened_softmax,
    grid_sample,
    scaled,
)
from tilesmith.compiler.host.operators.factorisations import (
    cholesky,
    eigenvectors,
    from_reflections,
    lu,
    reflections,
    singular_vectors,
    triangular_solve,
)
from tilesmith.compiler.host.operators.grids import affine_grid
from tilesmith.compiler.host.operators.indexing import (
    gather_elements,
    one_hot,
    progression,
    scatter_elements,
)
from tilesmith.compiler.host.operators.matrices import det, inverse
from tilesmith.compiler.host.operators.normalisations import (
    batch_normalization,
    flattened_hardmax,
    group_normalization,
    layer_normalization,
    lp_normalization,
    lrn,
    mean_variance_normalization,
)
from tilesmith.compiler.host.operators.padding import pad
from tilesmith.compiler.host.operators.quantisation import (
    dequantise,
    dequantize_linear,
    quantise,
    quantize_linear,
)
from tilesmith.compiler.host.operators.quantised_products import block_quantised_matmul
from tilesmith.compiler.host.operators.reductions import (
    reduce_log_sum,
    reduce_log_sum_exp,
    reduce_sum_square,
)
from tilesmith.compiler.host.operators.regions import max_roi_pool, roi_align
from tilesmith.compiler.host.operators.suppression import non_max_suppression
from tilesmith.compiler.host.operators.windows import (
    average_pool,
    conv,
    conv_transpose,
    global_average_pool,
    global_lp_pool,
    global_max_pool,
    lp_pool,
    max_pool,
)

Operator = Callable[[OperatorCall], Results]

OPERATORS: dict[str, Operator] = {
    "AffineGrid": affine_grid,
    "AveragePool": average_pool,
    "BatchNormalization": batch_normalization,
    "BlockQuantisedMatMul": block_quantised_matmul,
    "Cholesky": cholesky,
    "Col2Im": col2im,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Dequantise": dequantise,
    "DequantizeLinear": dequantize_linear,
    "Det": det,
    "Eigenvectors": eigenvectors,
    "FromReflections": from_reflections,
    "GatherElements": gather_elements,
    "GroupNormalization": group_normalization,
    "GlobalAveragePool": global_average_pool,
    "GlobalLpPool": global_lp_pool,
    "GlobalMaxPool": global_max_pool,
    "Inverse": inverse,
    "LRN": lrn,
    "LU": lu,
    "LayerNormalization": layer_normalization,
    "LpNormalization": lp_normalization,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "MaxRoiPool": max_roi_pool,
    "MeanVarianceNormalization": mean_variance_normalization,
    "NonMaxSuppression": non_max_suppression,
    "OneHot": one_hot,
    "Pad": pad,
    "Quantise": quantise,
    "QuantizeLinear": quantize_linear,
    "Range": progression,
    "ReduceLogSum": reduce_log_sum,
    "ReduceLogSumExp": reduce_log_sum_exp,
    "ReduceSumSquare": reduce_sum_square,
    "Reflections": reflections,
    "RoiAlign": roi_align,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "SingularVectors": singular_vectors,
    "TriangularSolve": triangular_solve,
}
"""What is computed here instead of by `onnx.reference`, by ONNX operator."""

COMPILED = frozenset({"NonMaxSuppression", "RoiAlign"})
"""Those of them whose loops run as native code, which nothing else computes faster."""

_EARLIER: Mapping[int, Mapping[str, Operator]] = {
    10: {"Upsample": scaled},
    11: {"Resize": scaled},
    13: {
        "Hardmax": flattened_hardmax,
        "LogSoftmax": flattened_log_softmax,
        "Softmax": flattened_softmax,
    },
    20: {"GridSample": grid_sample},
}
"""The same for models of an opset before the one given."""


@cache
def own_operators(opset: int) -> Mapping[str, Operator]:
    """What computes ONNX operators here; none of those that `onnx.reference` has right."""
    earlier = (own for since, own in _EARLIER.items() if opset < since)
    return dict(ChainMap(*map(dict, earlier), OPERATORS))
