"""What ONNX leaves open, so that no implementation of it is wrong.

Numbers that a whole type cannot hold and are cast to it; sums, products and powers of whole numbers
that leave their type; quotients by zero; what bytes stand for numbers that are none.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node
from tilesmith.search_space.expressions.dtypes import to_numpy

Array = NDArray[Any]

_WHOLE: Mapping[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power,
    "Neg": np.negative, "Abs": np.abs, "Mod": lambda a, b: np.where(b == 0, np.inf, b),
}  # fmt: skip
_CODED = ("Cast", "CastLike", "QuantizeLinear", "DynamicQuantizeLinear")


def opens(node: Node) -> bool:
    """Whether ONNX leaves something of an operator open."""
    return node.is_onnx(*_CODED, *_WHOLE)


def left_open(node: Node, read: Sequence[Array], dtype: str) -> NDArray[np.bool_]:
    """Which elements of a result may be anything; of a shape that broadcasts to the result's.

    Args:
        read: its first operands.
        dtype: of the result.
    """
    kind, source = to_numpy(dtype), read[0]
    if node.is_onnx("DynamicQuantizeLinear"):
        return np.asarray(not np.isfinite(source.astype(np.float64)).all())
    if node.is_onnx("QuantizeLinear"):
        return np.asarray(np.isnan(source.astype(np.float64)))
    if kind.kind not in "iu":
        return np.asarray(False)
    limits = np.iinfo(kind)
    with np.errstate(all="ignore"):
        if node.is_onnx("Cast", "CastLike"):
            wide = source.astype(np.float64)
        else:
            wide = _WHOLE[node.operator](*(part.astype(np.float64) for part in read))
        return np.asarray(~((wide > limits.min - 1.0) & (wide < limits.max + 1.0)))
