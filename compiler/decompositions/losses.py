"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: scores of classes, picked by index.

    NegativeLogLikelihoodLoss(x, t, w) = -x[n, t[n]] w[t[n]]        none, summed, or their mean
    SoftmaxCrossEntropyLoss(x, t, w)   = the same of LogSoftmax(x)

The mean is one weighted by w. Elements with `ignore_index` for a class have no weight. Semantics of
both 12 and 13.
"""

import numpy as np

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import (
    Composer,
    decompositions,
    typed_decompositions,
)


@decompositions.register("NegativeLogLikelihoodLoss")
def negative_log_likelihood(composer: Composer, node: Node) -> str:
    return _loss(composer, node, node.inputs[0])


@typed_decompositions.register("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(composer: Composer, node: Node) -> tuple[str, ...] | None:
    scores = node.inputs[0]
    if composer.dtype(scores) != "float32" or len(composer.dims(scores)) < 2:
        return None
    logs = composer.newest("LogSoftmax", scores, shape=composer.dims(scores), axis=1)
    return _loss(composer, node, logs), logs


def _loss(composer: Composer, node: Node, scores: str) -> str:
    """The loss of scores (N, C, d1, ...) for classes (N, d1, ...)."""
    classes, weights = node.inputs[1], node.input(2)
    dims = composer.dims(classes)
    ignored, left_out = node.attribute("ignore_index"), ""
    if ignored is not None:
        index = composer.cast(composer.constant(np.array(ignored)), composer.dtype(classes))
        left_out = composer.pointwise("Equal", classes, index, dtype="bool")
        zero = composer.cast(composer.constant(np.array(0)), composer.dtype(classes))
        dtype = composer.dtype(classes)
        classes = composer.pointwise("Where", left_out, zero, classes, dtype=dtype)
    column = composer.view(classes, (dims[0], 1, *dims[1:]))
    picked = composer.newest("GatherElements", scores, column, shape=composer.dims(column), axis=1)
    loss = composer.pointwise("Neg", composer.view(picked, dims))
    share = composer.newest("Gather", weights, classes, shape=dims) if weights else ""
    if left_out:
        one = share or composer.constant(np.ones(dims, np.float32))
        share = composer.pointwise("Where", left_out, composer.number(0.0), one)
    if share:
        loss = composer.pointwise("Mul", loss, share)
    how = str(node.attribute("reduction", "mean"))
    if how == "none":
        return loss
    if how == "mean" and not share:
        return composer.reduce("ReduceMean", loss, range(len(dims)), keep=False)
    total = composer.reduce("ReduceSum", loss, range(len(dims)), keep=False)
    if how == "sum":
        return total
    count = composer.reduce("ReduceSum", share, range(len(dims)), keep=False)
    return composer.pointwise("Div", total, count)
