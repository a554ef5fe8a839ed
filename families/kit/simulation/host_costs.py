"""What a host step costs an accelerator's model: tensors to the host and back, and its computing.

    transfers   a start and its bytes over the host link, for every tensor on the device
    computing   the larger of its operations and of its bytes at one host core's pace

Operations are those of the template where a kernel came to the host for want of a schedule, and of
the products of LSTM, GRU and RNN; any other ONNX operator without a template counts one for each
element it reads or writes. The paces are facts of
the target (`host.*`), assumed and marked as such: an estimate that says which operators are worth a
kernel, not a measurement.
"""

import math

import onnx

from tilesmith.compiler.graph.cells import CELLS
from tilesmith.compiler.host.nodes import REFERENCE
from tilesmith.compiler.recipe.program import HostStep, TensorRef
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


def host_time(step: HostStep, target: Target) -> float:
    """ns of a host step. Raises `TargetError` if the target does not say what its host can do."""
    return transfer_time(step, target) + compute_time(step, target)


def transfer_time(step: HostStep, target: Target) -> float:
    """ns that a host step's tensors take from the device and back."""
    moved = [ref for ref in (*step.inputs, *step.outputs) if ref.place.region == "arena"]
    rate = target.number("host.gbps")
    return sum(target.number("host.start_us") * 1e3 + _bytes(ref) / rate for ref in moved)


def compute_time(step: HostStep, target: Target) -> float:
    """ns that the host computes: operations or bytes, whichever take longer."""
    refs = (*step.inputs, *step.outputs)
    wide = sum(_elements(ref) * size_of(ref.info.dtype) for ref in refs if ref.info.dtype)
    return max(
        operations(step) / target.number("host.gflops"), wide / target.number("host.memory_gbps")
    )


def operations(step: HostStep) -> int:
    """Arithmetic operations of a host step; see the module."""
    node = onnx.NodeProto.FromString(step.proto)
    if node.op_type == REFERENCE:
        (text,) = (a.s.decode() for a in node.attribute if a.name == "workload")
        workload = Workload.parse(text)
        return template_of(workload.operator).flops(workload)
    if node.op_type in CELLS and all(ref.info.known for ref in step.inputs[:3]):
        x, weights, recurrent = (ref.info for ref in step.inputs[:3])
        return 2 * math.prod(x.dims[:2]) * (weights.elements + recurrent.elements)
    return sum(_elements(ref) for ref in (*step.inputs, *step.outputs))


def _elements(ref: TensorRef) -> int:
    """Elements of a tensor; none where they are only known once it is computed."""
    return ref.info.elements if ref.info.known else 0


def _bytes(ref: TensorRef) -> int:
    return ref.info.elements * size_of(ref.stored or ref.info.dtype)
