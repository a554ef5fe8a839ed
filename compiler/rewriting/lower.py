"""Lowering: ONNX operators become kernels, by rules that files under `lowering/` register.

A rule is a function `(rewriter, node) -> nodes | None`: the nodes to put in its place, or None
where the templates cannot express this instance, which then runs on the host. Adding an operator
is one file with a rule.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Graph, Node, TensorInfo, kernel, view
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.expressions.dtypes import NAMES
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.support.registry import Registry
from tilesmith.search_space.workloads.epilogue import EpilogueStep
from tilesmith.search_space.workloads.workload import ParameterValue, Workload, shape_text

Rule = Callable[[Rewriter, Node], Sequence[Node] | None]

rules: Registry[Rule] = Registry("lowering rule", "tilesmith.compiler.lowering")

typed_rules: Registry[Rule] = Registry("lowering rule", "tilesmith.compiler.lowering")
"""Rules of operators that kernels have for several element types; they look at these themselves."""

Parameters = dict[str, Any]
"""Parameters of a kernel's workload, by name: of `make_kernel`."""

KERNEL_DTYPES = ("float32",)
"""Element types that most kernels are made for."""

MOVABLE = tuple(name for name in NAMES if not name.startswith("float8"))
"""Element types that kernels move as they are."""


def is_computable(info: TensorInfo) -> bool:
    """Whether a kernel can read or write the tensor."""
    return info.known and info.dtype in KERNEL_DTYPES and info.elements > 0


def is_movable(info: TensorInfo) -> bool:
    """Whether a kernel can take the tensor's elements from one place to another."""
    return info.known and info.dtype in MOVABLE and info.elements > 0


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
            rule = _rule(rewriter, node)
            if rule is None:
                continue
            try:
                new = rule(rewriter, node)
            except WorkloadError:  # no template, or one that does not take these parameters
                new = None
            if new is not None:
                rewriter.replace(node, *new)
        return rewriter.finish()


def _rule(rewriter: Rewriter, node: Node) -> Rule | None:
    """The rule that is asked, if one is: rules take every shape as known."""
    outputs = [rewriter.info(name) for name in node.writes]
    if not outputs or not rewriter.shapes_known(node):
        return None
    if node.operator in typed_rules:
        return typed_rules[node.operator] if all(map(is_movable, outputs)) else None
    computable = node.operator in rules and all(map(is_computable, outputs))
    return rules[node.operator] if computable else None


def make_kernel(
    rewriter: Rewriter,
    node: Node,
    operator: str,
    inputs: Sequence[str],
    /,
    *,
    output: str = "",
    names: Iterable[str] = (),
    epilogue: Sequence[tuple[EpilogueStep, str]] = (),
    **parameters: ParameterValue | tuple[int, ...],
) -> Node:
    """A kernel node; its workload is of the first operand's element type.

    Args:
        node: the ONNX node it is for; gives name and (first) output.
        inputs: the template's own operands, in order.
        output: another output.
        names: names of those operands that may be weights; they are marked constant where the
            tensor is one.
        epilogue: steps with the tensor each reads ("" for none).
        parameters: of the workload; several numbers are written as a shape.
    """
    constants = [
        name
        for name, tensor in zip(names, inputs, strict=False)
        if name and tensor in rewriter.constants
    ]
    steps, dtype = [step for step, _ in epilogue], rewriter.info(inputs[0]).dtype
    stated = {n: shape_text(v) if isinstance(v, tuple) else v for n, v in parameters.items()}
    workload = Workload.of(operator, stated, dtype=dtype, constants=constants, epilogue=steps)
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
