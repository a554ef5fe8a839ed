"""Few long rows, or none that are rows in memory, on all partitions of a core.

Engines work on 128 partitions, one row of a reduction on each. What has eight rows (the groups of a
group normalisation) leaves 120 of them idle, and one row of a whole vocabulary is longer than its
part of SBUF. Cut into pieces, each a row of its own, both fill the partitions; what the pieces
found is put together by kernels of a few numbers. And what is reduced along an axis that others
follow (channels of an image) has no rows in memory: products sum it, or it is transposed where
that takes less.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.families.kit.passes.small_kernels import Operands, SmallKernels
from tilesmith.families.trainium.schedules.building_blocks.machine import FLOATS
from tilesmith.families.trainium.schedules.row_algorithms.followed import ALGORITHM, FollowedSpace
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import Scalar, load
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.operator_parts.formula import formula_text
from tilesmith.search_space.operator_parts.fusion import pointwise
from tilesmith.search_space.spaces.knobs import divisors
from tilesmith.search_space.workloads.template import compute_of, template_of
from tilesmith.search_space.workloads.workload import Workload

_PASSES: Mapping[str, int] = {"layer_norm": 5, "rms_norm": 4, "softmax": 4, "reduce": 1}
"""Instructions of a row's elements, about, by operator."""

_MADE: Mapping[str, int] = {"layer_norm": 8, "rms_norm": 6, "softmax": 7, "reduce": 2}
"""Kernels that come in the place of one."""

_MOVED: Mapping[str, int] = {"layer_norm": 5, "rms_norm": 3, "softmax": 4, "reduce": 0}
"""How often a tensor as large as the operand is written or read in between, beside what one kernel
moves: SBUF may have no room for it."""

KERNEL_NS = 2000.0
"""What a kernel of a few numbers takes, about: latencies of its instructions and semaphores."""

_NARROWEST = 32
"""Elements of a piece at least, of several."""


@dataclass(frozen=True)
class FillPartitions(RulePass):
    """Reductions and normalisations of few, or of no, rows in memory work on all partitions.

        y = softmax(x: 4 x 50257)                                         before
        m = max(x: 116 x 1733); M = max(m: 4 x 29), 29 times              after
        e = exp(x - M);  s, S = sums of e, likewise;  y = e / S

        y = reduce max(x: 512 x 1024, axis 0)                             before
        t = transpose(x); y = reduce max(t: 1024 x 512, axis 1)           after

    Sums over an axis that others follow are products with ones; extremes of few stay one kernel,
    which deals what follows to the partitions. What is put together is float32
    whatever the kernels' precision.

    Contract: a lowered graph in, the same values out up to roundings; kernels change that do not
    fit the target or that are faster so by a rough count, and whose epilogue reads no channels.
    """

    name = "fill-partitions"

    target: Target

    revisits = False

    @rule(*(f"kernel.{operator}" for operator in _PASSES))
    def _cut(self, rewriter: Rewriter, node: Node) -> None:
        work = node.work
        alike = all(step.kind.operand in ("none", "full") for step in work.epilogue)
        if not alike or work.dtype not in FLOATS:
            return
        if nodes := _Cut(SmallKernels(rewriter), self.target, node, work).nodes():
            rewriter.replace(node, *nodes)


class _Cut:
    """One kernel on its way to several."""

    def __init__(self, make: SmallKernels, target: Target, node: Node, work: Workload) -> None:
        self.make, self.target, self.node, self.work = make, target, node, work
        self.x, self.result = node.inputs[0], "" if work.epilogue else node.outputs[0]

    def nodes(self) -> list[Node]:
        """What comes in the kernel's place; nothing where it stays."""
        before, length, behind = _axes(self.work)
        if not length:
            return []
        if behind > 1:
            if self._is_to_turn(before, length, behind):
                self._ended(self._turned(before, length, behind))
            return self.make.nodes
        pieces = pieces_of(self.target, before, length)
        if self._pays(before, length, pieces):
            self._ended(_FORMS[self.work.operator](self, before, pieces, length // pieces))
        return self.make.nodes

    def _ended(self, name: str) -> None:
        """The epilogue, as a kernel of its own."""
        if not self.work.epilogue:
            return
        value: Scalar = load("x0")
        result, names = self.node.outputs[0], [name]
        more = iter(self.node.inputs[len(template_of(self.work.operator).inputs(self.work)) :])
        for step in self.work.epilogue:
            if step.kind.operand == "none":
                value = pointwise(step.name, value, *step.arguments)
            else:
                value = pointwise(step.name, value, load(f"x{len(names)}"))
                names.append(next(more))
        flat = (product(self.make.rewriter.info(result).dims),)
        dtype = self.make.dtype(result)
        operands = [(name, flat) for name in names]
        self.make.elementwise(result, dtype, flat, formula_text(value), operands)

    def _pays(self, rows: int, length: int, pieces: int) -> bool:
        if space_of(self.work, self.target).empty:
            return True
        spared = _spared(self.target, (rows, length), (rows * pieces, length // pieces))
        operator, number = self.work.operator, self.target.number
        bandwidth = number("dma.gbps_practical") * number("dma.engines")
        moved = _MOVED[operator] * rows * length * size_of(self.work.dtype) / bandwidth
        return _PASSES[operator] * spared > _MADE[operator] * KERNEL_NS + moved

    def _is_to_turn(self, before: int, length: int, behind: int) -> bool:
        if self.work.operator != "reduce":
            return self._pays_to_turn(before, length, behind)
        return self.work.text("kind") in ("sum", "mean") or not followed_pays(
            self.work, self.target, before * behind, length
        )

    def _pays_to_turn(self, before: int, length: int, behind: int) -> bool:
        """Whether two transposes cost less than what the rows in memory, of all that is behind an
        axis, leave idle."""
        if space_of(self.work, self.target).empty:
            return True
        spared = _spared(self.target, (before, length * behind), (before * behind, length))
        return _PASSES[self.work.operator] * spared > 4 * KERNEL_NS

    # -- an axis that others follow -----------------------------------------------------------
    def _turned(self, before: int, length: int, behind: int) -> str:
        """The axis is made the last, or summed by a product."""
        make, work = self.make, self.work
        kind = str(dict(work.parameters).get("kind", ""))
        if work.operator == "reduce" and kind in ("sum", "mean"):
            ones = make.constant(
                "ones", np.ones((before, 1, length)[before == 1 :], np.float32), work.dtype
            )
            scale = 1 / length if kind == "mean" else 1.0
            return make.matmul(self.result, ones, self.x, (before, 1, behind, length), scale)
        turned = make.transpose("", self.x, (before, length, behind), "0x2x1")
        rows = before * behind
        if work.operator == "reduce":
            return make.reduce(self.result, turned, (rows, length), kind)
        inner = make.same(work, turned, (rows, length), {"axis": 1})
        return make.transpose(self.result, inner, (before, behind, length), "0x2x1")

    # -- pieces of rows -----------------------------------------------------------------------
    def reduce(self, rows: int, pieces: int, width: int) -> str:
        kind = self.work.text("kind")
        partial = self._part(self.x, rows, pieces, width, "sum" if kind == "mean" else kind)
        if kind != "mean":
            return self.make.reduce(self.result, partial, (rows, pieces), kind)
        total = self.make.reduce("", partial, (rows, pieces), "sum")
        share = 1 / (pieces * width)
        return self.make.elementwise(
            self.result, self.work.dtype, (rows,), f"multiply(x0,{share:.9g})", [(total, (rows,))]
        )

    def softmax(self, rows: int, pieces: int, width: int) -> str:
        make, flat = self.make, (rows * pieces, width)
        columns = (rows * pieces, 1)
        greatest = self._spread(self._part(self.x, rows, pieces, width, "max"), rows, pieces, "max")
        less = "subtract(x0,x1)"
        operands: list[tuple[str, tuple[int, ...]]] = [(self.x, flat), (greatest, columns)]
        powers = make.elementwise("", "float32", flat, f"exp({less})", operands)
        part = self._part(powers, rows, pieces, width, "sum")
        log = self.work.integer("log")
        ending = "log(x0)" if log else "reciprocal(x0)"
        total = self._spread(part, rows, pieces, "sum", ending)
        if log:
            operands.append((total, columns))
            value = f"subtract({less},x2)"
        else:
            operands, value = [(powers, flat), (total, columns)], "multiply(x0,x1)"
        return make.elementwise(self.result, self.work.dtype, flat, value, operands)

    def normalised(self, rows: int, pieces: int, width: int) -> str:
        make, flat = self.make, (rows * pieces, width)
        columns, share = (rows * pieces, 1), 1 / (pieces * width)
        centred = self.x
        if self.work.operator == "layer_norm":
            part = self._part(self.x, rows, pieces, width, "sum")
            mean = self._spread(part, rows, pieces, "sum", f"multiply(x0,{share:.9g})")
            centred = make.elementwise(
                "", "float32", flat, "subtract(x0,x1)", [(self.x, flat), (mean, columns)]
            )
        square = make.elementwise("", "float32", flat, "multiply(x0,x0)", [(centred, flat)])
        part = self._part(square, rows, pieces, width, "sum")
        variance = f"add(multiply(x0,{share:.9g}),{float(self.work.text('epsilon')):.9g})"
        inverse = self._spread(part, rows, pieces, "sum", f"reciprocal(sqrt({variance}))")
        named = [n for n in ("scale", "bias") if dict(self.work.parameters).get(n)]
        value, given = "multiply(x0,x1)", self.node.inputs[1 : 1 + len(named)]
        for place, name in enumerate(named, 2):
            value = f"{'multiply' if name == 'scale' else 'add'}({value},x{place})"
        shape: tuple[int, ...] = flat
        stats: tuple[int, ...] = columns
        if given:
            shape, stats = (rows, pieces, width), (rows, pieces, 1)
        parts = [(name, (pieces, width)) for name in given]
        operands = [(centred, shape), (inverse, stats), *parts]
        return make.elementwise(self.result, self.work.dtype, shape, value, operands)

    def _part(self, x: str, rows: int, pieces: int, width: int, kind: str) -> str:
        """What each piece is reduced to, in float32."""
        flat = (rows * pieces, width)
        if self.make.dtype(x) != "float32":
            x = self.make.elementwise("", "float32", flat, "to_float32(x0)", [(x, flat)])
        return self.make.reduce("", x, flat, kind)

    def _spread(
        self, part: str, rows: int, pieces: int, kind: str, ending: str = "to_float32(x0)"
    ) -> str:
        """What the pieces of a row come to, once for each piece."""
        whole = self.make.reduce("", part, (rows, pieces), kind)
        operands: Operands = [(whole, (rows, 1))]
        return self.make.elementwise("", "float32", (rows, pieces), ending, operands)


_FORMS: Mapping[str, Callable[[_Cut, int, int, int], str]] = {
    "reduce": _Cut.reduce,
    "softmax": _Cut.softmax,
    "layer_norm": _Cut.normalised,
    "rms_norm": _Cut.normalised,
}


def followed_pays(work: Workload, target: Target, rows: int, length: int) -> bool:
    """Whether a kernel that reduces what lies apart takes less than one of `rows` that are turned
    for it, each of which is a short run of a transfer."""
    config = default_of(work, target)
    if config.text("algorithm") != ALGORITHM:
        return False
    number = target.number
    run = length * size_of(work.dtype) + number("dma.row_overhead_bytes")
    bandwidth = number("dma.gbps_practical") * number("dma.engines")
    read = rows * length * size_of(work.dtype)
    turned = (read + rows * run) / bandwidth + 4 * KERNEL_NS
    space = FollowedSpace(compute_of(work), work.dtype, target)
    return space.cost(config.integer("width")) < turned


def pieces_of(target: Target, rows: int, length: int) -> int:
    """Into how many pieces rows are cut: those that keep engines busy for least."""
    candidates = [n for n in divisors(length, length) if n == 1 or length // n >= _NARROWEST]
    return min(candidates, key=lambda n: (_cycles(target, rows * n, length // n) + n / 8, n))


def pays_to_cut(target: Target, rows: int, length: int, passes: int, kernels: int) -> bool:
    """Whether that spares `passes` instructions over all rows more than `kernels` small ones."""
    pieces = pieces_of(target, rows, length)
    spared = _spared(target, (rows, length), (rows * pieces, length // pieces))
    return passes * spared > kernels * KERNEL_NS


def _spared(target: Target, before: tuple[int, int], after: tuple[int, int]) -> float:
    """ns that one instruction over rows of a length takes less over others."""
    cycles = _cycles(target, *before) - _cycles(target, *after)
    return cycles / target.number("vector.ghz")


def _cycles(target: Target, rows: int, length: int) -> int:
    """Of one instruction on all rows."""
    blocks = -(-rows // target.integer("sbuf.partitions"))
    return blocks * (length + target.integer("vector.min_ii"))


def _axes(work: Workload) -> tuple[int, int, int]:
    """Extents before, along and behind what is reduced; (0, 0, 0) where it is not one stretch."""
    shape = work.shape("shape")
    if work.operator == "softmax":
        first = work.integer("axis") % len(shape)
        over = [first]
    elif work.operator == "reduce":
        over = sorted(work.shape("axes") or range(len(shape)))
    else:
        over = list(range(len(shape) - work.integer("axes"), len(shape)))
    over = over or [0]
    stretch = range(over[0], over[-1] + 1)
    if any(shape[a] > 1 for a in stretch if a not in over):
        return 0, 0, 0
    along = product([shape[a] for a in stretch])
    return product(shape[: over[0]]), along, product(shape[over[-1] + 1 :])
