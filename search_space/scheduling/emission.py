"""Emission: from planned nests to the statements of a program (the last step of lowering).

A scan writes the tile after each step, and nothing at the end.

For a reduction `c` with an accumulator tile at loop L (`cache_write`), inside L:

    allocate c.scope[tile]
    tile = 0                      or, in later iterations of reduce loops outside L:  tile = c[..]
    loops inside L:  tile += ..
    epilogue(tile)                or, before the last such iteration:  c[..] = tile

Without one, the whole reduction is initialised before its outermost reduce loop. The region of a
stage attached at a loop is allocated there and indexed relative to its base.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tilesmith.search_space.expressions.dtypes import widened
from tilesmith.search_space.expressions.expression import Expr, var
from tilesmith.search_space.expressions.ranges import Bounds, lower, within
from tilesmith.search_space.expressions.scalar import (
    REDUCERS,
    Condition,
    Const,
    Load,
    Scalar,
    rewrite,
)
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    Buffer,
    Intrinsic,
    Loop,
    Program,
    Role,
    Statement,
    open_conditions,
    sequence,
    simplify_if,
)
from tilesmith.search_space.scheduling.compute import Stage, Tensor
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.nest import Nest, NestLoop
from tilesmith.search_space.scheduling.plan import Plan
from tilesmith.search_space.support.errors import ScheduleError


@dataclass(frozen=True)
class _Tile:
    """A reduction's accumulator tile: one dimension for each spatial loop inside its loop."""

    buffer: Buffer
    loops: tuple[NestLoop, ...]
    first: Condition
    """>= 0 in the first iteration of the reduce loops outside; empty if there are none."""
    last: Condition
    """>= 0 in their last iteration."""

    @property
    def indices(self) -> tuple[Expr, ...]:
        return tuple(_variable(loop) for loop in self.loops)


@dataclass
class Emitter:
    """Turns a plan into a program; holds the tile that an epilogue reads while it is emitted."""

    plan: Plan
    tiles: dict[str, _Tile] = field(default_factory=dict)

    def program(self) -> Program:
        """The whole program: root stages in order, compile-time ones in the prologue."""
        plan = self.plan
        prologue: list[Statement] = []
        body: list[Statement] = []
        temporaries: list[Buffer] = []
        prepared: list[Buffer] = []
        for stage in plan.compute.stages:
            if plan.host(stage.name) is not None:
                continue
            statement = self.stage(stage)
            (prologue if stage.name in plan.compile_time else body).append(statement)
        for stage in plan.compute.stages:
            if stage.name in plan.compile_time:
                prepared.append(self.buffer(stage.name, "prepared"))
            elif self._needs_memory(stage) and stage is not plan.compute.output:
                temporaries.append(self.buffer(stage.name, "temporary"))
        whole = sequence(*body)
        for temporary in reversed(temporaries):
            whole = Allocate(temporary, whole)
        runtime = [t for t in plan.compute.inputs if t.values is None]
        return Program(
            plan.compute.name,
            (
                *(self._input(t) for t in runtime),
                *prepared,
                self.buffer(plan.compute.output.name, "output"),
            ),
            whole,
            sequence(*prologue) if prologue else None,
            tuple(self._input(t) for t in plan.compute.inputs if t.values is not None),
        )

    def _input(self, tensor: Tensor) -> Buffer:
        layout = self.layout(tensor.name, len(tensor.extents))
        role: Role = "input" if tensor.values is None else "literal"
        shape = layout.shape(tensor.extents)
        scope = self.plan.homes.get(tensor.name, "global")
        return Buffer(tensor.name, shape, tensor.dtype, scope, role, tensor.values)

    def _needs_memory(self, stage: Stage) -> bool:
        """Whether a root stage's tensor lives in memory (an epilogue may take all of it)."""
        if self.plan.host(stage.name) is not None or stage.into or stage.onto:
            return False
        consumed = any(r.producer == stage.name for r in self.plan.reverse_at.values())
        return not consumed or bool(self._outer_reduction(stage))

    def layout(self, tensor: str, rank: int) -> Layout:
        return self.plan.layouts.get(tensor) or Layout.plain(rank)

    def buffer(self, name: str, role: Role) -> Buffer:
        """The buffer of a stage's tensor at the root."""
        stage = self.plan.compute.stage(name)
        shape = self.layout(name, len(stage.tensor_shape)).shape(list(stage.tensor_shape))
        usual = {"prepared": "packed", "output": "global"}.get(role)
        scope = usual or self.plan.scopes.get(name, "global")
        return Buffer(name, shape, stage.dtype, self.plan.homes.get(name, scope), role)

    # -- one stage ----------------------------------------------------------------------------
    def stage(self, stage: Stage) -> Statement:
        """The whole nest of a stage with everything attached to it."""
        nest = self.plan.nests[stage.name]
        if stage.reducer is None or stage.scatters or stage.name in self.plan.reverse_at:
            return self._loops(nest, 0, self._block(nest, stage.reducer))
        tile = self._tile(nest)
        if tile is not None:
            return self._with_tile(nest, tile)
        if stage.scan:
            raise ScheduleError(f"stage '{stage.name}' keeps partial results: cache_write it")
        if stage.onto:
            return self._loops(nest, 0, self._block(nest, stage.reducer))
        first = next(i for i, loop in enumerate(nest.loops) if loop.reduce)
        inner = [loop for loop in nest.loops[first:] if not loop.reduce]
        initial = _wrap(inner, self._initial(nest))
        update = self._block(nest, stage.reducer)
        return self._loops(nest, 0, update, {first: initial})

    def _loops(
        self,
        nest: Nest,
        start: int,
        leaf: Statement,
        before: dict[int, Statement] | None = None,
        stop: int | None = None,
    ) -> Statement:
        """Loops `start`.. of a nest around `leaf`, with attached producers at their places.

        `before` puts a statement in front of the loop of that position.
        """
        before = before or {}
        stop = len(nest.loops) if stop is None else stop
        if start == stop:
            return sequence(before.get(start), leaf)
        loop = nest.loops[start]
        inside = self._loops(nest, start + 1, leaf, before, stop)
        inside = self._attach(nest.stage.name, loop.name, inside)
        return sequence(before.get(start), _loop(loop, inside))

    def _attach(self, stage: str, loop: str, inside: Statement) -> Statement:
        """Producers attached at a loop run before its body; their buffers live around both."""
        here, plan = (stage, loop), self.plan
        attached = [s for s in plan.compute.stages if s.name in plan.compute_at]
        producers = [s for s in attached if plan.host(s.name) == here]
        if not producers:
            return inside
        whole = sequence(*(self.stage(p) for p in producers), inside)
        nest = self.plan.nests[stage]
        depth = nest.loops[nest.position(loop)].stages
        living = [s for s in attached if plan.lives(s.name) == here and not s.onto]
        for producer in reversed(living):
            versions = self.plan.places.get(producer.name, depth)
            whole = Allocate(self._region_buffer(producer, versions), whole)
        return whole

    def _region_buffer(self, stage: Stage, versions: int) -> Buffer:
        """A pipelined loop keeps a version of what it allocates for each iteration in flight."""
        limits = self._limits(self.plan.owner(stage.name))
        shape = self.layout(stage.name, len(limits)).shape(limits)
        scope = self.plan.scopes[stage.name]
        return Buffer(stage.name, shape, stage.dtype, scope, versions=versions)

    def _limits(self, nest: Nest) -> list[Expr]:
        """The largest region of each axis that an attached stage ever covers."""
        if nest.stage.store is not None:
            return list(nest.stage.tensor_shape)
        return [nest.limits[axis.name] for axis in nest.stage.axes]

    # -- accumulator tiles --------------------------------------------------------------------
    def _outer_reduction(self, stage: Stage) -> list[NestLoop]:
        """Reduce loops at or outside the stage's tile."""
        cached = self.plan.cache_write.get(stage.name)
        if cached is None:
            return []
        nest = self.plan.nests[stage.name]
        return [loop for loop in nest.loops[: nest.position(cached.loop) + 1] if loop.reduce]

    def _tile(self, nest: Nest) -> _Tile | None:
        cached = self.plan.cache_write.get(nest.stage.name)
        if cached is None:
            return None
        at = nest.position(cached.loop)
        inner = nest.loops[at + 1 :]
        loops = tuple(replace(loop, intrinsic="") for loop in inner if not loop.reduce)
        outer = self._outer_reduction(nest.stage)
        shape = tuple(loop.limit for loop in loops)
        name = f"{nest.stage.name}.{cached.scope}"
        dtype = widened(nest.stage.dtype)
        if outer and dtype != nest.stage.dtype:
            raise ScheduleError(
                f"stage '{nest.stage.name}' of {nest.stage.dtype} cuts its reduction: partial sums "
                f"are {dtype}, give the result a stage of its own"
            )
        return _Tile(
            Buffer(name, shape, dtype, cached.scope, versions=nest.loops[at].stages),
            loops,
            tuple(-_variable(loop) for loop in outer),
            tuple(_variable(loop) - loop.extent + 1 for loop in outer),
        )

    def _with_tile(self, nest: Nest, tile: _Tile) -> Statement:
        """See the module's docstring."""
        stage = nest.stage
        self.tiles[stage.name] = tile
        cut = nest.position(self.plan.cache_write[stage.name].loop) + 1
        initial: Statement = Block(
            stage.name, tile.buffer.name, tile.indices, Const(REDUCERS[stage.reducer or "sum"])
        )
        whole = self._write(nest)
        if tile.first:
            again = Block(stage.name, tile.buffer.name, tile.indices, Load(*whole))
            initial = simplify_if(tile.first, _wrap(tile.loops, initial), _wrap(tile.loops, again))
        else:
            initial = _wrap(tile.loops, initial)
        named = next((loop.initial for loop in nest.loops if loop.initial), "")
        initial = Intrinsic(named, initial) if named else initial
        value = self._value(nest, stage.value)
        update = Block(
            stage.name, tile.buffer.name, tile.indices, value, stage.reducer,
            engine=self.plan.engines.get(stage.name, ""),
        )  # fmt: skip
        store = _wrap(tile.loops, Block(stage.name, *whole, Load(tile.buffer.name, tile.indices)))
        epilogue = self._epilogue(stage.name)
        if epilogue is None:
            final = store
        elif tile.last:
            final = simplify_if(tile.last, epilogue, store)
        else:
            final = epilogue
        if stage.scan:
            kept = Block(stage.name, *whole, Load(tile.buffer.name, tile.indices))
            steps = (update, kept) if stage.scan == "inclusive" else (kept, update)
            inside = sequence(initial, self._loops(nest, cut, sequence(*steps)))
        else:
            inside = sequence(initial, self._loops(nest, cut, update), final)
        inside = Allocate(tile.buffer, inside)
        inside = self._attach(stage.name, nest.loops[cut - 1].name, inside)
        return self._loops_outside(nest, cut, inside)

    def _loops_outside(self, nest: Nest, cut: int, inside: Statement) -> Statement:
        for position in range(cut - 1, -1, -1):
            loop = nest.loops[position]
            if position < cut - 1:
                inside = self._attach(nest.stage.name, loop.name, inside)
            inside = _loop(loop, inside)
        return inside

    def _epilogue(self, producer: str) -> Statement | None:
        """The chain of stages attached behind a tile, each reading the one before."""
        for name, attached in self.plan.reverse_at.items():
            if attached.producer != producer:
                continue
            nest = self.plan.nests[name]
            following = self._next(name)
            if following is None:
                return _wrap(nest.loops, self._block(nest, None))
            loops = tuple(nest.loops)
            shape = tuple(loop.limit for loop in loops)
            buffer = Buffer(
                f"{name}.{attached.scope}", shape, nest.stage.dtype, attached.scope,
                versions=self.tiles[producer].buffer.versions,
            )  # fmt: skip
            self.tiles[name] = _Tile(buffer, loops, (), ())
            block = Block(
                name, buffer.name, self.tiles[name].indices, self._value(nest, nest.stage.value),
                engine=self.plan.engines.get(name, ""),
            )  # fmt: skip
            rest = self._epilogue(name)
            return Allocate(buffer, sequence(_wrap(loops, block), rest))
        return None

    def _next(self, name: str) -> str | None:
        return next((n for n, r in self.plan.reverse_at.items() if r.producer == name), None)

    # -- blocks and accesses ------------------------------------------------------------------
    def _initial(self, nest: Nest) -> Block:
        buffer, indices = self._write(nest)
        identity = Const(REDUCERS[nest.stage.reducer or "sum"])
        return Block(nest.stage.name, buffer, indices, identity, guard=self._guard(nest))

    def _block(self, nest: Nest, reducer: str | None) -> Block:
        buffer, indices = self._write(nest)
        return Block(
            nest.stage.name,
            buffer,
            indices,
            self._value(nest, nest.stage.value),
            reducer,
            self._guard(nest),
            self.plan.engines.get(nest.stage.name, ""),
        )

    def _guard(self, nest: Nest) -> Condition:
        bounds = self._bounds(nest.stage.name)
        conditions = tuple(within(e.substitute(nest.axis_values), bounds) for e in nest.stage.guard)
        return tuple(e for e in open_conditions(conditions) if not _holds(e, bounds))

    def _write(self, nest: Nest) -> tuple[str, tuple[Expr, ...]]:
        """Buffer and physical indices of the element a nest writes."""
        tensor = nest.stage.into or self.plan.compute.home(nest.stage.name)
        return tensor, self._physical(tensor, nest.write_indices(), nest)

    def _value(self, nest: Nest, value: Scalar) -> Scalar:
        def access(load: Load) -> Scalar:
            if load.buffer in self.tiles and nest.stage.name in self.plan.reverse_at:
                tile = self.tiles[load.buffer]
                return Load(tile.buffer.name, tile.indices)
            tensor = self.plan.compute.home(load.buffer)
            return Load(tensor, self._physical(tensor, load.indices, nest))

        def index(expression: Expr) -> Expr:
            return within(expression.substitute(nest.axis_values), bounds)

        bounds = self._bounds(nest.stage.name)
        return rewrite(value, index, access)

    def _physical(self, tensor: str, logical: tuple[Expr, ...], nest: Nest) -> tuple[Expr, ...]:
        """Logical indices -> physical ones, relative to the region's base where it is attached."""
        if tensor in self.plan.compute_at:
            owner = self.plan.owner(tensor)
            if owner.stage.store is None:
                bases = [owner.bases[a.name] for a in owner.stage.axes]
                logical = tuple(i - base for i, base in zip(logical, bases, strict=True))
        return self.layout(tensor, len(logical)).indices(logical, self._bounds(nest.stage.name))

    def _bounds(self, name: str) -> Bounds:
        """Upper bounds of every loop variable in sight of a stage."""
        bounds: dict[str, Expr] = {}
        for loop in self._loops_in_sight(name):
            bounds[loop.variable] = loop.limit - 1
        return bounds

    def _loops_in_sight(self, name: str) -> Iterator[NestLoop]:
        host = self.plan.host(name)
        if host is not None:
            yield from self._loops_in_sight(host[0])
        yield from self.plan.nests[name].loops


def _holds(expression: Expr, bounds: Bounds) -> bool:
    """Whether an expression is >= 0 for every value of the loop variables."""
    low = lower(expression, bounds).constant
    return low is not None and low >= 0


def _variable(loop: NestLoop) -> Expr:
    return var(loop.variable)


def _loop(loop: NestLoop, body: Statement) -> Statement:
    nested: Statement = Loop(loop.variable, loop.extent, loop.kind, body, loop.stages)
    return Intrinsic(loop.intrinsic, nested) if loop.intrinsic else nested


def _wrap(loops: list[NestLoop] | tuple[NestLoop, ...], leaf: Statement) -> Statement:
    """Plain loops around a leaf (initialisation, write-back, epilogue)."""
    for loop in reversed(loops):
        leaf = Loop(loop.variable, loop.extent, loop.kind, leaf)
        leaf = Intrinsic(loop.intrinsic, leaf) if loop.intrinsic else leaf
    return leaf
