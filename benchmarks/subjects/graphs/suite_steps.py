"""Every operator of ONNX as something to append to a random graph, and inputs of every element
type, rank and size: what `random_graphs --all` draws from.

An operator comes with the attributes of one of ONNX's own cases (`operator_sweep.cases`), said in
the graph's opset, in any element type that it takes there. An input that the graph has a tensor of
the same type and shape for may be that one; others are inputs or initialisers of the case's values.
"""

from __future__ import annotations

import re

import numpy as np
from onnx import defs, helper

from benchmarks import operator_sweep
from benchmarks.subjects.graphs.quantised_graphs import Array, Graph, finite

DTYPES = (
    "float32", "float32", "float32", "float16", "float64", "int64", "int32", "int16", "int8",
    "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
SHAPES: tuple[tuple[int, ...], ...] = (
    (), (1,), (7,), (0,), (4, 8), (3, 0), (0, 4), (1, 1), (2, 3, 8), (2, 0, 3), (1, 3, 12),
    (1, 4, 6, 6), (2, 8, 5, 5), (1, 2, 4, 4, 4), (1, 2, 1, 2, 1, 2),
)  # fmt: skip
LEFT_OUT = {*operator_sweep.SKIPPED, *operator_sweep.BODIES, "Constant", "EyeLike", "Range"}
"""Operators that draw numbers, run graphs, or have no tensor to be given."""


def draw(graph: Graph) -> object:
    """An input of any element type, rank and size."""
    rng = graph.rng
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    graph.empty = graph.empty or 0 in shape
    return graph.input(values(rng, shape, np.dtype(str(rng.choice(DTYPES)))))


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Numbers that an element type holds."""
    drawn = rng.standard_normal(shape) * rng.choice([0.5, 1, 4])
    if dtype.kind == "b":
        return np.asarray(drawn > 0)
    if dtype.kind == "u":
        return np.asarray(np.abs(drawn * 4).astype(dtype))
    return np.asarray((drawn * (4 if dtype.kind == "i" else 1)).astype(dtype))


def any_operator(graph: Graph) -> object:
    """A node of any operator, in any element type that its schema allows."""
    rng, known = graph.rng, operator_sweep.cases(most=1000)
    operators = [n for n, cases in known.items() if cases and not (n in LEFT_OUT or _different(n))]
    operator = str(rng.choice(operators))
    case = known[operator][int(rng.integers(len(known[operator])))]
    try:
        schema = defs.get_schema(operator, graph.opset)
    except defs.SchemaError:
        return None
    said = operator_sweep.as_said_in(case, schema)
    if said is None or schema.deprecated:
        return None
    typed = operator_sweep.typed(said, schema, str(rng.choice(operator_sweep.kinds(schema))))
    if typed is None or any(v.size > 1 << 14 or not finite(v) for v in typed.inputs.values()):
        return None
    varied = operator_sweep.varied(typed, schema)
    names = {name: _operand(graph, value, name in varied) for name, value in typed.inputs.items()}
    attributes = {a.name: helper.get_attribute_value(a) for a in typed.node.attribute}
    inputs = [names.get(name, "") for name in typed.node.input]
    which = [bool(name) for name in typed.node.output]
    while which and not which[-1]:
        which.pop()
    return graph.add(operator, *inputs, results=which, **attributes)


def _different(operator: str) -> bool:
    """Whether onnxruntime is known to compute it otherwise than the standard says."""
    return any(re.search(pattern, f"{operator} ") for pattern in operator_sweep.DIFFERENT)


def _operand(graph: Graph, value: Array, varied: bool) -> str:
    """A tensor for an input: one there is, an input of the model, or an initialiser."""
    rng = graph.rng
    if varied:
        alike = graph.pick(lambda v: v.dtype == value.dtype and v.shape == value.shape)
        if alike and rng.random() < 0.7:
            return alike
        if rng.random() < 0.6 and value.dtype.kind in "fiub":
            return graph.input(value)
    return graph.constant(value, value.dtype)
