"""Weights quantised by blocks in a graph: the internal operator that multiplies by them.

    c = BlockQuantisedMatMul(a, q, scale, zero?)      [.., k] times n rows of codes: [.., n]

Scales are float32 or float16. Operands and meaning are those of
`search_space/operators/block_quantised_matmul.py`; attributes are `n`, `k`, `bits`, `block` and
`activations`. `q`, `scale` and `zero` are constants.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node, TensorInfo
from tilesmith.search_space.workloads.workload import ParameterValue

OPERATOR = "BlockQuantisedMatMul"


def parameters(node: Node, rows: int) -> dict[str, ParameterValue]:
    """A node as parameters of the template.

    Args:
        rows: of a, all leading axes together.
    """
    stated = {name: node.attribute(name) for name in ("n", "k", "bits", "block", "activations")}
    return {"m": rows, "zeros": int(bool(node.input(3))), **stated}


def result_info(node: Node, a: TensorInfo) -> TensorInfo:
    """Shape and element type of what a node gives, of what it multiplies."""
    shape = None if a.shape is None else (*a.shape[:-1], int(node.attribute("n")))
    return replace(a, name=node.writes[0], shape=shape)


def kept_scales(scales: NDArray[Any]) -> NDArray[Any]:
    """Scales as kernels read them: in 16 bits where that loses nothing, as it does not in models
    that were once of 16 bits."""
    wide = scales.astype(np.float32)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    same = np.array_equal(narrow.astype(np.float32), wide)
    return narrow if same else wide


def packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Codes along the last axis as bytes: two of 4 bits in each, the first in the lower half."""
    return codes if bits == 8 else np.asarray(codes[..., ::2] | codes[..., 1::2] << 4)
