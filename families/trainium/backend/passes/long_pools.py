"""Pools of rows that SBUF does not hold, as pools of pieces of them.

    y = Kernel(pool2d w=200000 kw=3 stride=1x2)(x)                             before
    y = concat(pool2d(slice(x, ..50001)), pool2d(slice(x, 50000..)), ..)       after

    y = Kernel(pool2d c=8 w=200000 kw=2 stride=1x2)(x)                         before
    y = Kernel(pool2d c=320 w=5000 kw=2 stride=1x2)(x)                         after

A schedule of a pool keeps whole rows of an image on a partition. Pieces overlap by what windows at
their border share; padding is that of the first and the last. Where windows share nothing and
leave nothing out, pieces are channels, as they lie in memory. What an epilogue does with tensors is
a map behind the pool:

    y = Kernel(pool2d w=200000 epilogue=relu,residual)(x, r)                   before
    t = Kernel(pool2d w=200000 epilogue=relu)(x); y = add(t, r)                after
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilesmith.compiler.graph.graph import Node, kernel
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.families.kit.passes.small_kernels import SmallKernels
from tilesmith.families.trainium.backend.passes.windows import reached
from tilesmith.search_space.expressions.scalar import Scalar, load
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.formula import formula_text
from tilesmith.search_space.operator_parts.fusion import pointwise
from tilesmith.search_space.operators.pool2d import Pool2d, Window
from tilesmith.search_space.spaces.knobs import divisors
from tilesmith.search_space.workloads.scheduler import is_scheduled
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import ParameterValue, Workload, shape_text

MOST = 64
"""Pieces of a row at most."""

LONGEST = 8192
"""Elements of a piece at most where pieces are channels."""

Box = tuple[int, int]

_CUT = ("none", "channel", "full")
"""Operands of an epilogue that a map can have."""


@dataclass(frozen=True)
class CutLongPools(RulePass):
    """Pools whose rows do not fit are pools of pieces of them.

        y = pool2d(x), rows too long                     before
        y = concat(pool2d(slice(x)), ...)                after

    Contract: a lowered graph in, the same values out; only pools change that have a schedule and no
    tile that fits, whose windows all count alike, and whose pieces fit; epilogues' operands have an
    element a channel or one a result.

    Attributes:
        runs: whether the target has a schedule for a workload, of which some fit.
    """

    name = "cut-long-pools"

    target: Target
    runs: Callable[[Workload], bool]

    revisits = False

    @rule("kernel.pool2d")
    def _cut(self, rewriter: Rewriter, node: Node) -> None:
        """Put pools of pieces in the place of a pool that does not run."""
        work = node.work
        if work.integer("global") or self.runs(work) or not is_scheduled(work, self.target):
            return
        alone = _alone(work)
        if len(alone.epilogue) == len(work.epilogue):
            if nodes := self._shorter(rewriter, node, work):
                rewriter.replace(node, *nodes)
            return
        if any(step.kind.operand not in _CUT or step.kind.dtype for step in work.epilogue):
            return
        shape = rewriter.info(node.outputs[0]).dims
        result = rewriter.add_tensor(node.outputs[0], work.dtype, shape)
        nodes = self._shorter(rewriter, kernel(alone, node.inputs[:1], result, node.name), alone)
        if nodes:
            rewriter.replace(node, *nodes, *_behind(rewriter, node, work, result, shape))

    def _shorter(self, rewriter: Rewriter, node: Node, work: Workload) -> list[Node]:
        """Pools of pieces that run, and what joins them; none if no pieces do."""
        template = template_of("pool2d")
        assert isinstance(template, Pool2d)
        windows = template.windows(work)
        counted = bool(work.integer("count_include_pad"))
        varies = any(window.count_varies(counted) for window in windows)
        if work.text("kind") == "average" and varies:
            return []
        if (channels := _as_channels(work, windows, self.target)) and self.runs(channels):
            return [kernel(channels, node.inputs, node.outputs[0], node.name)]
        count = 2
        while count <= min(MOST, windows[1].out):
            nodes = _pieces(rewriter, node, windows, count)
            if all(part.workload is not None and self.runs(part.workload) for part in nodes):
                return nodes
            count *= 2
        return []


def _alone(work: Workload) -> Workload:
    """A pool up to the first step of its epilogue that has an operand, which would have to be cut,
    too."""
    reads = [step.kind.operand != "none" for step in work.epilogue]
    steps = work.epilogue[: reads.index(True)] if any(reads) else work.epilogue
    return Workload.of("pool2d", dict(work.parameters), dtype=work.dtype, epilogue=steps)


def _behind(
    rewriter: Rewriter, node: Node, work: Workload, source: str, shape: tuple[int, ...]
) -> list[Node]:
    """The steps that `_alone` leaves out, as a map over what it makes."""
    formula: Scalar = load("x0")
    operands = [(source, shape)]
    for step in work.epilogue[len(_alone(work).epilogue) :]:
        others: tuple[Scalar | float, ...] = step.arguments
        if step.kind.operand != "none":
            name = node.inputs[len(operands)]
            others = (load(f"x{len(operands)}"),)
            channels = (shape[1], *(1 for _ in shape[2:]))
            operands.append((name, shape if step.kind.operand == "full" else channels))
        formula = pointwise(step.name, formula, *others)
    make = SmallKernels(rewriter)
    make.elementwise(node.outputs[0], work.dtype, shape, formula_text(formula), operands)
    return make.taken()


def _as_channels(work: Workload, windows: tuple[Window, Window], target: Target) -> Workload | None:
    """A pool along rows alone, whose windows are the row one after another, of pieces of it that
    fill the partitions; None of any other."""
    down, across = windows
    alone = down.kernel == down.stride == 1 and down.out == down.extent
    whole = across.kernel == across.stride and across.out * across.kernel == across.extent
    if not alone or not whole or across.before or across.dilation > 1:
        return None
    rows = work.integer("n") * work.integer("c") * work.integer("h")
    wanted = max(-(-target.integer("sbuf.partitions") // rows), -(-across.extent // LONGEST))
    counts = [n for n in divisors(across.out, across.out) if n >= wanted]
    if not counts:
        return None
    sizes = {"n": 1, "c": rows * counts[0], "h": 1, "w": across.extent // counts[0]}
    return work.with_parameters(**sizes, ceil=0, pad="0")


def _pieces(
    rewriter: Rewriter, node: Node, windows: tuple[Window, Window], count: int
) -> list[Node]:
    """Slices, pools and the concatenation of a row cut into so many pieces."""
    work, (down, across) = node.workload, windows
    assert work is not None
    n, c, h, w = (work.integer(name) for name in ("n", "c", "h", "w"))
    edges = [across.out * piece // count for piece in range(count + 1)]
    nodes, parts = list[Node](), list[str]()
    for outputs in pairwise(edges):
        (start, stop), pads = _needed(across, outputs)
        sizes = {
            "shape": (n, c, h, w),
            "starts": (0, 0, 0, start),
            "sizes": (n, c, h, stop - start),
        }
        words = {name: shape_text(value) for name, value in sizes.items()}
        piece = rewriter.add_tensor(node.inputs[0], work.dtype, sizes["sizes"])
        cut = Workload.of("slice", words, dtype=work.dtype)
        nodes.append(kernel(cut, node.inputs[:1], piece, node.name))
        padding = (down.before, pads[0], reached(down), pads[1])
        parts.append(
            rewriter.add_tensor(
                node.outputs[0], work.dtype, (n, c, down.out, outputs[1] - outputs[0])
            )
        )
        pool = work.with_parameters(w=stop - start, ceil=0, pad=shape_text(padding))
        nodes.append(kernel(pool, (piece,), parts[-1], node.name))
    return [*nodes, _joined(rewriter, node, work, parts)]


def _needed(window: Window, outputs: Box) -> tuple[Box, Box]:
    """Elements that some windows read, and how far they reach beyond both ends of the row."""
    first = outputs[0] * window.stride - window.before
    last = (outputs[1] - 1) * window.stride - window.before + window.reach
    start, stop = max(0, first), min(window.extent, last)
    return (start, stop), (start - first, last - stop)


def _joined(rewriter: Rewriter, node: Node, work: Workload, parts: Sequence[str]) -> Node:
    """The pieces of each row one behind the other."""
    widths = [rewriter.info(name).dims[3] for name in parts]
    *outer, _ = rewriter.info(parts[0]).dims
    whole: dict[str, ParameterValue] = {
        "shape": shape_text((*outer, sum(widths))), "axis": 3, "parts": shape_text(tuple(widths)),
    }  # fmt: skip
    concat = Workload.of("concat", whole, dtype=work.dtype)
    return kernel(concat, parts, node.outputs[0], node.name)
