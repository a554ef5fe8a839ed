"""Old versions of operators on the host, said in the words of newer ones.

`onnx.reference` knows many operators by their newest version only, and runs older nodes with its
defaults and meanings: wrongly, or not at all.
"""

import math
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tilesmith.compiler.host.operators.call import OperatorCall, Results, host_operator


def _newer(operator: str, opset: int, inputs: list[Any], **attributes: Any) -> Results:
    """One output of an operator of `opset`, by `onnx.reference`; None is an input left out."""
    names = ["" if array is None else f"x{i}" for i, array in enumerate(inputs)]
    node = helper.make_node(operator, names, ["y"], **attributes)
    given = {name: array for name, array in zip(names, inputs, strict=True) if name}
    infos = [helper.make_value_info(name, helper.make_empty_tensor_value_info("").type)
             for name in (*given, "y")]  # fmt: skip
    graph = helper.make_graph([node], "host", infos[:-1], infos[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (result,) = ReferenceEvaluator(model).run(None, given)
    return (np.asarray(result),)


@host_operator("Softmax", before=13)
def flattened_softmax(call: OperatorCall) -> Results:
    """Before opset 13: over all axes from `axis` (default 1) on, taken as one."""
    shifted, total = _flattened(call)
    return ((np.exp(shifted) / total).reshape(call.inputs[0].shape).astype(call.inputs[0].dtype),)


def _flattened(call: OperatorCall) -> tuple[Any, Any]:
    """Rows less their maxima, and the sums of their exponentials."""
    (x,) = call.inputs
    axis = int(call.attributes.get("axis", 1))
    axis += x.ndim if axis < 0 else 0
    flat = x.reshape(math.prod(x.shape[:axis]), -1).astype(np.result_type(x.dtype, np.float32))
    shifted = flat - flat.max(axis=1, keepdims=True, initial=-np.inf)
    return shifted, np.exp(shifted).sum(axis=1, keepdims=True)


@host_operator("GridSample", before=20)
def grid_sample(call: OperatorCall) -> Results:
    """Before opset 20 the modes of GridSample had the names of two axes."""
    mode = str(call.attributes.get("mode", "bilinear"))
    named = {"mode": {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)}
    return _newer("GridSample", 20, call.inputs, **{**call.attributes, **named})


@host_operator("Resize", before=11)
@host_operator("Upsample", before=10)
def scaled(call: OperatorCall) -> Results:
    """Upsample (to opset 9) and Resize of opset 10: place i is taken from i / scale.

    To the nearest is to the next place for scales below one, else to the one before, as the
    standard's example has it (resize_downsample_scales_nearest). Scales are an attribute (Upsample
    to opset 8) or the second input.
    """
    scales = call.attributes.get("scales")
    array = call.arrays[1] if scales is None else np.array(scales, np.float32)
    x = call.arrays[0]
    if str(call.attributes.get("mode", "nearest")) != "nearest":
        modes = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
        return _newer("Resize", 13, [x, None, array], **modes)
    for axis, scale in enumerate(array):
        places = np.arange(int(x.shape[axis] * float(scale))) / np.float32(scale)
        x = x.take((np.ceil if scale < 1 else np.floor)(places).astype(int), axis, mode="clip")
    return (x,)
