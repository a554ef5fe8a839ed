"""Entries that are picked at known places, one after the other, are a slice.

Exporters write the real part of a complex tensor as `Gather(x, 0, axis=-1)`: addresses of single
elements, each a transfer of its own, where a slice is moved in long runs.
"""

from dataclasses import dataclass

import numpy as np

from tilesmith.compiler.graph.graph import Node, kernel
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.search_space.workloads.workload import Workload, shape_text


@dataclass(frozen=True)
class SliceRuns(RulePass):
    """Gathers of neighbours are slices.

        y = gather(x, [4, 5, 6])                         before
        y = slice(x, 4..7)                               after

    Contract: a lowered graph in, the same values out; only gathers change whose indices are
    constant, in range and ascend by one.
    """

    name = "slice-runs"

    revisits = False

    @rule("kernel.gather")
    def _slice(self, rewriter: Rewriter, node: Node) -> None:
        work, indices = node.work, rewriter.constant(node.inputs[1])
        if work.epilogue or indices is None or rewriter.constant(node.inputs[0]) is not None:
            return
        shape, axis = work.shape("shape"), work.integer("axis")
        places = indices.reshape(-1).astype(np.int64)
        places = np.where(places < 0, places + shape[axis], places)
        run = places[0] + np.arange(len(places))
        if not np.array_equal(places, run) or run[0] < 0 or run[-1] >= shape[axis]:
            return
        starts = tuple(int(run[0]) if at == axis else 0 for at in range(len(shape)))
        sizes = tuple(len(run) if at == axis else n for at, n in enumerate(shape))
        cut = {"shape": shape, "starts": starts, "sizes": sizes}
        words = {name: shape_text(value) for name, value in cut.items()}
        slicing = Workload.of("slice", words, dtype=work.dtype)
        rewriter.replace(node, kernel(slicing, node.inputs[:1], node.outputs[0], node.name))
