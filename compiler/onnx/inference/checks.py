"""What has to hold of a node before ONNX's own inference sees it.

That inference is native code which trusts attributes: a LayerNormalization of axis 2147483648 or a
Split into other than its outputs ends the process, and it looks at few element types. Here a node
is held against its operator's schema (the ONNX standard as data) and against ranges the standard
states in words. Invariant: everything is refused as a `ModelError` that names node and attribute or
operand, what it is and what is allowed; nothing is changed.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx
from onnx import AttributeProto
from onnx.defs import OpSchema

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node, TensorInfo
from tilesmith.compiler.onnx.inference.inference import DTYPE_NUMBERS
from tilesmith.compiler.onnx.inference.shape_faults import SHAPE_FAULTS
from tilesmith.compiler.onnx.inference.words import word_faults
from tilesmith.search_space.expressions.dtypes import STORED, size_of
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.support.suggestions import did_you_mean
from tilesmith.search_space.workloads.workload import shape_text

_MOST_BYTES = 1 << 40
"""Of one tensor; more no machine that runs a model holds, and sizes stay far below 2^63."""

_MOST_AXES = 64
"""Of one tensor, as in numpy."""

_WHOLE = 1 << 31
"""Integer attributes are smaller: ONNX's inference keeps some of them in 32 bits."""

_ANY_INTEGER = frozenset({"Constant", "Slice", "ConstantOfShape", "TfIdfVectorizer"})
"""Operators with attributes that may be any 64-bit integer ("to the end")."""

_FLAGS = frozenset(
    {
        "allowzero", "align_corners", "ceil_mode", "center_point_box", "count_include_pad",
        "exclusive", "is_causal", "keepdims", "largest", "noop_with_empty_axes", "onesided",
        "periodic", "reverse", "select_last_index", "sorted", "storage_order", "transA", "transB",
        "antialias", "exclude_outside", "interleaved", "input_forget", "linear_before_reset",
        "inverse", "training_mode",
    }
)  # fmt: skip
"""Attributes that are 0 or 1."""

_POSITIVE = frozenset(
    {
        "blocksize", "dilations", "group", "hidden_size", "kernel_shape", "kv_num_heads",
        "num_groups", "num_heads", "num_outputs", "q_num_heads", "sample_size", "size", "strides",
    }
)  # fmt: skip
"""Attributes that count something there has to be at least one of."""

_DTYPES = frozenset({"dtype", "output_datatype", "stash_type", "to"})
"""Attributes that number an element type."""

_MOST_SKIPPED = 1 << 16
"""The largest `max_skip_count` of a TfIdfVectorizer: what runs it tries every number up to it, even
those that no row is long enough for."""

_LONGEST_WINDOW = 1 << 26
"""The largest extent of `kernel_shape`: 23 minutes of sound at 48 kHz. Windows of 2^31 over a small
padded tensor have few results, and each of them takes seconds."""

_MAY_BE_ZERO = {("RotaryEmbedding", "num_heads")}
"""(operator, attribute) where 0, the default, stands for a number found otherwise."""

_BEHIND = {"Flatten": 1, "OneHot": 1, "ConcatFromSequence": None, "SequenceAt": None}
"""How far `axis` may lie behind the last axis of the first input; None: it is not about that."""

_PER_TENSOR = frozenset({"QuantizeLinear", "DequantizeLinear"})
"""Operators whose `axis` says nothing where there is one scale for all, and may then be any."""

_TYPES: dict[int, str] = {
    AttributeProto.INT: "an integer", AttributeProto.FLOAT: "a number",
    AttributeProto.STRING: "a text", AttributeProto.INTS: "a list of integers",
    AttributeProto.FLOATS: "a list of numbers", AttributeProto.STRINGS: "a list of texts",
    AttributeProto.TENSOR: "a tensor", AttributeProto.GRAPH: "a graph",
}  # fmt: skip


def check_attributes_of(graph: onnx.GraphProto, opsets: Mapping[str, int], model: str) -> None:
    """`check_attributes` of every node of a graph, those of nested graphs included."""
    for node in graph.node:
        name = node.name or next(filter(None, node.output), "")
        check_attributes(node, opsets, f"{node.op_type} '{name}' of '{model}'")
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                check_attributes_of(inner, opsets, model)


def check_attributes(proto: onnx.NodeProto, opsets: Mapping[str, int], describe: str) -> None:
    """What can be told of a node without knowing its inputs: for nodes of nested graphs, too.

    Raises:
        ModelError: an attribute that the operator does not have, or of another type or range; a
            blank name among its inputs where the operator needs one; a Constant without a value.
    """
    schema = schema_of(proto.op_type, proto.domain, opsets)
    if schema is None:
        return
    given = {attribute.name for attribute in proto.attribute}
    if len(given) < len(proto.attribute):
        raise ModelError(f"{describe} has two attributes of one name")
    for attribute in proto.attribute:
        for wrong in _attribute_faults(schema, attribute, proto):
            raise ModelError(f"{describe}: attribute '{attribute.name}' {wrong}")
    for name, formal in schema.attributes.items():
        if formal.required and name not in given:
            raise ModelError(f"{describe} lacks the attribute '{name}', which it has to have")
    if proto.op_type == "Constant" and schema.domain == "" and len(given) != 1:
        known = ", ".join(sorted(schema.attributes))
        raise ModelError(f"{describe} has {len(given)} values; it has to have one of {known}")
    _check_names(schema, proto, describe)


def schema_of(operator: str, domain: str, opsets: Mapping[str, int]) -> OpSchema | None:
    """The standard's schema of an operator; None where it has none.

    Of QuantizeLinear and DequantizeLinear that of opset 13 for models of earlier ones, too, into
    which ONNX Runtime's quantiser writes the axis that they have since.
    """
    domain = "" if domain == "ai.onnx" else domain
    version = opsets.get(domain, 1)
    if not domain and operator in ("QuantizeLinear", "DequantizeLinear") and version >= 10:
        version = max(version, 13)
    if not onnx.defs.has(operator, version, domain):
        return None
    return onnx.defs.get_schema(operator, version, domain)


def _check_names(schema: OpSchema, proto: onnx.NodeProto, describe: str) -> None:
    for position, name in enumerate(proto.input):
        formal = _formal(schema.inputs, position)
        if formal is None:
            raise ModelError(
                f"{describe} has {len(proto.input)} inputs; it takes at most {len(schema.inputs)}"
            )
        if not name and formal.option != OpSchema.FormalParameterOption.Optional:
            raise ModelError(f"{describe}: input {position} ('{formal.name}') has to have a name")
    written = [name for name in proto.output if name]
    if not written:
        raise ModelError(f"{describe} has no output; remove it, or name what it computes")
    if len(set(written)) < len(written):
        raise ModelError(f"{describe} writes the same tensor twice")
    outputs = proto.op_type == "Split" and _integer(proto, "num_outputs")
    if outputs and outputs != len(proto.output):
        raise ModelError(
            f"{describe}: attribute 'num_outputs' is {outputs}, and the node has "
            f"{len(proto.output)} outputs; they have to be as many"
        )


def _formal(parameters: Any, position: int) -> Any:
    """The formal parameter at a position; None behind the last."""
    if position < len(parameters):
        return parameters[position]
    last = parameters[-1] if parameters else None
    variadic = last is not None and last.option == OpSchema.FormalParameterOption.Variadic
    return last if variadic else None


def _integer(proto: onnx.NodeProto, name: str) -> int | None:
    return next((a.i for a in proto.attribute if a.name == name), None)


# -- attributes ---------------------------------------------------------------------------------
def _attribute_faults(
    schema: OpSchema, attribute: AttributeProto, proto: onnx.NodeProto
) -> Iterator[str]:
    name, operator = attribute.name, proto.op_type
    formal = schema.attributes.get(name)
    if formal is None:
        if name != "consumed_inputs" and not name.startswith("__"):
            known = ", ".join(sorted(schema.attributes)) or "none"
            yield f"is none that {operator} has at this opset; it has {known}"
        return
    wanted = int(formal.type.value)  # type: ignore[attr-defined]
    if attribute.type != wanted:
        yield f"is not {_TYPES.get(wanted, 'of the type')} that {operator} takes"
        return
    texts = {AttributeProto.STRING: [attribute.s], AttributeProto.STRINGS: attribute.strings}
    words = [text.decode(errors="replace") for text in texts.get(attribute.type, ())]
    yield from word_faults(operator, name, words)
    integers = {AttributeProto.INT: [attribute.i], AttributeProto.INTS: attribute.ints}
    for value in integers.get(attribute.type, ()):
        yield from _integer_faults(name, operator, value)
    if name == "ngram_counts":
        pools = (a.ints or a.strings for a in proto.attribute if a.name.startswith("pool_"))
        most = max(map(len, pools), default=0)
        if list(attribute.ints) != sorted(attribute.ints) or not {*attribute.ints} <= {
            *range(most + 1)
        }:
            yield f"is {list(attribute.ints)}; places in a pool of {most} are due, in their order"


def _integer_faults(name: str, operator: str, value: int) -> Iterator[str]:
    if operator not in _ANY_INTEGER and not -_WHOLE <= value < _WHOLE:
        yield f"is {value}; it has to be from {-_WHOLE} to {_WHOLE - 1}"
    if name in _FLAGS and value not in (0, 1):
        yield f"is {value}; it has to be 0 or 1"
    if name in _POSITIVE and value < 1 and not (value == 0 and (operator, name) in _MAY_BE_ZERO):
        yield f"is {value}; it has to be at least 1"
    if name == "max_skip_count" and not 0 <= value <= _MOST_SKIPPED:
        yield (
            f"is {value}; it has to be from 0 to {_MOST_SKIPPED}, and one as large as the longest "
            "row skips as much as can be"
        )
    if name == "kernel_shape" and value > _LONGEST_WINDOW:
        yield f"is {value}; windows have at most {_LONGEST_WINDOW} elements along an axis"
    if name in _DTYPES and value not in onnx.TensorProto.DataType.values()[1:]:
        yield f"is {value}, which is no element type of ONNX's"


# -- what a node reads --------------------------------------------------------------------------
def check_operands(
    node: Node, tensors: Mapping[str, TensorInfo], opsets: Mapping[str, int]
) -> None:
    """What can be told of a node beside its inputs.

    Raises:
        ModelError: element types that the operator does not take, or not together; an axis outside
            its input; shapes that do not go together where ONNX's inference does not look.
    """
    schema = schema_of(node.operator, node.domain, opsets)
    if schema is not None:
        _check_dtypes(node, schema, tensors)
    elif node.domain != INTERNAL_DOMAIN or not onnx.defs.has(node.operator):
        return  # an internal node of an ONNX operator's name is inferred as the newest of that name
    _check_axes(node, tensors)
    if node.domain == "" and node.operator in SHAPE_FAULTS:
        shapes = [tensors[name].shape if name else None for name in node.inputs]
        for wrong in SHAPE_FAULTS[node.operator](node, shapes):
            raise ModelError(f"{node.describe()} cannot be computed: {wrong}")


def check_words(node: Node) -> None:
    """Refuse an unknown word, of an operator without a schema."""
    for name, value in node.attributes:
        for wrong in word_faults(node.operator, name, [value] if isinstance(value, str) else ()):
            raise ModelError(f"{node.describe()}: attribute '{name}' {wrong}")


def _check_dtypes(node: Node, schema: OpSchema, tensors: Mapping[str, TensorInfo]) -> None:
    """Operands of one type variable share their element type, and it is one the schema lists."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    first: dict[str, tuple[str, str]] = {}
    for position, name in enumerate(node.inputs):
        formal = _formal(schema.inputs, position)
        dtype = tensors[name].dtype if name else ""
        if formal is None or dtype not in DTYPE_NUMBERS:  # unknown, or a sequence
            continue
        variable = formal.type_str
        types = [_held(kind) for kind in allowed.get(variable, (variable,))]
        if not any("(" in kind and kind.endswith(f"({_spelt(dtype)})") for kind in types):
            known = ", ".join(_dtypes_of(types)) or variable
            raise ModelError(
                f"{node.describe()}: operand '{name}' ('{formal.name}') is of dtype {dtype}; "
                f"{known} is allowed at this opset"
            )
        other, other_dtype = first.setdefault(variable, (name, dtype))
        if other_dtype != dtype and formal.is_homogeneous and variable in allowed:
            raise ModelError(
                f"{node.describe()} mixes dtypes: operand '{other}' is of dtype {other_dtype} and "
                f"operand '{name}' ('{formal.name}') is of dtype {dtype}; they have to be the "
                "same, so put a Cast before one of them"
            )


def _held(kind: str) -> str:
    """A type of ONNX's without `optional` around it: a known value is the tensor that it holds."""
    return kind[len("optional(") : -1] if kind.startswith("optional(") else kind


def _spelt(dtype: str) -> str:
    """An element type as ONNX's schemas spell it."""
    return str(onnx.TensorProto.DataType.Name(DTYPE_NUMBERS[dtype])).lower()


def _dtypes_of(types: Any) -> list[str]:
    """Ours among the types of a schema."""
    return sorted(dtype for dtype in DTYPE_NUMBERS if f"tensor({_spelt(dtype)})" in types)


def _check_axes(node: Node, tensors: Mapping[str, TensorInfo]) -> None:
    shape = tensors[node.inputs[0]].shape if node.inputs and node.inputs[0] else None
    if shape is None:
        return
    rank, axis = len(shape), node.attribute("axis")
    behind = _BEHIND.get(node.operator, 0)
    if isinstance(axis, int) and behind is not None and node.operator not in _PER_TENSOR:
        last = rank - 1 + behind
        low = -last - 1 if node.operator != "Flatten" else -rank
        if not low <= axis <= last and (rank or axis not in (0, -1, 1)):
            raise ModelError(
                f"{node.describe()}: attribute 'axis' is {axis}; its input has the shape "
                f"{shape_text(shape)}, so from {low} to {last} is allowed"
            )
    batch = node.attribute("batch_dims", 0)
    if node.operator == "GatherND" and not 0 <= batch < max(rank, 1):
        raise ModelError(
            f"{node.describe()}: attribute 'batch_dims' is {batch}; its input has the shape "
            f"{shape_text(shape)}, so from 0 to {rank - 1} is allowed"
        )


# -- what a node writes -------------------------------------------------------------------------
def check_declared(node: Node, info: TensorInfo, tensors: Mapping[str, TensorInfo]) -> None:
    """Refuse a shape that the model declares of what a node writes, and that it cannot have."""
    if not node.is_onnx("Resize", "Upsample") or info.shape is None:
        return
    given = tensors[node.inputs[0]].shape
    if given is not None and len(given) != len(info.shape):
        raise ModelError(
            f"'{info.name}', which {node.describe()} computes of the shape {shape_text(given)}, is "
            f"declared to have the shape {shape_text(info.shape)}; it has to have as many axes"
        )


def check_size(info: TensorInfo, where: str) -> None:
    """Refuse a tensor larger than any machine's memory, or of a negative extent.

    Args:
        where: who has it, for the message.
    """
    if info.shape is None:
        return
    if len(info.shape) > _MOST_AXES:
        raise ModelError(f"{where} has {len(info.shape)} axes; at most {_MOST_AXES} are possible")
    if any(extent < 0 for extent in info.shape):
        raise ModelError(
            f"{where} has the shape {shape_text(info.shape)}; no extent may be negative"
        )
    size, nbytes = 1, size_of(info.dtype) if info.dtype in STORED else 1  # numpy leaves 0 out
    for extent in info.shape:
        size *= extent or 1
    if size * nbytes > _MOST_BYTES or any(extent > _MOST_BYTES for extent in info.shape):
        raise ModelError(
            f"{where} has the shape {shape_text(info.shape)}, more than {_MOST_BYTES >> 40} TiB; "
            "the sizes in the model are wrong"
        )


def dimension_names(inputs: Iterable[onnx.ValueInfoProto]) -> list[str]:
    """The symbolic dimensions of a model's inputs, in the order in which they come."""
    dims = (dim.dim_param for value in inputs for dim in value.type.tensor_type.shape.dim)
    return [name for name in dict.fromkeys(dims) if name]


def unknown_shape(model: str, name: str, inputs: Iterable[onnx.ValueInfoProto]) -> ModelError:
    """The error for a shape of what a model does not have: it names all that shapes may be of."""
    given = list(inputs)
    names, dims = [value.name for value in given], dimension_names(given)
    also = f", its symbolic dimensions {', '.join(dims)}" if dims else ""
    no = "no input and no symbolic dimension" if dims else "no input"
    return ModelError(
        f"'{model}' has {no} '{name}'; its inputs are {', '.join(names) or 'none'}{also}"
        f"{did_you_mean(name, [*names, *dims])}"
    )


def unbound(model: str, value: onnx.ValueInfoProto, bindings: Mapping[str, int]) -> ModelError:
    """The error for an input whose shape nobody has said as a whole."""
    if not value.type.tensor_type.HasField("shape"):
        return ModelError(
            f"input '{value.name}' of '{model}' has no shape; give it one, for example "
            f"--shape {value.name}=1x3x224x224"
        )
    dims = value.type.tensor_type.shape.dim
    names = [d.dim_param or "?" for d in dims if not d.HasField("dim_value")]
    missing = next((name for name in names if name not in bindings), "?")
    form = "x".join(
        str(d.dim_value) if d.HasField("dim_value") else str(bindings.get(d.dim_param, 1))
        for d in dims
    )
    ranges = "" if missing == "?" else f", or a range, --shape {missing}=1..8"
    return ModelError(
        f"input '{value.name}' of '{model}' has the symbolic dimension '{missing}'; "
        f"give it a value, for example --shape {value.name}={form}{ranges}"
    )
