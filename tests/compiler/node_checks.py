"""Single nodes of any domain as models, compiled natively and held against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.compiler.model_builder import assert_close, expected
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable

Values = Mapping[str, Any]

FLOAT = onnx.TensorProto.FLOAT


def node_model(
    operator: str,
    inputs: Values,
    *,
    outputs: Sequence[str] = ("y",),
    constants: Values | None = None,
    domain: str = "com.microsoft",
    version: int = 17,
    kinds: Mapping[str, int] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node.

    Args:
        inputs: arrays by name, in the operator's order; None for one left out.
        outputs: names of its outputs; "" for one left out.
        constants: those of the inputs that are the model's weights, by name.
        kinds: element types of outputs that are not float32, as ONNX numbers them.
    """
    constants = constants or {}
    order = [name if array is not None else "" for name, array in inputs.items()]
    node = helper.make_node(operator, order, list(outputs), "n", domain=domain, **attributes)
    fed = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
        if a is not None and n not in constants
    ]
    found = [
        helper.make_tensor_value_info(name, (kinds or {}).get(name, FLOAT), None)
        for name in filter(None, outputs)
    ]
    weights = [numpy_helper.from_array(np.asarray(inputs[n]), n) for n in constants]
    graph = helper.make_graph([node], "g", fed, found, weights)
    domains = {"": version, domain: version if domain == "" else 1}
    opsets = [helper.make_opsetid(name, version) for name, version in domains.items()]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 10
    return model


def check_node(
    operator: str, inputs: Values, *, tolerance: float = 2e-5, host: int = 0, **stated: Any
) -> Executable:
    """Compile a node, compare with onnxruntime, and count what is left on the host.

    Args:
        constants: names of inputs that are weights.
        stated: as `node_model`, and attributes.
    """
    names = stated.pop("constants", ())
    model = node_model(operator, inputs, constants=dict.fromkeys(names), **stated)
    executable = build(import_model(model), host_target())
    fed: dict[str, NDArray[Any]] = {
        n: a for n, a in inputs.items() if a is not None and n not in names
    }
    assert_close(executable.run(fed), expected(model, fed), tolerance)
    assert executable.report.host == host, f"{executable.report.host} nodes are on the host"
    return executable
