"""Runs a graph at any stage of compilation in numpy: the yardstick that passes are checked against.

Kernels are computed by their template's reference and the epilogue's formulas, views and joins by
reshaping, everything else by `onnx.reference`. Invariant: uses no schedule and no generated code.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import BRANCH, Graph, Node
from tilesmith.compiler.host.kernels import run_kernel
from tilesmith.compiler.host.nodes import HostFunction
from tilesmith.search_space.expressions.dtypes import to_numpy

Arrays = Mapping[str, NDArray[Any]]


def run_reference(graph: Graph, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Outputs by name, from inputs by name."""
    values: dict[str, Any] = {**graph.constants, **inputs}
    for node in graph.nodes:
        values.update(run_node(graph, node, values))
    return {info.name: values[info.name] for info in graph.outputs}


def run_node(graph: Graph, node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of one node, from the values of all that it reads, by name."""
    if node.kind == "host":
        return HostFunction.of(node, graph.opsets).run(values)
    if node.kind == "control":
        return _run_control(graph, node, values)
    result = graph.info(node.outputs[0])
    if node.kind == "view":
        flat = values[node.inputs[0]].reshape(-1)
        start = int(node.attribute("offset", 0))
        return {result.name: flat[start : start + result.elements].reshape(result.dims)}
    if node.kind == "join":
        parts = [values[name].reshape(-1) for name in node.inputs]
        return {result.name: np.concatenate(parts).reshape(result.dims)}
    return {result.name: run_kernel(node, values).reshape(result.dims)}


def _run_control(graph: Graph, node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """A loop or a branch, iteration by iteration."""
    given = [values[name] for name in node.inputs]
    infos = [graph.info(name) if name else None for name in node.outputs]
    results = [
        None if info is None else np.zeros(info.dims, to_numpy(info.dtype)) for info in infos
    ]
    if node.operator == BRANCH:
        body, trips, test = node.bodies[0 if given[0].reshape(-1)[0] else 1], 1, ""
    else:
        (body,), trips, test = node.bodies, node.attribute("trips"), node.attribute("test")
        limit = node.attribute("limit")
        trips = min(trips, int(given[limit].reshape(-1)[0])) if limit >= 0 else trips
    state = {c.entry: given[c.initial] if c.initial >= 0 else True for c in body.carried}
    for step in range(trips):
        if test and not np.all(state[test]):
            break
        inside = {name: given[number] for number, name in body.shared} | state
        for row in body.reads:
            inside[row.inside] = given[row.outside][row.start + row.step * step]
        if body.counter:
            inside[body.counter] = np.int64(step)
        shaped = {  # what a body has as an input and nobody fills, nobody reads
            info.name: np.array(
                np.broadcast_to(np.reshape(inside[info.name], info.dims), info.dims),
                to_numpy(info.dtype),
            )
            if info.name in inside
            else np.zeros(info.dims, to_numpy(info.dtype))
            for info in body.graph.inputs
        }
        outputs = run_reference(body.graph, shaped)
        state = {c.entry: outputs[c.exit] for c in body.carried}
        for row in body.writes:
            target = results[row.outside]
            assert target is not None
            part = target if row.step == 0 else target[row.start + row.step * step, ...]
            part[...] = outputs[row.inside]
    for carried in body.carried:
        if carried.final >= 0:
            results[carried.final] = np.asarray(state[carried.entry])
    return {name: result for name, result in zip(node.outputs, results, strict=True) if name}
