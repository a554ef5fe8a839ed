"""Small models that are wrong: mutations of right ones, for the tests and `benchmarks.fuzzing`.

The seeds are ONNX's own cases of every operator. Whoever asks gives `choose(n)`, a number from 0 to
n - 1, so that random generators and hypothesis draw from the same mutations. Invariants: the same
choices give the same bytes; a seed is never changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

Choose = Callable[[int], int]

_INTEGERS = (
    0, 1, -1, 2, -2, 3, 7, 64, -64, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 40,
    1 << 62, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
_FLOATS = (0.0, -1.0, 0.5, 1e-38, 3e38, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    b"",
    b"NOTSET",
    b"SAME_UPPER",
    b"linear",
    b"nearest",
    b"wrap",
    b"ij,jk->ik",
    b"\xff",
    b"x",
)
_EXTENTS = (0, 1, 2, 3, 5, 17, -1, 1 << 16, 1 << 31, 1 << 40, (1 << 62), (1 << 63) - 1)
_DTYPES = tuple(sorted(TensorProto.DataType.values()))
_OPSETS = (1, 6, 7, 9, 10, 11, 12, 13, 15, 17, 18, 19, 21, 22, 23)


@cache
def seeds(largest: int = 4000) -> tuple[onnx.ModelProto, ...]:
    """ONNX's cases of nodes, those of at most `largest` bytes."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return tuple(
        case.model for case in cases if case.model is not None and case.model.ByteSize() <= largest
    )


def mutant(seed: onnx.ModelProto, choose: Choose, most: int = 3) -> bytes:
    """A model file that is the seed after one to `most` mutations."""
    model = onnx.ModelProto()
    model.CopyFrom(seed)
    for _ in range(1 + choose(most)):
        MUTATIONS[choose(len(MUTATIONS))](model, choose)
    content = model.SerializeToString()
    if choose(32) == 0:
        return content[: choose(len(content))]
    if choose(32) == 0:
        place = choose(len(content))
        return content[:place] + bytes([choose(256)]) + content[place + 1 :]
    return content


def _of(choose: Choose, items: Sequence[Any]) -> Any:
    return items[choose(len(items))]


def _node(model: onnx.ModelProto, choose: Choose) -> onnx.NodeProto:
    return _of(choose, model.graph.node) if model.graph.node else model.graph.node.add()


# -- attributes ---------------------------------------------------------------------------------
def _change_attribute(model: onnx.ModelProto, choose: Choose) -> None:
    node = _node(model, choose)
    if not node.attribute:
        _add_attribute(model, choose)
        return
    found = _of(choose, node.attribute)
    if found.type == AttributeProto.INT:
        found.i = _of(choose, _INTEGERS)
    elif found.type == AttributeProto.FLOAT:
        found.f = _of(choose, _FLOATS)
    elif found.type == AttributeProto.STRING:
        found.s = _of(choose, _TEXTS)
    elif found.type == AttributeProto.TENSOR:
        _spoil(found.t, choose)
    elif found.type == AttributeProto.INTS:
        _change_list(found.ints, _INTEGERS, choose)
    elif found.type == AttributeProto.FLOATS:
        _change_list(found.floats, _FLOATS, choose)
    else:
        node.attribute.remove(found)


def _change_list(values: Any, others: Sequence[Any], choose: Choose) -> None:
    way = choose(4)
    if way == 0:
        del values[:]
    elif way == 1:
        values.append(_of(choose, others))
    elif values and way == 2:
        del values[choose(len(values))]
    elif values:
        values[choose(len(values))] = _of(choose, others)


def _add_attribute(model: onnx.ModelProto, choose: Choose) -> None:
    """One that the operator's schema has, of its type; now and then one it does not have."""
    node = _node(model, choose)
    schema = _schema(model, node)
    names = sorted(schema.attributes) if schema is not None else []
    if not names or choose(4) == 0:
        name = _of(choose, ("axis", "ceil_mode", "pads", "group"))
        value = _of(choose, (0, [], [1, 2], "x", 1.5))
        kind = AttributeProto.INTS if value == [] else None
    else:
        name = _of(choose, names)
        kind = int(schema.attributes[name].type.value)  # type: ignore[union-attr]
        values: dict[int, Any] = {
            AttributeProto.INT: _of(choose, _INTEGERS),
            AttributeProto.FLOAT: _of(choose, _FLOATS),
            AttributeProto.STRING: _of(choose, _TEXTS),
            AttributeProto.INTS: [_of(choose, _INTEGERS) for _ in range(choose(4))],
            AttributeProto.FLOATS: [_of(choose, _FLOATS) for _ in range(choose(4))],
        }
        if kind not in values:
            return
        value = values[kind]
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value, attr_type=kind)])


def _schema(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.defs.OpSchema | None:
    version = next((e.version for e in model.opset_import if e.domain == node.domain), 1)
    if not onnx.defs.has(node.op_type, version, node.domain):
        return None
    return onnx.defs.get_schema(node.op_type, version, node.domain)


def _drop_attribute(model: onnx.ModelProto, choose: Choose) -> None:
    node = _node(model, choose)
    if node.attribute:
        del node.attribute[choose(len(node.attribute))]


# -- nodes --------------------------------------------------------------------------------------
def _change_names(model: onnx.ModelProto, choose: Choose) -> None:
    """Of what a node reads or writes: one left out, blank, twice, exchanged or unknown."""
    node = _node(model, choose)
    names = _of(choose, (node.input, node.input, node.output))
    way = choose(6)
    if not names or way == 0:
        names.append(_of(choose, _names(model)))
    elif way == 1:
        del names[choose(len(names))]
    elif way == 2:
        names[choose(len(names))] = ""
    elif way == 3:
        names[choose(len(names))] = "unknown"
    else:
        names[choose(len(names))] = _of(choose, _names(model))


def _names(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    known = [value.name for value in (*graph.input, *graph.initializer, *graph.output)]
    return known + [name for node in graph.node for name in node.output] or [""]


def _change_operator(model: onnx.ModelProto, choose: Choose) -> None:
    schemas = _schemas()
    _node(model, choose).op_type = _of(choose, schemas)


@cache
def _schemas() -> tuple[str, ...]:
    return tuple(sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}))


def _change_opset(model: onnx.ModelProto, choose: Choose) -> None:
    if model.opset_import:
        model.opset_import[0].version = _of(choose, _OPSETS)


def _append(model: onnx.ModelProto, choose: Choose) -> None:
    """An operator behind one of the outputs, whose result is an output instead."""
    if not model.graph.output:
        return
    value = _of(choose, model.graph.output)
    operator, attributes = _of(
        choose,
        (
            ("Relu", {}), ("Softmax", {"axis": 1}), ("ReduceMean", {"keepdims": 0}),
            ("Transpose", {}), ("LRN", {"size": 3}), ("GlobalAveragePool", {}),
            ("Flatten", {"axis": 1}), ("Cast", {"to": 1}), ("Shape", {}), ("MatMul", {}),
            ("Concat", {"axis": 0}), ("Mul", {}),
        ),
    )  # fmt: skip
    arity = 2 if operator in ("MatMul", "Concat", "Mul") else 1
    name = f"behind_{len(model.graph.node)}"
    model.graph.node.append(helper.make_node(operator, [value.name] * arity, [name], **attributes))
    value.name = name
    value.type.tensor_type.ClearField("shape")


# -- tensors ------------------------------------------------------------------------------------
def _change_shape(model: onnx.ModelProto, choose: Choose) -> None:
    graph = model.graph
    values = [*graph.input, *graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    kind = _of(choose, values).type.tensor_type
    dims, way = kind.shape.dim, choose(6)
    if way == 0:
        kind.ClearField("shape")
    elif way == 1:
        dims.add().dim_value = _of(choose, _EXTENTS)
    elif dims and way == 2:
        del dims[choose(len(dims))]
    elif dims and way == 3:
        dims[choose(len(dims))].dim_param = _of(choose, ("n", "a b", ""))
    elif dims:
        dims[choose(len(dims))].dim_value = _of(choose, _EXTENTS)


def _change_dtype(model: onnx.ModelProto, choose: Choose) -> None:
    values = [*model.graph.input, *model.graph.input, *model.graph.output, *model.graph.value_info]
    if values:
        _of(choose, values).type.tensor_type.elem_type = _of(choose, _DTYPES)


def _declare(model: onnx.ModelProto, choose: Choose) -> None:
    """A type for what a node writes, which may be a lie."""
    names = [name for node in model.graph.node for name in node.output if name]
    if names:
        shape = [_of(choose, _EXTENTS[:6]) for _ in range(choose(5))]
        value = helper.make_tensor_value_info(_of(choose, names), _of(choose, _DTYPES), shape)
        model.graph.value_info.append(value)


def _make_constant(model: onnx.ModelProto, choose: Choose) -> None:
    """An input becomes a weight of numbers that are odd as axes, shapes or sizes."""
    values = [v for v in model.graph.input if v.type.tensor_type.elem_type]
    if not values:
        return
    value = _of(choose, values)
    kind = value.type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    if any(extent < 0 for extent in shape) or np.prod(shape, dtype=float) > 4096:
        return
    try:
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        count = int(np.prod(shape))
        whole = dtype.kind in "iu"
        numbers = [_of(choose, _INTEGERS if whole else _FLOATS) for _ in range(min(count, 8))]
        with np.errstate(all="ignore"):
            array = np.resize(np.array(numbers or [0]), shape).astype(dtype)
        tensor = numpy_helper.from_array(array, value.name)
    except (KeyError, TypeError, ValueError, NotImplementedError):
        return
    model.graph.initializer.append(tensor)
    if choose(2):
        model.graph.input.remove(value)


def _change_weight(model: onnx.ModelProto, choose: Choose) -> None:
    if model.graph.initializer:
        _spoil(_of(choose, model.graph.initializer), choose)


def _spoil(tensor: onnx.TensorProto, choose: Choose) -> None:
    way = choose(5)
    if way == 0:
        tensor.data_type = _of(choose, _DTYPES)
    elif way == 1:
        tensor.dims.append(_of(choose, _EXTENTS))
    elif tensor.dims and way == 2:
        tensor.dims[choose(len(tensor.dims))] = _of(choose, _EXTENTS)
    elif tensor.int64_data and way == 3:
        tensor.int64_data[choose(len(tensor.int64_data))] = _of(choose, _INTEGERS)
    elif tensor.raw_data:
        tensor.raw_data = tensor.raw_data[: choose(len(tensor.raw_data))]
    else:
        tensor.name = ""


MUTATIONS: tuple[Callable[[onnx.ModelProto, Choose], None], ...] = (
    _change_attribute, _change_attribute, _add_attribute, _drop_attribute, _change_names,
    _change_names, _change_operator, _change_opset, _append, _change_shape, _change_shape,
    _change_dtype, _declare, _make_constant, _make_constant, _change_weight,
)  # fmt: skip
"""What can be done to a model in place; those that find most stand there twice."""
