"""Scales of the operands of products: at the result they become part of an epilogue."""

from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.access import uniform
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.numerics.rounding import is_ordinary
from tilesmith.compiler.passes.affine import constant_operand
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule


@dataclass(frozen=True)
class MoveScales(RulePass):
    """Scales move from the operands of a product to its result.

        y = MatMul(Mul(a, s), Mul(b, t))          before: s and t are one ordinary number each
        y = Mul(MatMul(a, b), s t)                after

    so that attention's scaling becomes the epilogue of the scores' product.

    Contract: any graph in; the scaled operands had one reader; values equal up to roundings.
    """

    name = "move-scales"

    @rule("MatMul")
    def _move(self, rewriter: Rewriter, node: Node) -> None:
        inputs, total = list(node.inputs), 1.0
        removed: dict[Node, None] = {}  # one, where a product multiplies a tensor by itself
        for position, name in enumerate(node.inputs):
            scale = rewriter.producer(name, "Mul")
            if scale is None or rewriter.only_consumer(name) is not node:
                continue
            split = constant_operand(rewriter, scale)
            if split is None:
                continue
            other = scale.inputs[1] if scale.inputs[0] == split[0] else scale.inputs[0]
            factor = uniform(rewriter.constant, other)
            if factor and is_ordinary(np.array(factor)):
                inputs[position] = split[0]
                total *= factor
                removed[scale] = None
        if not removed or not rewriter.shapes_known(node):
            return
        info = rewriter.info(node.writes[0])
        middle = rewriter.add_tensor(info.name, info.dtype, info.dims)
        constant = rewriter.add_constant("scale", np.array(total, dtype=np.float32), "float32")
        rewriter.replace(
            (*removed, node),
            replace(node, inputs=tuple(inputs), outputs=(middle,)),
            Node("Mul", (middle, constant), node.outputs, f"{node.name}.scale"),
        )
