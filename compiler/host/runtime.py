"""Host nodes in onnxruntime, where that is installed: what no kernel computes need not be slow.

A node becomes an `InferenceSession` of its own when an executable is made, so that an artifact
loads, and runs, without onnxruntime as well: what cannot be had there runs in `onnx.reference` with
its gaps filled (`compiler.host.nodes`). `TILESMITH_HOST=reference` in the environment keeps all
of it there.

Invariants: the reference computes what onnxruntime computes otherwise than the standard says, or
otherwise than numpy where the standard says nothing of values that are not finite (`DEVIATIONS`);
where onnxruntime refuses values, the reference decides.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from enum import Flag, auto
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, TensorInfo
from tilesmith.compiler.graph.value_types import STRING
from tilesmith.compiler.host.operators.call import COMPILED
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import DependencyError, InputError

ENVIRONMENT = "TILESMITH_HOST"
"""What runs host nodes: "onnxruntime", "reference", or (unset, "auto") the first if installed."""

ONNXRUNTIME, REFERENCE = "onnxruntime", "reference"

FIRST_OPSET = 7
"""onnxruntime promises nothing of models of earlier opsets."""

DTYPES = (
    "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint16", "uint8", "bool", STRING,
)  # fmt: skip
"""Element types whose arrays go in and out of a session as numpy has them."""


class Deviation(Flag):
    """When onnxruntime computes an operator otherwise than the standard says."""

    ALWAYS = auto()
    HALVES = auto()
    """Of float16: it rounds once, where ONNX's cases round after each step."""
    NOT_FINITE = auto()
    """Where an input holds infinities or not-a-number: they are looked for before each run."""
    EMPTY = auto()
    """Where an input has no elements, which is looked at before each run, too."""


ALWAYS, HALVES, NOT_FINITE, EMPTY = Deviation

DEVIATIONS: Mapping[str, tuple[Deviation, str]] = {
    "ArgMax": (NOT_FINITE, "not-a-number is passed over"),
    "ArgMin": (NOT_FINITE, "not-a-number is passed over"),
    "Attention": (
        HALVES | NOT_FINITE,
        "rows of nothing but -inf, and what is masked, come out otherwise",
    ),
    "BatchNormalization": (NOT_FINITE, "infinities become not-a-number"),
    "Clip": (NOT_FINITE, "bounds left out are the largest numbers, not infinities"),
    "DFT": (ALWAYS, "sums up products one by one, which float32 is too coarse for"),
    "Div": (ALWAYS, "a whole number by zero ends the process"),
    "Dropout": (ALWAYS, "draws other random numbers"),
    "DynamicQuantizeLinear": (NOT_FINITE, "not-a-number is passed over"),
    "GRU": (NOT_FINITE, "not-a-number is passed over"),
    "GlobalMaxPool": (NOT_FINITE, "not-a-number is passed over"),
    "Hardmax": (NOT_FINITE, "not-a-number is passed over"),
    "LRN": (NOT_FINITE, "not-a-number spreads to all channels"),
    "LSTM": (NOT_FINITE, "not-a-number is passed over"),
    "MaxPool": (NOT_FINITE, "not-a-number is passed over in places, -inf becomes a number"),
    "MaxUnpool": (ALWAYS, "leaves values in other places than output_shape says"),
    "Mod": (ALWAYS, "a whole number by zero ends the process"),
    "RNN": (NOT_FINITE, "not-a-number is passed over"),
    "ReduceMax": (NOT_FINITE, "not-a-number is passed over"),
    "ReduceMin": (NOT_FINITE, "not-a-number is passed over"),
    "RoiAlign": (ALWAYS, "reads behind the images where a box is of none of them"),
    "Scan": (EMPTY, "moving the axes of a tensor without elements ends the process"),
    "STFT": (ALWAYS, "sums up products one by one, which float32 is too coarse for"),
    "ScatterElements": (NOT_FINITE, "not-a-number is passed over by max and min"),
    "ScatterND": (NOT_FINITE, "not-a-number is passed over by max and min"),
    "Softmax": (HALVES, "float16 is rounded once, where ONNX's cases round after each step"),
    "TopK": (NOT_FINITE, "not-a-number is neither the largest nor the smallest"),
}
"""By operator: when onnxruntime deviates, and how."""


def _deviates(operator: str, when: Deviation) -> bool:
    return operator in DEVIATIONS and bool(when & DEVIATIONS[operator][0])


@cache
def _module() -> Any:
    """onnxruntime, None where it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    return onnxruntime


def wanted() -> bool:
    """Whether host nodes are to run in onnxruntime.

    Raises:
        InputError: `TILESMITH_HOST` names nothing known.
        DependencyError: it asks for onnxruntime, which is not installed.
    """
    asked = os.environ.get(ENVIRONMENT) or "auto"
    if asked not in ("auto", ONNXRUNTIME, REFERENCE):
        raise InputError(
            f"{ENVIRONMENT}={asked} names nothing that runs host operators; 'auto', "
            f"'{ONNXRUNTIME}' and '{REFERENCE}' do"
        )
    if asked == ONNXRUNTIME and _module() is None:
        raise DependencyError(
            f"{ENVIRONMENT}={ONNXRUNTIME} asks for onnxruntime, which is not installed; install it "
            "with: pip install 'tilesmith[host]'"
        )
    return asked != REFERENCE and _module() is not None


class Session:
    """A node in onnxruntime.

    Args:
        session: of a model of this node alone.
        fed: the inputs it takes, constants left out.
        outputs: the names of what it gives.
        operator: what it computes, which `DEVIATIONS` may not let it do for all values.
    """

    def __init__(
        self, session: Any, fed: Sequence[str], outputs: Sequence[str], operator: str
    ) -> None:
        self._session = session
        self._fed = tuple(fed)
        self._outputs = list(outputs)
        self._finite = _deviates(operator, NOT_FINITE)
        self._full = _deviates(operator, EMPTY)

    def run(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Outputs by tensor name; None where it refuses the values, or is not for them."""
        fed = {name: values[name] for name in self._fed}
        if self._finite and not all(map(_is_finite, fed.values())):
            return None
        if self._full and not all(np.size(value) for value in fed.values()):
            return None
        try:
            outputs = self._session.run(self._outputs, fed)
        except Exception:  # onnxruntime has a class for each code of its own
            return None
        return dict(zip(self._outputs, outputs, strict=True))


def session_of(
    proto: onnx.NodeProto,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    constants: Mapping[str, NDArray[Any]],
    opsets: Sequence[tuple[str, int]],
    threads: int,
) -> Session | None:
    """A session for one node; None where it is to be computed elsewhere.

    Args:
        inputs: all it reads, those read by its subgraphs included; each once.
        outputs: all it writes.
        constants: values of those inputs that are weights.
        opsets: of the model the node is from.
        threads: how many threads a run may use.
    """
    if not wanted() or not _is_for(proto, (*inputs, *outputs), dict(opsets)):
        return None
    runtime = _module()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what it refuses is no news: the reference takes over
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    fed = [info.name for info in inputs if info.name not in constants]
    try:
        model = _model(proto, inputs, outputs, constants, opsets).SerializeToString()
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # types, opsets and operators that it does not have
        return None
    return Session(session, fed, [info.name for info in outputs], proto.op_type)


def _is_for(
    proto: onnx.NodeProto, tensors: Sequence[TensorInfo], opsets: Mapping[str, int]
) -> bool:
    if proto.domain == INTERNAL_DOMAIN or opsets.get("", FIRST_OPSET) < FIRST_OPSET:
        return False
    inside = [node for node in _nodes_of(proto) if node is not proto]
    if any(_deviates(node.op_type, NOT_FINITE | EMPTY) for node in inside):
        return False  # what they are given there nobody can look at
    if proto.op_type in COMPILED or any(map(_is_different, (proto, *inside))):
        return False
    kinds = {info.dtype for info in tensors}
    if "float16" in kinds and _deviates(proto.op_type, HALVES):
        return False
    return kinds.issubset(DTYPES)


def _is_different(proto: onnx.NodeProto) -> bool:
    """Whether onnxruntime computes the node otherwise, whatever the values."""
    if proto.domain not in ("", "ai.onnx"):
        return False
    if proto.op_type == "Attention":  # masked products are the lowest number there, not -inf
        return len(proto.output) > 3
    if proto.op_type == "Resize":  # lengths are rounded before positions are made of them
        modes = [a.s for a in proto.attribute if a.name == "coordinate_transformation_mode"]
        return b"align_corners" in modes
    return _deviates(proto.op_type, ALWAYS)


def _nodes_of(proto: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The node and all inside it."""
    yield proto
    for attribute in proto.attribute:
        for node in attribute.g.node:
            yield from _nodes_of(node)


def _is_finite(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _model(
    proto: onnx.NodeProto,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    constants: Mapping[str, NDArray[Any]],
    opsets: Sequence[tuple[str, int]],
) -> onnx.ModelProto:
    """A model of the node: shapes are left open where only running the model tells them."""
    fed = [_declared(info) for info in inputs if info.name not in constants]
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    given = [_declared(TensorInfo(info.name, info.dtype, None)) for info in outputs]
    graph = helper.make_graph([proto], "host", fed, given, weights)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    oldest = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return helper.make_model(graph, opset_imports=imports, ir_version=max(oldest, 8))


def _declared(info: TensorInfo) -> onnx.ValueInfoProto:
    number = onnx.TensorProto.STRING
    if info.dtype != STRING:
        number = helper.np_dtype_to_tensor_dtype(np.dtype(to_numpy(info.dtype)))
    return helper.make_tensor_value_info(info.name, number, info.shape)
