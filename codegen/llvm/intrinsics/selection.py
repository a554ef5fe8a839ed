"""The intrinsic `select`: the largest of a row of distinct keys, in their order.

    intrinsic select:
      for j in k:
        allocate rank
        for i in n:
          rank[i] = 0
          for l in n:
            rank[i] += to_int64(greater(key[.., l], key[.., i]))
        sorted[.., j] = -inf
        for i in n:
          sorted[.., j] max= where(equal(rank[i], index(j)), key[.., i], least)

That is k*n*n comparisons. Here: the k largest so far in a heap whose root is the least of them
(Williams, "Algorithm 232: Heapsort", 1964), eight keys at a time compared with it; at the end the
heap is sorted. A body of any other form is emitted as the loops it is.
"""

from dataclasses import dataclass
from functools import cache

from tilesmith.codegen.compiled import Ints, compiled
from tilesmith.codegen.compiled.function import translate
from tilesmith.codegen.llvm.expressions.values import ValueEmitter
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import INDEX, POINTER, VOID, Function, Module, Value
from tilesmith.search_space.expressions.expression import ExprLike, as_expr, var
from tilesmith.search_space.expressions.scalar import REDUCERS, Call, Const, Index, Load, call
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    Intrinsic,
    Loop,
    Sequence,
    Statement,
    blocks,
    walk,
)

_LEAST = -(1 << 63)


@compiled
def _sink(heap: Ints, place: int, count: int) -> None:
    """Put what stands at `place` where nothing below it is less."""
    moved = heap[place]
    child = 2 * place + 1
    while child < count:
        if child + 1 < count and heap[child + 1] < heap[child]:
            child = child + 1
        if heap[child] >= moved:
            break
        heap[place] = heap[child]
        place = child
        child = 2 * place + 1
    heap[place] = moved


@compiled
def _eight(keys: Ints, at: int) -> int:
    """The largest of eight keys."""
    left = max(max(keys[at], keys[at + 1]), max(keys[at + 2], keys[at + 3]))
    right = max(max(keys[at + 4], keys[at + 5]), max(keys[at + 6], keys[at + 7]))
    return int(max(left, right))


@compiled
def _offer(keys: Ints, start: int, stop: int, heap: Ints, k: int) -> None:
    """Take what is larger than the least in the heap."""
    for i in range(start, stop):
        if keys[i] > heap[0]:
            heap[0] = keys[i]
            _sink(heap, 0, k)


@compiled
def largest(keys: Ints, n: int, heap: Ints, k: int) -> None:
    """The k largest of n keys, in descending order, in `heap`."""
    for i in range(k):
        heap[i] = keys[i]
    for i in range(k // 2 - 1, -1, -1):
        _sink(heap, i, k)
    at = k
    while at + 8 <= n:
        if _eight(keys, at) > heap[0]:
            _offer(keys, at, at + 8, heap, k)
        at += 8
    _offer(keys, at, n, heap, k)
    for last in range(k - 1, 0, -1):
        least = heap[0]
        heap[0] = heap[last]
        heap[last] = least
        _sink(heap, 0, last)


@dataclass(frozen=True)
class _Selection:
    """A recognised selection: where the rows read and written begin, and their lengths."""

    key: Load
    n: int
    out: Load
    k: int


def recognise(statement: Intrinsic) -> _Selection | None:
    """The selection of an intrinsic, or None where its body has another form."""
    updates = [block for block in blocks(statement) if block.reducer == "max"]
    loops = [inner for inner in walk(statement) if isinstance(inner, Loop)]
    ranks = [inner.buffer for inner in walk(statement) if isinstance(inner, Allocate)]
    if len(updates) != 1 or len(loops) != 4 or len(ranks) != 1:
        return None
    update, (j, outer, inner, i) = updates[0], loops
    match update.value:
        case Call("where", (Call("equal", (Load() as rank, Index())), Load() as key, Const())):
            pass
        case _:
            return None
    n, k = i.extent.constant, j.extent.constant
    if n is None or k is None or rank.buffer != ranks[0].name:
        return None

    def at(load: Load, index: ExprLike) -> Load:
        return Load(load.buffer, (*load.indices[:-1], as_expr(index)))

    def of(load: Load, variable: str) -> Load:
        return at(load, var(variable))

    one = of(rank, outer.variable)
    larger = call("greater", of(key, inner.variable), of(key, outer.variable))
    mine = call("equal", of(rank, i.variable), Index(var(j.variable)))
    written = of(update.write, j.variable)
    value = call("where", mine, of(key, i.variable), _LEAST)
    stage = next(block.stage for block in blocks(outer))

    def block(name: str, place: Load, value: Call | Const, reducer: str | None = None) -> Block:
        return Block(name, place.buffer, place.indices, value, reducer)

    count = Loop(
        outer.variable, i.extent, "serial",
        Sequence((
            block(stage, one, Const(0.0)),
            Loop(inner.variable, i.extent, "serial",
                 block(stage, one, call("to_int64", larger), "sum")),
        )),
    )  # fmt: skip
    take = Loop(i.variable, i.extent, "serial", block(update.stage, written, value, "max"))
    begin = block(update.stage, written, Const(REDUCERS["max"]))
    body: Statement = Allocate(ranks[0], Sequence((count, begin, take)))
    if statement.body != Loop(j.variable, j.extent, "serial", body) or not 1 <= k <= n:
        return None
    return _Selection(at(key, 0), n, at(update.write, 0), k)


def emit(chosen: _Selection, values: ValueEmitter) -> None:
    """Call the routine, which the module gets at its first use."""
    builder: Builder = values.builder

    def start(load: Load) -> Value:
        return values.pointer(load.buffer, *values.place(values.compiled(load, None)))

    arguments = [start(chosen.key), INDEX(chosen.n), start(chosen.out), INDEX(chosen.k)]
    builder.call(_routine(builder.module), arguments)


class _Routine(Function):
    """`largest` and what it calls, as text."""

    def __init__(self, module: Module) -> None:
        super().__init__(module, largest.name, VOID, (POINTER, INDEX, POINTER, INDEX))
        self.text, self._lines = _definitions()

    def lines(self) -> list[str]:
        return self._lines


def _routine(module: Module) -> Function:
    routine = module.functions.get(largest.name)
    return routine if routine is not None else _Routine(module)


@cache
def _definitions() -> tuple[str, list[str]]:
    """(name of the routine, its definition and those of what it calls) as text."""
    function = translate(largest).function
    text = str(function.module)
    definitions = text[text.index("define ") :]
    own = f'define void @"{function.name}"'
    assert own in definitions, "the routine is defined"
    internal = definitions.replace(own, own.replace("define", "define internal"))
    return f'@"{function.name}"', internal.splitlines()
