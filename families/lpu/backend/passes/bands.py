"""Averages over neighbouring channels as products with a band: local response normalisation.

    r = View(x: 1x96x54x54 as 1x1x96x2916)              y = Kernel(conv2d oc=96 kh=1 kw=1)(x, band)
    m = Kernel(pool2d kind=average c=1 kh=5 kw=1)(r)    band[o, c] = 1/5 where c is within two of o
    y = View(m: 1x1x96x2916 as 1x96x54x54)

Pooling has pixels in rows of their own, channels across the lanes; with a single channel that would
be a row of memory for every element. The product leaves channels where convolutions have them.
"""

from dataclasses import dataclass

import numpy as np

from tilesmith.compiler.graph.graph import Node, kernel
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.search_space.operator_parts.window_parameters import pair_of, sides_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class BandsAsProducts(RulePass):
    """See the module's docstring.

    Contract: a lowered graph in; out, the same values up to roundings. Padding has to count.
    """

    name = "bands-as-products"

    revisits = False

    @rule("kernel.pool2d")
    def _multiply(self, rewriter: Rewriter, node: Node) -> None:
        if _averages_rows(node.work):
            _replace(rewriter, node)


def _averages_rows(workload: Workload) -> bool:
    """Whether a workload is an average over neighbouring rows of an image of one channel."""
    if workload.operator != "pool2d" or workload.sizes or workload.epilogue:
        return False
    number = workload.integer
    plain = workload.text("kind") == "average" and number("c") == number("kw") == 1
    still = pair_of(workload, "stride") == pair_of(workload, "dilation") == (1, 1)
    top, left, bottom, right = sides_of(workload)
    kept = top + bottom == number("kh") - 1 and not left and not right
    return plain and still and kept and bool(number("count_include_pad"))


def _replace(rewriter: Rewriter, node: Node) -> None:
    before = rewriter.producer(node.inputs[0])
    after = rewriter.only_consumer(node.writes[0])
    views = before is not None and after is not None and before.kind == after.kind == "view"
    if not views or before is None or after is None:
        return
    x, y = before.inputs[0], after.writes[0]
    dims, channels = rewriter.info(x).dims, node.work.integer("h")
    if len(dims) != 4 or dims != rewriter.info(y).dims or dims[1] != channels:
        return
    size, (top, *_) = node.work.integer("kh"), sides_of(node.work)
    away = np.arange(channels)[None, :] - np.arange(channels)[:, None] + top
    band = np.where((away >= 0) & (away < size), np.float32(1 / size), np.float32(0))
    weight = rewriter.add_constant(
        f"{y}.band", band.reshape(channels, channels, 1, 1), rewriter.info(x).dtype
    )
    names = ("n", "c", "h", "w", "oc", "kh", "kw")
    parameters = dict(zip(names, (*dims, channels, 1, 1), strict=True))
    workload = Workload.of("conv2d", parameters, constants=("weight",))
    rewriter.replace((node, after), kernel(workload, (x, weight), y, node.name))
