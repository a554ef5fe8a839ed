"""Other runtimes that `tilesmith bench --against` measures beside us, set up to be at their best.

Each peer is a function that loads an ONNX model with fixed inputs and gives a `Contender`. The
rules are the same for all: fp32 unless another precision is asked for, constant weights, the same
threads (pinned by the caller), inputs and outputs bound once so that no copy is counted that a
careful user would avoid.
"""

import atexit
import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tilesmith.compiler.onnx.files.for_onnxruntime import as_given
from tilesmith.search_space.support.errors import DependencyError, ModelError, TilesmithError

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Contender:
    """A loaded model with bound inputs.

    Attributes:
        name: the runtime's name.
        version: the runtime's version.
        infer: run once.
        outputs: the results of the last run, by output name.
    """

    name: str
    version: str
    infer: Callable[[], object]
    outputs: Callable[[], Arrays]


def onnxruntime(model: Path, inputs: Arrays, threads: int, precision: str = "f32") -> Contender:
    """ONNX Runtime's CPU provider, every graph optimisation on, input and output bound."""
    try:
        import onnxruntime as runtime
    except ImportError as error:
        raise _missing("onnxruntime") from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    source = as_given(model, options)
    session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    names = [output.name for output in session.get_outputs()]
    for name in names:
        binding.bind_output(name, "cpu")

    def outputs() -> Arrays:
        return dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))

    return Contender(
        "onnxruntime", runtime.__version__, lambda: session.run_with_iobinding(binding), outputs
    )


def openvino(model: Path, inputs: Arrays, threads: int, precision: str = "f32") -> Contender:
    """OpenVINO's CPU plugin, tuned for latency, in a precision (by itself it may choose bf16)."""
    try:
        import openvino as runtime
    except ImportError as error:
        raise _missing("openvino") from error
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "ENABLE_CPU_PINNING": False,
    }
    core = runtime.Core()
    graph = core.read_model(str(model))
    graph.reshape({name: list(array.shape) for name, array in inputs.items()})
    request = core.compile_model(graph, "CPU", settings).create_infer_request()
    for name, array in inputs.items():
        request.set_tensor(name, runtime.Tensor(array, shared_memory=True))

    def outputs() -> Arrays:
        return {output.any_name: request.get_tensor(output).data.copy() for output in graph.outputs}

    return Contender("openvino", runtime.__version__, request.infer, outputs)


def iree(model: Path, inputs: Arrays, threads: int, precision: str = "f32") -> Contender:
    """IREE's compiler of whole models for this CPU; on one thread it runs without its pool."""
    try:
        import iree.compiler.version as release
        import iree.runtime as runtime
        from iree.compiler import tools
    except ImportError as error:
        raise _missing("iree", extra="iree") from error
    with tempfile.TemporaryDirectory() as folder:
        written = _as_mlir(model, inputs, Path(folder))
        program = tools.compile_file(
            str(written), extra_args=["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"],
            target_backends=["llvm-cpu"],
        )  # fmt: skip
    runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    config = runtime.Config("local-sync" if threads == 1 else "local-task")
    module = runtime.VmModule.copy_buffer(config.vm_instance, program)
    context = runtime.SystemContext(vm_modules=[module], config=config)
    name = next(name for name in module.function_names if f"{name}$async" in module.function_names)
    function = context.modules[module.name][name]
    graph = onnx.load(model, load_external_data=False).graph
    given = [inputs[info.name] for info in graph.input if info.name in inputs]
    bound = [runtime.asdevicearray(config.device, array) for array in given]
    last: list[Any] = []

    def infer() -> None:
        result = function(*bound)
        last[:] = result if isinstance(result, list | tuple) else [result]

    def outputs() -> Arrays:
        return {info.name: np.asarray(a) for info, a in zip(graph.output, last, strict=True)}

    atexit.register(gc.collect)  # its contexts are cycles, and it lists at length what is left
    atexit.register(gc.unfreeze)
    return Contender("iree", str(release.VERSION), infer, outputs)


def _as_mlir(model: Path, inputs: Arrays, folder: Path) -> Path:
    """A model with the sizes of its inputs fixed, as IREE's importer writes it to a folder.

    The importer is run as a program, as it is documented; it knows nodes of opset 17 and newer.
    """
    fixed = onnx.load(model)
    for info in fixed.graph.input:
        if info.name in inputs:
            sizes = info.type.tensor_type.shape
            sizes.ClearField("dim")
            for size in inputs[info.name].shape:
                sizes.dim.add(dim_value=size)
    onnx.save(fixed, str(folder / "fixed.onnx"))
    written = folder / "model.mlir"
    importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx"]
    subprocess.run(
        [*importer, str(folder / "fixed.onnx"), "--opset-version", "17", "-o", str(written)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return written


PEERS: dict[str, Callable[[Path, Arrays, int, str], Contender]] = {
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "iree": iree,
}
"""Every peer by its name on the command line."""


PRECISIONS = {"f32": ("onnxruntime", "openvino", "iree"), "bf16": ("openvino",)}
"""Peers that compute a floating model in a precision; a quantised model says by itself what is
computed in whole numbers."""


def precision_of(name: str, wanted: str) -> str:
    """One of `PRECISIONS`: what a peer computes in where another runtime is in `wanted`."""
    return wanted if name in PRECISIONS.get(wanted, ()) else "f32"


def load_peer(
    name: str, model: Path, inputs: Arrays, threads: int, precision: str = "f32"
) -> Contender:
    """A peer by name, loaded and run once.

    Args:
        precision: one of `PRECISIONS` that has the peer.

    Raises:
        DependencyError: it is not installed.
        ModelError: it cannot load or run the model.
    """
    try:
        contender = PEERS[name](model, inputs, threads, precision)
        contender.infer()
    except TilesmithError:
        raise
    except Exception as error:  # each runtime has exceptions of its own
        raise ModelError(f"{name} cannot run '{model}': {error}") from error
    return contender


def _missing(name: str, extra: str = "peers") -> DependencyError:
    return DependencyError(
        f"{name} is not installed; install it with: pip install 'tilesmith[{extra}]'"
    )
