"""Weights quantised by blocks, for targets that multiply by floats only."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node, kernel
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.scheduler import is_scheduled
from tilesmith.search_space.workloads.workload import Workload

_OPERATOR = "block_quantised_matmul"


@dataclass(frozen=True)
class UnpackWeights(RulePass):
    """Products by packed weights that a target has no schedule for become products by matrices.

        c = Kernel(block_quantised_matmul ... const=q,scale)(a, q, scale)      before
        c = Kernel(matmul ... const=b)(a, b)                                   after

    Contract: a lowered graph in; values equal up to roundings, those of activations to 8 bits left
    out.
    """

    name = "unpack-weights"

    target: Target

    revisits = False

    @rule(f"kernel.{_OPERATOR}")
    def _unpack(self, rewriter: Rewriter, node: Node) -> None:
        if not is_scheduled(node.work, self.target):
            rewriter.replace(node, _unpacked(rewriter, node, node.work))


def _unpacked(rewriter: Rewriter, node: Node, work: Workload) -> Node:
    count = 4 if work.integer("zeros") else 3
    a, *packed = node.inputs[:count]
    weights = _weights(work, [rewriter.constants[name] for name in packed])
    b = rewriter.add_constant(packed[0], weights, "float32")
    workload = Workload.of(
        "matmul",
        {name: work.integer(name) for name in "mnk"},
        constants=("b", *(name for name in work.constants if name not in ("q", "scale", "zero"))),
        epilogue=work.epilogue,
    )
    return kernel(workload, (a, b, *node.inputs[count:]), node.outputs[0], node.name)


def _weights(workload: Workload, packed: list[NDArray[np.generic]]) -> NDArray[np.float32]:
    """The matrix [k, n] that codes, scales and zero points stand for."""
    n, k, bits = (workload.integer(name) for name in ("n", "k", "bits"))
    q, scale = np.asarray(packed[0], np.uint8), np.asarray(packed[1], np.float32)
    codes = q if bits == 8 else np.stack([q & 15, q >> 4], axis=-1).reshape(*q.shape[:2], -1)
    zero: NDArray[np.float32] = np.full((1, 1), 1 << bits - 1, np.float32)
    if len(packed) > 2:
        zero = np.asarray(packed[2], np.float32)
    shifted = codes - zero[..., None]
    rows = (shifted * scale[..., None]).reshape(n, -1)[:, :k]
    return np.ascontiguousarray(rows.T, np.float32)
