"""The comparison of the lowering tests: in numpy, as native code, and by onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tests.compiler.model_builder import assert_close, check, expected, inputs_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.driver.pipeline import simplify, to_kernels
from tilesmith.compiler.onnx.importer import import_model


def whole(graph: Any) -> Any:
    return to_kernels(simplify(graph))


def check_both(
    model: onnx.ModelProto, host: int = 0, tolerance: float = 2e-5, opened: int = 0
) -> Any:
    """Compare the lowered graph in numpy, and the executable, with onnxruntime.

    Args:
        host: nodes of the lowered graph on the host, of which `opened` are compiled for CPUs.
    """
    lowered = check(model, whole, tolerance=tolerance)
    hosts = [node.describe() for node in lowered.nodes if node.kind == "host"]
    assert len(hosts) == host, hosts
    executable = build(import_model(model), host_target())
    assert executable.report.host == host - opened
    with executable.workspace() as work:  # what is read has to be written before
        work.memory.arena.view(np.float32)[:] = np.nan
    inputs = inputs_of(lowered)
    assert_close(executable.run(inputs), expected(model, inputs), tolerance)
    return lowered


def model_without_output_shape(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model
