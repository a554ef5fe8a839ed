"""A small model to try things with: the product of an input with weights, cut off at zero."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.jobs.compilation.compiling import build_fixed
from tilesmith.jobs.requests.request import Request

if TYPE_CHECKING:
    from tilesmith.compiler.runtime.executable import Executable


def product(rows: int, inner: int, columns: int) -> "tuple[Executable, NDArray[Any], NDArray[Any]]":
    """The model compiled for this machine at default schedules on one thread, values for its input
    `x` and what numpy gives for its output `y`.

    Raises:
        TilesmithError: it cannot be compiled.
    """
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, inner)).astype(np.float32)
    w = rng.standard_normal((inner, columns)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    taken, given = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (rows, inner)), ("y", (rows, columns)))
    )
    weights = [numpy_helper.from_array(w, "w")]
    graph = helper.make_graph(nodes, "product", [taken], [given], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    request = Request(model, database=None, threads=1).resolved()
    return build_fixed(request, require_tuned=False), x, np.maximum(x @ w, 0)
