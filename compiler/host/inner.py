"""The host's own operators as classes of `onnx.reference`, which runs the bodies of If, Loop, Scan
and the functions that ONNX defines operators by (Gelu by Erf).

Without them an operator that the host computes itself, because `onnx.reference` is wrong, would be
wrong inside a body. Invariant: what runs is the same function, inside a body and outside.
"""

from functools import cache
from typing import Any

from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tilesmith.compiler.host.operators.call import Operator, OperatorCall, Results, own_operators
from tilesmith.compiler.host.operators.loops import HostLoop, Scan
from tilesmith.compiler.host.operators.optional import Optional


class _Own(OpRun):
    """An operator by the function that computes it on the host."""

    op_domain = ""
    operator: Operator
    onnx_node: Any
    run_params: dict[str, Any]

    def _run(self, *arrays: Any, **stated: Any) -> Results:
        attributes = {
            a.name: _text(stated.get(a.name, helper.get_attribute_value(a)))
            for a in self.onnx_node.attribute
        }
        written = sum(bool(name) for name in self.onnx_node.output)
        opset = self.run_params["opsets"].get("", 1)
        return type(self).operator(OperatorCall(attributes, arrays, opset, written))


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@cache
def own_classes(opset: int) -> list[type[OpRun]]:
    """Classes for the `new_ops` of a `ReferenceEvaluator` of a model of this opset."""
    classes: list[type[OpRun]] = [type("Loop", (HostLoop,), {}), Optional, Scan]
    for name, function in sorted(own_operators(opset).items()):
        classes.append(type(name, (_Own,), {"operator": staticmethod(function)}))
    return classes


class NodeEvaluator(ReferenceEvaluator):
    """`onnx.reference` with the host's own operators wherever it comes upon them."""

    def __init__(self, proto: Any, opsets: dict[str, int] | None = None, **stated: Any) -> None:
        versions = opsets or {one.domain: one.version for one in proto.opset_import}
        own = stated.pop("new_ops", None) or own_classes(versions.get("", 1))
        super().__init__(proto, opsets, new_ops=own, **stated)
