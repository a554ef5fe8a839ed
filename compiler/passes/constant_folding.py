"""Constant folding: the compiler computes once what would be the same in every run.

It runs before passes that look for constants, as exporters compute shapes and weights in the graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node, TensorInfo
from tilesmith.compiler.host.nodes import HostFunction, foldable
from tilesmith.compiler.passes.views import is_view
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass
from tilesmith.search_space.expressions.dtypes import STORED, to_numpy
from tilesmith.search_space.support.errors import JobError

_LIMIT = 1 << 30
"""Bytes a folded result may have; a model must not grow without bound by folding."""


@dataclass(frozen=True)
class FoldConstants(RulePass):
    """Operators that read constants only become constants.

        y = ConstantOfShape(shape)      before: shape is a constant
        constant y                      after

    A tensor without elements is as good as a constant; parts of a Concat that are such go, and so
    does what nobody reads.

    Contract: any graph in; out, no deterministic node reads constants and empty tensors only,
    unless its result is larger than a gigabyte or the host cannot compute it, and none writes
    empty tensors only. Values are those of `onnx.reference`.

    Attributes:
        leaving: an operator whose results stay, as what reads them looks at what they are made of.
    """

    name = "fold-constants"

    leaving: str = ""

    def visit(self, rewriter: Rewriter, node: Node) -> None:
        if _leave_empty(rewriter, node):
            return
        values = rewriter.constants
        known = {name: values[name] for name in node.reads if name in values}
        known |= _like(rewriter, node) | _empty(rewriter, node)
        if len(known) < len(set(node.reads)) or node.operator == self.leaving:
            return
        if is_view(node):
            _fold_view(rewriter, node)
        elif foldable(node) and not _is_read(rewriter, node):
            rewriter.remove(node)  # a table as floats, of which the codes are read by now
        elif foldable(node):
            _fold(rewriter, node, known)


def _is_read(rewriter: Rewriter, node: Node) -> bool:
    return any(rewriter.consumers(name) or rewriter.is_output(name) for name in node.writes)


def _like(rewriter: Rewriter, node: Node) -> dict[str, NDArray[Any]]:
    """What stands for the tensor whose element type, and nothing else, a CastLike takes."""
    value, like = node.inputs if node.is_onnx("CastLike") else ("", "")
    if value == like or like in rewriter.constants:  # a tensor in its own type is not known by it
        return {}
    info = rewriter.info(like)
    return {info.name: np.zeros(1, to_numpy(info.dtype))} if info.dtype in STORED else {}


def _empty(rewriter: Rewriter, node: Node) -> dict[str, NDArray[Any]]:
    """The tensors without elements that a node reads: their values are known."""
    infos = (rewriter.info(name) for name in node.reads if name not in rewriter.constants)
    return {i.name: np.empty(i.dims, to_numpy(i.dtype)) for i in infos if _is_empty(i)}


def _is_empty(info: TensorInfo) -> bool:
    return info.known and info.dtype in STORED and not info.elements


def _leave_empty(rewriter: Rewriter, node: Node) -> bool:
    """Nothing has to compute tensors without elements; whether a node was for them alone."""
    infos = [rewriter.info(name) for name in node.writes]
    if node.writes and all(map(_is_empty, infos)):
        rewriter.remove(node)
        for info in infos:
            rewriter.make_constant(info.name, np.empty(info.dims, to_numpy(info.dtype)))
        return True
    if node.is_onnx("Concat"):
        kept = tuple(name for name in node.inputs if not _is_empty(rewriter.info(name)))
        if kept and len(kept) < len(node.inputs):
            rewriter.replace(node, replace(node, inputs=kept))
            return True
    return False


def _fold_view(rewriter: Rewriter, node: Node) -> None:
    result = rewriter.info(node.writes[0])
    flat = rewriter.constants[node.inputs[0]].reshape(-1)
    start = int(node.attribute("offset", 0))
    rewriter.remove(node)
    rewriter.make_constant(result.name, flat[start : start + result.elements].reshape(result.dims))


def _fold(rewriter: Rewriter, node: Node, known: Mapping[str, NDArray[Any]]) -> None:
    infos = [rewriter.info(name) for name in node.writes]
    if any(not info.known or info.nbytes > _LIMIT for info in infos):
        return
    try:
        results = HostFunction.of(node, rewriter.graph.opsets).run(known)
    except JobError:
        return
    if not all(isinstance(value, np.ndarray) for value in results.values()):
        return
    rewriter.remove(node)
    for name, value in results.items():
        rewriter.make_constant(name, value)  # a view of another, perhaps: nothing writes constants
