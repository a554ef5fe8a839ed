"""A model's tensors by onnxruntime: the whole file, as it is, with more outputs.

No optimisation of graphs is on, so that every tensor of the file is there to be looked at.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.onnx.files.for_onnxruntime import prepared
from tilesmith.compiler.onnx.inference.inference import DTYPE_NUMBERS
from tilesmith.search_space.support.errors import DependencyError, ModelError


def runtime_version() -> str:
    """The version of onnxruntime; `DependencyError` if it is not installed."""
    return str(_runtime().__version__)


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise DependencyError(
            "the reference onnxruntime is not installed; install it with: pip install "
            "'tilesmith[host]', or compare with --reference onnx"
        ) from error
    return onnxruntime


def tensors_by_onnxruntime(
    model: str | Path | onnx.ModelProto,
    graph: Graph,
    inputs: Mapping[str, Any],
    wanted: Iterable[str],
    threads: int = 1,
) -> dict[str, Any]:
    """Tensors of a model by name; those that the file does not have are left out, and all of a
    model with inputs of element types that it takes no arrays of.

    Args:
        graph: the model as imported: it knows the tensors' types.

    Raises:
        DependencyError: onnxruntime is not installed.
        ModelError: it does not take the model.
    """
    runtime = _runtime()
    options = runtime.SessionOptions()
    proto = prepared(model, options)
    held = {name for node in proto.graph.node for name in node.output if name}
    names = [
        name
        for name in dict.fromkeys(wanted)
        if name in held and not _unknown_to_numpy(graph, name)
    ]
    if not names or any(_unknown_to_numpy(graph, name) for name in inputs):
        return {}  # asked for no output, onnxruntime gives all of them
    _add_outputs(proto.graph, graph, names)
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        taken = {value.name for value in session.get_inputs()}
        fed = {name: value for name, value in inputs.items() if name in taken}
        arrays = session.run(names, fed)
    except Exception as error:  # onnxruntime has a class for each code of its own
        raise ModelError(
            f"onnxruntime does not run '{graph.title}': {' '.join(str(error).split())[:300]}; "
            "compare with --reference onnx"
        ) from error
    return dict(zip(names, arrays, strict=True))


def _unknown_to_numpy(graph: Graph, name: str) -> bool:
    """Whether an element type is none that onnxruntime hands over as an array."""
    info = graph.tensors.get(name)
    return info is not None and (info.dtype.startswith("bfloat") or "float8" in info.dtype)


def _add_outputs(proto: onnx.GraphProto, graph: Graph, names: Iterable[str]) -> None:
    given = {value.name for value in proto.output}
    for name in names:
        if name in given:
            continue
        info = graph.tensors.get(name)
        number = DTYPE_NUMBERS.get(info.dtype) if info is not None else None
        if number is None:
            proto.output.append(onnx.ValueInfoProto(name=name))
        else:
            proto.output.append(helper.make_tensor_value_info(name, number, None))
