"""Batch normalisation: at inference nothing but a scale and a shift, which other passes move on."""

from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule

_FAR = 16
"""So many deviations (or biases) of the mean cost at most 2^-20 of what results are."""


@dataclass(frozen=True)
class ExpandBatchNorm(RulePass):
    """Batch normalisation at inference becomes a scale and a shift per channel.

        y = BatchNormalization(x, scale, bias, mean, variance)      before
        t = Mul(x, a); y = Add(t, b)                                after

    with a = scale / sqrt(variance + epsilon) and b = bias - mean a, of shape (C, 1, ..., 1),
    computed in double precision. Where a mean is more than `_FAR` deviations, which would be lost
    of what is near it, the mean is subtracted first:

        s = Add(x, -mean); t = Mul(s, a); y = Add(t, bias)          after

    `FoldAffine` then moves them into the weights of a convolution or product.

    Contract: any graph in; out, no BatchNormalization with constant statistics in inference mode is
    left.
    """

    name = "expand-batch-norm"

    @rule("BatchNormalization")
    def _expand(self, rewriter: Rewriter, node: Node) -> None:
        source, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
        values = [rewriter.constant(name) for name in node.inputs[1:5]]
        if node.attribute("training_mode", 0) or not source.known or source.dtype != "float32":
            return
        if not all(value is not None and value.ndim == 1 for value in values):
            return
        scale, bias, mean, variance = (np.asarray(value, dtype=np.float64) for value in values)
        factor = scale / np.sqrt(variance + float(node.attribute("epsilon", 1e-5)))
        shape = (-1,) + (1,) * max(0, len(source.dims) - 2)
        near = np.abs(mean * factor) <= _FAR * np.maximum(np.abs(scale), np.abs(bias))
        steps = [("Mul", "scale", factor), ("Add", "shift", bias - mean * factor)]
        if not np.all(near):
            steps = [("Add", "centre", -mean), steps[0], ("Add", "shift", bias)]
        new: list[Node] = []
        x = node.inputs[0]
        for operator, word, value in steps:
            single = value.astype(np.float32).reshape(shape)
            constant = rewriter.add_constant(node.inputs[1], single, "float32")
            y = rewriter.add_tensor(node.writes[0], result.dtype, result.dims)
            new.append(Node(operator, (x, constant), (y,), f"{node.name}.{word}"))
            x = y
        rewriter.replace(node, *new[:-1], replace(new[-1], outputs=node.outputs))
