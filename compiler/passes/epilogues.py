"""Epilogue fusion: what follows a kernel is done to its result before that is stored."""

from dataclasses import dataclass

import numpy as np

from tilesmith.compiler.graph.access import clip_bounds, uniform
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Graph, Node, kernel
from tilesmith.compiler.host.nodes import activation_step
from tilesmith.compiler.numerics.quantised import coding_of, is_quantise
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.lower import is_computable
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.epilogue import STEPS, EpilogueStep
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

Fused = tuple[EpilogueStep, str]
"""A step and the tensor it reads ("" for none)."""


@dataclass(frozen=True)
class FuseEpilogues(Pass):
    """Elementwise operators move into the store of the kernel before them.

        t = Kernel(conv2d ...)(x, w); u = Add(t, bias); y = Relu(u)        before
        y = Kernel(conv2d ... epilogue=bias,relu)(x, w, bias)              after

    An operand joins as `bias`/`scale` (it varies along the kernel's channel axis only), as
    `residual`/`multiply` (it has the output's shape) or as a number. Where two kernels feed one
    sum, the later takes it and the earlier stays an operand.

    Quantise is a kernel's last step.

    Contract: a lowered graph in; the fused tensors had one reader; same values up to roundings.
    """

    name = "fuse-epilogues"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        depths = _depths(graph)
        for node in rewriter.nodes():
            if node.kind == "host" and len(node.writes) == 1:
                _fuse(rewriter, node, depths)
        return rewriter.finish()


def _depths(graph: Graph) -> dict[str, int]:
    """How many nodes lie on the longest way to each tensor."""
    depths: dict[str, int] = {}
    for node in graph.nodes:
        depth = 1 + max((depths.get(name, 0) for name in node.reads), default=0)
        depths.update(dict.fromkeys(node.writes, depth))
    return depths


def _fuse(rewriter: Rewriter, node: Node, depths: dict[str, int]) -> None:
    if not is_computable(rewriter.info(node.writes[0])) and not is_quantise(node):
        return
    sources = [name for name in dict.fromkeys(node.reads) if _can_take(rewriter, name, node)]
    for source in sorted(sources, key=lambda name: depths.get(name, 0), reverse=True):
        before = rewriter.producer(source)
        assert before is not None and before.workload is not None
        fused = step_of(rewriter, node, source, before.workload)
        if fused is None:
            continue
        step, operand = fused
        try:
            workload = _extended(before.workload, step)
        except WorkloadError:
            continue
        inputs = (*before.inputs, *([operand] if operand else []))
        rewriter.replace((before, node), kernel(workload, inputs, node.writes[0], before.name))
        return


def _can_take(rewriter: Rewriter, name: str, node: Node) -> bool:
    before = rewriter.producer(name)
    if before is None or before.workload is None or rewriter.only_consumer(name) is not node:
        return False
    if before.workload.operator == "elementwise":  # grows by its formula instead
        return False
    return rewriter.info(name).elements == rewriter.info(node.writes[0]).elements


def _extended(workload: Workload, step: EpilogueStep) -> Workload:
    return Workload.of(
        workload.operator,
        dict(workload.parameters),
        dtype=workload.dtype,
        constants=workload.constants,
        epilogue=(*workload.epilogue, step),
    )


def step_of(rewriter: Rewriter, node: Node, source: str, workload: Workload) -> Fused | None:
    """The epilogue step that `node`, reading `source`, is to the kernel that writes it."""
    if is_quantise(node):
        return _quantise(rewriter, node)
    if node.domain == INTERNAL_DOMAIN:
        return (activation_step(node), "") if node.operator in STEPS else None
    if node.domain == "" and (step := _unary(rewriter, node)) is not None:
        return step, ""
    if node.is_onnx("Add", "Mul") and len(node.inputs) == 2:
        other = node.inputs[1] if node.inputs[0] == source else node.inputs[0]
        return _binary(rewriter, node, other, workload) if other != source else None
    return None


def _quantise(rewriter: Rewriter, node: Node) -> Fused:
    """The last step: its two numbers are an operand."""
    coding = coding_of(rewriter, node)
    pair = np.array([1 / np.float32(coding.scale), coding.zero], np.float32)
    operand = rewriter.add_constant(f"{node.writes[0]}.bytes", pair, "float32")
    return EpilogueStep(f"quantise_{coding.dtype}"), operand


def _binary(rewriter: Rewriter, node: Node, other: str, workload: Workload) -> Fused | None:
    adds = node.operator == "Add"
    number = uniform(rewriter.constant, other)
    info, result = rewriter.info(other), rewriter.info(node.writes[0])
    if number is not None:
        return EpilogueStep("add_constant" if adds else "multiply_constant", (number,)), ""
    if not is_computable(info):
        return None
    if info.shape == result.shape:
        return EpilogueStep("residual" if adds else "multiply"), other
    if _runs_along_channels(info.dims, result.dims, workload):
        return EpilogueStep("bias" if adds else "scale"), other
    return None


def _runs_along_channels(
    shape: tuple[int, ...], result: tuple[int, ...], workload: Workload
) -> bool:
    """Whether a tensor, broadcast to `result`, varies along the kernel's channel axis only."""
    padded = (1,) * (len(result) - len(shape)) + shape
    varying = [axis for axis, extent in enumerate(padded) if extent > 1]
    if len(padded) != len(result) or len(varying) != 1:
        return False
    template = template_of(workload.operator)
    channel = template.channel_axis(workload)
    output = template.output(workload).shape
    inner, inner_channel = 1, 1
    for extent in result[varying[0] + 1 :]:
        inner *= extent
    for extent in output[channel + 1 :]:
        inner_channel *= extent
    return result[varying[0]] == output[channel] and inner == inner_channel


def _unary(rewriter: Rewriter, node: Node) -> EpilogueStep | None:
    """The step that an operator of one tensor is, None if it is none."""
    match node.operator:
        case "Relu" | "Sigmoid" | "Tanh" | "Exp" | "Sqrt":
            return EpilogueStep(node.operator.lower())
        case "LeakyRelu":
            return EpilogueStep("leaky_relu", (float(node.attribute("alpha", 0.01)),))
        case "HardSigmoid":
            slope, shift = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
            return EpilogueStep("hard_sigmoid", (float(slope), float(shift)))
        case "Clip" if bounds := clip_bounds(node, rewriter.constant):
            is_relu = bounds == (0.0, float("inf"))
            return EpilogueStep("relu") if is_relu else EpilogueStep("clip", bounds)
    return None
