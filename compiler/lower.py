"""Lowering: ONNX operators become kernels, by rules that files under `lowering/` register.

A rule is a function `(rewriter, node) -> nodes | None`: the nodes to put in its place, or None
where the templates cannot express this instance, which then runs on the host. Adding an operator
is one file with a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilesmith.compiler.graph import INTERNAL_DOMAIN, Graph, Node, TensorInfo, kernel, view
from tilesmith.compiler.graph_pass import Pass
from tilesmith.compiler.rewrite import Rewriter
from tilesmith.search_space.epilogue import EpilogueStep
from tilesmith.search_space.errors import WorkloadError
from tilesmith.search_space.registry import Registry
from tilesmith.search_space.workload import ParameterValue, Workload

Rule = Callable[[Rewriter, Node], Sequence[Node] | None]

rules: Registry[Rule] = Registry("lowering rule", "tilesmith.compiler.lowering")

KERNEL_DTYPES = ("float32",)
"""Element types that kernels are made for; tensors of others stay on the host."""


def is_computable(info: TensorInfo) -> bool:
    """Whether a kernel can read or write the tensor."""
    return info.known and info.dtype in KERNEL_DTYPES and info.elements > 0


@dataclass(frozen=True)
class LowerToKernels(Pass):
    """Operators that templates compute become kernels, readers first.

        y = Conv(x, w, strides=[2, 2])                      before
        y = Kernel(conv2d ... stride=2 const=w)(x, w)       after

    Readers come first so that they can take their producers in.

    Contract: a simplified graph in; same values; out, an operator that stays is one that no rule,
    or no template, takes.
    """

    name = "lower-to-kernels"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in reversed(graph.nodes):
            if not any(rewriter.is_output(n) or rewriter.consumers(n) for n in node.writes):
                continue
            if node.kind != "host" or node.domain not in ("", INTERNAL_DOMAIN):
                continue
            if node.operator not in rules or not _is_computable(rewriter, node):
                continue
            try:
                new = rules[node.operator](rewriter, node)
            except WorkloadError:  # no template, or one that does not take these parameters
                new = None
            if new is not None:
                rewriter.replace(node, *new)
        return rewriter.finish()


def _is_computable(rewriter: Rewriter, node: Node) -> bool:
    """Whether rules are asked: they take every shape as known."""
    outputs = [rewriter.info(name) for name in node.writes]
    return bool(outputs) and all(map(is_computable, outputs)) and rewriter.shapes_known(node)


def make_kernel(
    rewriter: Rewriter,
    operator: str,
    parameters: Mapping[str, ParameterValue],
    inputs: Sequence[str],
    node: Node,
    *,
    output: str = "",
    names: Iterable[str] = (),
    epilogue: Sequence[tuple[EpilogueStep, str]] = (),
) -> Node:
    """A kernel node.

    Args:
        inputs: the template's own operands, in order.
        node: the ONNX node it is for; gives name and (first) output.
        output: another output.
        names: names of those operands that may be weights; they are marked constant where the
            tensor is one.
        epilogue: steps with the tensor each reads ("" for none).
    """
    constants = [
        name
        for name, tensor in zip(names, inputs, strict=False)
        if name and tensor in rewriter.constants
    ]
    workload = Workload.of(
        operator, parameters, constants=constants, epilogue=[step for step, _ in epilogue]
    )
    extra = [tensor for _, tensor in epilogue if tensor]
    return kernel(workload, (*inputs, *extra), output or node.writes[0], node.name)


def as_image(rewriter: Rewriter, name: str) -> tuple[list[Node], str]:
    """(views needed, tensor of four axes): a tensor of one spatial axis gets a height of one."""
    image = _image(rewriter, name)
    return ([], name) if image == name else ([view(name, image)], image)


def from_image(rewriter: Rewriter, name: str) -> tuple[list[Node], str]:
    """(views needed, tensor of four axes to write) so that `name` comes of it."""
    image = _image(rewriter, name)
    return ([], name) if image == name else ([view(image, name)], image)


def _image(rewriter: Rewriter, name: str) -> str:
    """The tensor, or a new one of four axes for one of three."""
    info = rewriter.info(name)
    if len(info.dims) == 4:
        return name
    batch, channels, width = info.dims
    return rewriter.add_tensor(name, info.dtype, (batch, channels, 1, width))
