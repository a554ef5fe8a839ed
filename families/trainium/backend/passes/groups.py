"""Grouped convolutions of few channels a group, joined to fill an array of multipliers."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.spaces.knobs import divisors
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class JoinGroups(RulePass):
    """Neighbouring groups of a convolution are one group whose weights are zero between them.

        conv2d c=128 oc=128 groups=32, weight [128, 4, 3, 3]        before
        conv2d c=128 oc=128 groups=1,  weight [128, 128, 3, 3]      after, 31 of 32 zero

    A product takes as long for 4 rows and columns of the array as for 128. As many are joined as
    makes products and the loading of weights, zeros included, take least.

    Contract: a lowered graph in, the same values out; only float32 convolutions with constant
    weights change. As where columns of a kernel are stacked, what is not a finite number in one
    group spoils those joined with it.

    Args:
        target: gives array and bandwidths; size: bytes of a weight as it will be loaded.
    """

    name = "join-groups"

    target: Target
    size: int = 4

    revisits = False

    @rule("kernel.conv2d")
    def _join(self, rewriter: Rewriter, node: Node) -> None:
        work, weight = node.work, rewriter.constant(node.inputs[1])
        if work.dtype != "float32" or work.sizes or work.integer("groups") == 1 or weight is None:
            return
        if (together := self._together(work)) > 1:
            rewriter.replace(node, self._joined(rewriter, node, work, weight, together))

    def _together(self, work: Workload) -> int:
        """How many groups become one."""
        return min(divisors(work.integer("groups")), key=lambda n: (self._ns(work, n), n))

    def _ns(self, work: Workload, together: int) -> float:
        """What products and loading take with so many groups joined, about."""
        number = self.target.number
        groups = work.integer("groups") // together
        inputs, outputs = work.integer("c") // groups, work.integer("oc") // groups
        pixels = product(template_of("conv2d").output(work).shape[2:])
        taps = work.integer("kh") * work.integer("kw")
        tiles = -(-inputs // self.target.integer("tensor.rows"))
        tiles *= -(-outputs // self.target.integer("tensor.cols"))
        wide = self.target.integer("tensor.moving_free")
        products = work.integer("n") * groups * taps * tiles * -(-pixels // wide)
        cycles = max(number("tensor.min_ii"), min(pixels, wide))
        if self.size == 4:
            cycles = (cycles + number("tensor.fp32_pass_overhead")) * number("tensor.fp32_factor")
        loaded = work.integer("oc") * inputs * taps * self.size
        bandwidth = number("dma.gbps_practical") * number("dma.engines")
        return products * cycles / number("tensor.ghz") + loaded / bandwidth

    def _joined(
        self,
        rewriter: Rewriter,
        node: Node,
        work: Workload,
        weight: NDArray[np.float32],
        together: int,
    ) -> Node:
        groups, (outputs, inputs, *kernel) = work.integer("groups"), weight.shape
        each = outputs // groups
        wide = np.zeros((outputs, together * inputs, *kernel), dtype=weight.dtype)
        for group in range(groups):
            rows = slice(group * each, (group + 1) * each)
            first = group % together * inputs
            wide[rows, first : first + inputs] = weight[rows]
        name = rewriter.add_constant(f"{node.inputs[1]}.joined", wide, "float32")
        joined = work.with_parameters(groups=groups // together)
        return replace(node, workload=joined, inputs=(node.inputs[0], name, *node.inputs[2:]))
