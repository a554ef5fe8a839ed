"""A graph as text that people read and compare: one line a tensor that is given, one a node.

    graph small, opset 17
      input x: float32[4x8]
      constant w: float32[8x6] = -2.33 to 1.94
      h: float32[4x6] = MatMul(x, w)
      y: float32[4x6] = Relu(h)  # activation
      output y

Invariants: equal graphs give equal texts on every machine; constants are summarised; a graph that
the verifier refuses has a text, too.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import AttributeValue, Graph, Node, Subgraph, TensorInfo
from tilesmith.search_space.workloads.workload import shape_text

_WHOLE = 4
"""Elements up to which an array is written out."""


def graph_text(graph: Graph) -> str:
    """The whole graph, without a newline at its end."""
    lines = [f"graph {graph.name}, opset {graph.opset}"]
    lines += [f"  input {_tensor(info)}" for info in graph.inputs]
    for name, value in graph.constants.items():
        lines.append(f"  constant {_named(graph, name)} = {_values(value)}")
    for name, outside in sorted(graph.converted.items()):
        lines.append(f"  converted {name}: {outside} outside")
    lines += [f"  {_node(graph, node)}" for node in graph.nodes]
    return "\n".join([*lines, *(f"  output {info.name}" for info in graph.outputs)])


def _node(graph: Graph, node: Node) -> str:
    results = ", ".join(_named(graph, name) if name else "_" for name in node.outputs)
    inputs = ", ".join(name or "_" for name in node.inputs)
    what = node.operator if node.workload is None else f"{{{node.workload}}}"
    text = f"{results} = {what}({inputs})"
    text += "".join(f" {name}={_attribute(value)}" for name, value in node.attributes)
    if node.captures:
        text += f" reading {', '.join(node.captures)}"
    return text if node.name in ("", *node.outputs) else f"{text}  # {node.name}"


def _named(graph: Graph, name: str) -> str:
    return _tensor(graph.tensors.get(name, TensorInfo(name, "", None)))


def _tensor(info: TensorInfo) -> str:
    shape = "?" if info.shape is None else shape_text(info.shape)
    return f"{info.name}: {info.dtype or '?'}[{shape}]"


def _attribute(value: AttributeValue) -> str:
    match value:
        case Subgraph(serialised):
            return f"<graph of {len(serialised)} bytes>"
        case np.ndarray():
            return f"{value.dtype}[{shape_text(value.shape)}] {_values(value)}"
        case tuple():
            return f"[{','.join(map(_attribute, value))}]"
        case float():
            return f"{value:.6g}"
        case _:
            return str(value)


def _values(array: NDArray[Any]) -> str:
    """All of a small array; the least and the greatest of a large one."""
    if array.dtype.kind in "OSU":
        return f"{array.size} texts"
    if array.dtype.kind == "V":  # bfloat16 and the like
        array = array.astype(np.float32)
    if array.size <= _WHOLE:
        return ", ".join(map(_number, array.reshape(-1))) or "nothing"
    return f"{_number(array.min())} to {_number(array.max())}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
