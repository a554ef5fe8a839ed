"""Runs a graph at any stage of compilation in numpy: the yardstick that passes are checked against.

Kernels are computed by their template's reference and the epilogue's formulas, views and joins by
reshaping, everything else by `onnx.reference`. Invariant: uses no schedule and no generated code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph import Graph, Node
from tilesmith.compiler.host.kernels import run_kernel
from tilesmith.compiler.host.nodes import HostFunction

Arrays = Mapping[str, NDArray[Any]]


def run_reference(graph: Graph, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Outputs by name, from inputs by name."""
    values: dict[str, Any] = {**graph.constants, **inputs}
    for node in graph.nodes:
        values.update(_run_node(graph, node, values))
    return {info.name: values[info.name] for info in graph.outputs}


def _run_node(graph: Graph, node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    if node.kind == "host":
        return HostFunction.of(node, graph.opsets).run(values)
    result = graph.info(node.outputs[0])
    if node.kind == "view":
        flat = values[node.inputs[0]].reshape(-1)
        start = int(node.attribute("offset", 0))
        return {result.name: flat[start : start + result.elements].reshape(result.dims)}
    if node.kind == "join":
        parts = [values[name].reshape(-1) for name in node.inputs]
        return {result.name: np.concatenate(parts).reshape(result.dims)}
    return {result.name: run_kernel(node, values).reshape(result.dims)}
