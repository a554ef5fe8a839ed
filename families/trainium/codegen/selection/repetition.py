"""Loops whose iterations differ in addresses only: written twice, then copied.

What a loop's iterations write is alike if its variable moves addresses evenly, being in indices
only times a number, and decides nothing: extents, conditions, shapes and indices of partitions are
the same in each (`alike`; a short last iteration is not). What code generation remembers from one
iteration to the next (`_memory`) has to be alike, too; then `kernel.repetition` finds how operands
move, and writes the rest.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sized

from tilesmith.families.trainium.codegen.isa.memory import Tile
from tilesmith.families.trainium.codegen.kernel.repetition import Mark, Period
from tilesmith.families.trainium.codegen.selection.loop_nests.operands import Operands
from tilesmith.families.trainium.codegen.selection.pointwise import PointwiseEmitter
from tilesmith.search_space.expressions.expression import Expr, const
from tilesmith.search_space.expressions.ranges import upper
from tilesmith.search_space.expressions.scalar import Call, Index, Load, Scalar, Select
from tilesmith.search_space.ir.program import Allocate, Block, Buffer, If, Loop, walk
from tilesmith.search_space.ir.transforms.simplification import resolve

FEWEST = 5
"""Iterations that a loop has, for it to be worth comparing them."""

LONGEST = 3
"""Iterations of a period, at most: what idle tiles rotate over."""


def alike(loop: Loop, extent: int, buffers: Mapping[str, Buffer]) -> int:
    """How many of the first iterations of a loop are alike but for addresses, moved evenly.

    Args:
        buffers: those in sight of the loop, by name.
    """
    deciding = _deciding(loop, buffers)
    if deciding is None:
        return 0
    name, count = loop.variable, extent
    bounds = {name: const(extent - 1)}
    for inner in walk(loop.body):
        if isinstance(inner, Loop):
            bounds[inner.variable] = upper(inner.extent, bounds) - 1
    del bounds[name]

    def at(expression: Expr, value: int) -> Expr:
        return resolve(expression.substitute({name: const(value)}), bounds)

    for expression in {e for e in deciding if name in e.variables()}:
        first = at(expression, 0)
        count = next((v for v in range(1, count) if at(expression, v) != first), count)
    return count


def _deciding(loop: Loop, buffers: Mapping[str, Buffer]) -> list[Expr] | None:
    """What decides the instructions of an iteration; None if its addresses do not move evenly."""
    known, deciding = dict(buffers), []
    for statement in walk(loop.body):
        match statement:
            case Loop(extent=extent):
                deciding.append(extent)
            case If(condition=condition):
                deciding += condition
            case Allocate(buffer=buffer):
                known[buffer.name] = buffer
                deciding += buffer.shape
            case Block():
                deciding += [*statement.guard, *_chosen(statement.value)]
                for access, _ in statement.accesses():
                    chip = known[access.buffer].scope in ("sbuf", "psum")
                    deciding += access.indices[: int(chip)]
                    if not all(_even(index, loop.variable) for index in access.indices):
                        return None
            case _:
                pass
    return deciding


def _even(index: Expr, name: str) -> bool:
    """Whether a variable moves an index by the same number each time."""
    if name not in index.variables():
        return True
    factor = index.coefficient(name)
    return factor is not None and factor.constant is not None


def _chosen(value: Scalar) -> Iterator[Expr]:
    """Expressions that decide what a value is, beside those of addresses."""
    match value:
        case Select(condition, then, otherwise):
            yield from condition
            yield from _chosen(then)
            yield from _chosen(otherwise)
        case Call(arguments=arguments):
            for argument in arguments:
                yield from _chosen(argument)
        case Index(expression):
            yield expression
        case Load(indices=indices):
            yield from (index for index in indices if index.tensors())
        case _:
            pass


class Iterations:
    """Iterations of one run of a loop, as they are written, and what is remembered meanwhile.

    Args:
        framed: places with a frame, by what is in it; pools: rotating tiles.
    """

    def __init__(
        self,
        operands: Operands,
        pointwise: PointwiseEmitter,
        framed: Mapping[tuple[int, int], object],
        pools: Sized,
    ) -> None:
        self.operands, self.pointwise, self.kernel = operands, pointwise, operands.kernel
        self.framed, self.pools = framed, pools
        self.since = self.kernel.mark().tiles
        self.marks: list[tuple[Mark, object]] = []

    def repeated(self, left: int) -> int:
        """Write iterations as those before, if they are alike; how many are, of `left`.

        To be called before each iteration.
        """
        self.marks.append((self.kernel.mark(), self._memory()))
        for length in range(1, LONGEST + 1):
            if len(self.marks) <= 2 * length or left < length:
                break
            first, begin = (self.marks[-1 - n * length] for n in (2, 1))
            if not first[1] == begin[1] == self.marks[-1][1]:
                continue
            period = self.kernel.period(first[0], begin[0])
            if period is not None:
                times = left // length
                self.kernel.repeat(period, times)
                self._renew(period, times)
                return times * length
        return 0

    def _live(self) -> Iterator[Tile]:
        """Tiles that something still names."""
        pointwise = self.pointwise
        yield from self.operands.tiles.values()
        yield from pointwise.idle
        yield from pointwise.lent.values()
        for kept in pointwise.staged.values():
            yield from kept.values()

    def _memory(self) -> object:
        """What code generation remembers, iterations alike being equal."""
        operands, pointwise = self.operands, self.pointwise
        relative = self.kernel.relative

        def tile(operand: Tile) -> object:
            return relative(operand, self.since)

        def parts(number: int) -> tuple[object, ...]:
            return (
                len(operands.started.get(number, ())), len(pointwise.begun.get(number, ())),
                tuple(value for _, value in pointwise.promised.get(number, ())),
            )  # fmt: skip

        return (
            tuple((name, tile(t), parts(t.allocation)) for name, t in operands.tiles.items()),
            tuple(map(tile, pointwise.idle)), tuple(map(tile, pointwise.lent.values())),
            tuple(
                (name, key, tile(t))
                for name, kept in pointwise.staged.items()
                for key, t in kept.items()
            ),
            len(self.pools), tuple(self.framed.items()),
        )  # fmt: skip

    def _renew(self, period: Period, times: int) -> None:
        """Handles given since the loop began are those of the last iteration."""
        operands, pointwise = self.operands, self.pointwise
        numbers = {t.allocation for t in self._live() if t.allocation >= self.since}

        def tile(operand: Tile) -> Tile:
            if operand.allocation < self.since:
                return operand
            return self.kernel.renewed(operand, period, times)

        moved = {n: n + period.tiles * times for n in numbers}
        shift = {n: self.kernel.moved_by(n, period, times) for n in numbers}
        started = {
            moved[n]: {(p, offset + shift[n], dims) for p, offset, dims in operands.started[n]}
            for n in numbers if n in operands.started
        }  # fmt: skip
        operands.started.update(started)
        promised = {
            moved[n]: [(tile(view), value) for view, value in pointwise.promised[n]]
            for n in numbers if n in pointwise.promised
        }  # fmt: skip
        pointwise.promised.update(promised)
        begun = {moved[n]: set(map(tile, pointwise.begun[n])) for n in numbers
                 if n in pointwise.begun}  # fmt: skip
        pointwise.begun.update(begun)
        for name, handle in operands.tiles.items():
            operands.tiles[name] = tile(handle)
        pointwise.idle[:] = map(tile, pointwise.idle)
        lent = [tile(given) for given in pointwise.lent.values()]
        pointwise.lent.clear()
        pointwise.lent.update((given.allocation, given) for given in lent)
        for name, kept in pointwise.staged.items():
            pointwise.staged[name] = OrderedDict((key, tile(t)) for key, t in kept.items())
