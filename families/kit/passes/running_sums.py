"""Running sums as products with a triangle of ones.

    y = Kernel(cumulative_sum shape=OxKxT axis=1)(x)        y[o] = ones[i, j] (j <= i) x[o]
    y = Kernel(cumulative_sum shape=OxK axis=1)(x)          y = x ones[j, i] (j <= i)

What is added one by one elsewhere is one pass of an array that multiplies: sums are of float32,
rounded once. Of a long row without axes behind, pieces are summed by a small triangle and begin
with the sum of the pieces before them, which is the same once more:

    p = x[P pieces, L] ones[j, i];  y[r] = p[r] + sum of x[s] for all pieces s before r
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node, kernel
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.families.kit.passes.small_kernels import SmallKernels
from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.spaces.knobs import divisors
from tilesmith.search_space.workloads.workload import ParameterValue, Workload


@dataclass(frozen=True)
class RunningSumsAsProducts(RulePass):
    """Running sums are products with a triangle of ones, long ones in pieces.

        y = Kernel(cumulative_sum shape=4x96 axis=1)(x)             before
        y = Kernel(matmul m=4 n=96 k=96 const=b tb=1)(x, ones)      after

    Contract: a lowered graph in; out, the same values up to roundings where all are finite (what is
    not reaches every sum that its row of ones multiplies). Sums of whole numbers stay.

    Attributes:
        longest: elements that one triangle adds up at most.
        stated: as of `SmallKernels`.
    """

    name = "running-sums-as-products"

    longest: int
    stated: bool = False

    revisits = False

    @rule("kernel.cumulative_sum")
    def _multiply(self, rewriter: Rewriter, node: Node) -> None:
        work, make = node.work, SmallKernels(rewriter, self.stated)
        if not is_floating(work.dtype):
            return
        shape, at = work.shape("shape"), work.integer("axis")
        if shape[at] <= self.longest:
            rewriter.replace(node, _product(rewriter, node, work))
        elif product(shape[at + 1 :]) == 1 and (pieces := self._pieces(shape[at])) > 1:
            _in_pieces(make, node, work, pieces)
            rewriter.replace(node, *make.taken())

    def _pieces(self, count: int) -> int:
        """How many pieces make pieces and their number shortest; 1 where either is too long."""
        pieces = min(divisors(count, count), key=lambda n: (max(n, count // n), n))
        return pieces if max(pieces, count // pieces) <= self.longest else 1


def _triangle(workload: Workload, count: int, exclusive: int) -> NDArray[np.float32]:
    """ones[i, j]: whether element j is part of sum i."""
    ones = np.tri(count, k=-exclusive, dtype=np.float32)
    return ones[::-1, ::-1] if workload.integer("reverse") else ones


def _product(rewriter: Rewriter, node: Node, workload: Workload) -> Node:
    shape, at = workload.shape("shape"), workload.integer("axis")
    before, count, behind = product(shape[:at]), shape[at], product(shape[at + 1 :])
    ones = _triangle(workload, count, workload.integer("exclusive"))
    parameters: dict[str, ParameterValue] = {"m": before, "n": count, "k": count}
    if behind > 1:
        parameters = {"m": count, "n": behind, "k": count, "batch": before}
        ones = np.broadcast_to(ones, (before, count, count)) if before > 1 else ones
    else:
        parameters["tb"] = 1
    held = rewriter.add_constant(f"{node.writes[0]}.ones", ones.copy(), workload.dtype)
    operands = (held, node.inputs[0]) if behind > 1 else (node.inputs[0], held)
    constants = ("a",) if behind > 1 else ("b",)
    matmul = Workload.of("matmul", parameters, dtype=workload.dtype, constants=constants)
    return kernel(matmul, operands, node.writes[0], node.name)


def _in_pieces(make: SmallKernels, node: Node, workload: Workload, pieces: int) -> None:
    """A last axis in pieces: what is before each is added to its own running sums."""
    shape, at = workload.shape("shape"), workload.integer("axis")
    rows, width = product(shape[:at]), shape[at] // pieces
    (x,), (result,), exclusive = node.inputs, node.outputs, workload.integer("exclusive")

    def summed(name: str, sizes: tuple[int, int], own: int) -> str:
        ones = make.constant("ones", _triangle(workload, sizes[1], own).T.copy(), workload.dtype)
        return make.matmul("", name, ones, (1, sizes[0], sizes[1], sizes[1]))

    inside = summed(x, (rows * pieces, width), exclusive)
    totals = make.reduce("", x, (rows * pieces, width), "sum")
    before = summed(totals, (rows, pieces), 1)
    flat, column = (rows * pieces, width), (rows * pieces, 1)
    operands = [(inside, flat), (before, column)]
    make.elementwise(result, workload.dtype, flat, "add(x0,x1)", operands)
