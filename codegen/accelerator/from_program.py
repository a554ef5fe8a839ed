"""From the loop IR to an instruction stream.

The generator walks a bound program. Loops around several statements are run, loops around a single
block become instructions: their variables are dealt out to the partition axis and the free axes of
the operands, as far as the hardware's limits allow, and what remains is run.

    block                                              instruction
    sbuf[...] = hbm[...]        hbm[...] = sbuf[...]   LOAD, STORE
    psum[m, n] += sbuf[k, m] * sbuf[k, n]              MATMUL, the first after `psum[...] = 0` not
    adding psum[k, m] = sbuf[m, k]                            TRANSPOSE any[...] = expression(sbuf,
    psum, hbm)             elementwise instructions (`pointwise`) sbuf[...] op= expression
    REDUCE, combined with what is there

A buffer allocated inside a loop of pipeline depth d has d places. Program order is kept for each
engine; semaphores, verification and the grant order are `builder.Kernel.finish`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from codegen.accelerator.builder import Buffers, Kernel
from codegen.accelerator.core import Core
from codegen.accelerator.instructions import DTYPES, InstructionStream, Space
from codegen.accelerator.memory import HbmView, Tile
from codegen.accelerator.nests import (
    Environment,
    Evaluate,
    Nest,
    NestAccess,
    compile_expression,
    integer,
    match_nest,
    narrow,
    plan_nest,
    split_pipeline,
)
from codegen.accelerator.pointwise import Pointwise
from search_space.dtypes import size_of
from search_space.errors import CodegenError
from search_space.program import (
    Allocate,
    Buffer,
    If,
    Intrinsic,
    Loop,
    Program,
    Sequence,
    Statement,
)
from search_space.scalar import Call, Const, Load, Select

DMA_BYTES = 1 << 20
"""A DMA transfer is cut into pieces no larger than this, so that work can begin on the first."""

SPACES = {"sbuf": Space.SBUF, "psum": Space.PSUM}


@dataclass
class Generator:
    """The state of one walk. `generate` is the entry."""

    kernel: Kernel
    views: dict[str, HbmView] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    tiles: dict[str, Tile] = field(default_factory=dict)
    pools: dict[int, Buffers] = field(default_factory=dict)
    nests: dict[int, Nest | None] = field(default_factory=dict)
    extents: dict[int, Evaluate] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=lambda: {name: size_of(name) for name in DTYPES})
    framed: dict[tuple[int, int], tuple[tuple[str, int, int, int], ...]] = field(
        default_factory=dict
    )
    started: dict[int, set[tuple[object, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pointwise = Pointwise(self.kernel, self.tile_view, self.views)

    # -- statements ---------------------------------------------------------------------------
    def run(self, statement: Statement, env: Environment, depth: int = 1) -> None:
        """Emit a statement; `depth` is the pipeline depth of the loop around it."""
        nest = self.nest(statement)
        if nest is not None:
            self.emit(nest, env)
            return
        match statement:
            case Loop():
                self.loop(statement, env)
            case Sequence(statements):
                for inner in statements:
                    self.run(inner, env, depth)
            case Allocate(buffer, body):
                self.allocate(statement, buffer, depth)
                self.run(body, env, depth)
            case If(condition, then, otherwise):
                if all(compile_expression(e)(env) >= 0 for e in condition):
                    self.run(then, env, depth)
                elif otherwise is not None:
                    self.run(otherwise, env, depth)
            case Intrinsic(_, body):
                self.run(body, env, depth)
            case _:
                raise AssertionError(type(statement))

    def loop(self, loop: Loop, env: Environment) -> None:
        """Run a loop. A pipelined one makes the tiles of iteration i + 1 beside the use of i's.

        Both parts' instructions are merged evenly, so that an engine that works for both (the
        tensor engine transposes and multiplies) never waits long for the latencies of one.
        """
        stages, extent = loop.stages, self.extent(loop)(env)
        allocations, producers, consumers = (
            split_pipeline(loop.body) if stages > 1 else ([], [], [])
        )
        for value in range(extent):
            env[loop.variable] = value
            if not producers:
                self.run(loop.body, env, stages)
                continue
            if value == 0:
                self.part(allocations, producers, env, stages)
            start = self.kernel.length
            self.part([], consumers, env, stages)
            middle = self.kernel.length
            if value + 1 < extent:
                env[loop.variable] = value + 1
                self.part(allocations, producers, env, stages)
                self.kernel.merge(start, middle)
        env.pop(loop.variable, None)

    def part(
        self, allocations: list[Allocate], body: list[Statement], env: Environment, depth: int
    ) -> None:
        for found in allocations:
            self.allocate(found, found.buffer, depth)
        for statement in body:
            self.run(statement, env, depth)

    def nest(self, statement: Statement) -> Nest | None:
        """The planned nest a statement is, or None; planned once."""
        key = id(statement)
        if key not in self.nests:
            found = match_nest(statement)
            self.nests[key] = plan_nest(*found, self.buffers) if found else None
        return self.nests[key]

    def extent(self, loop: Loop) -> Evaluate:
        if id(loop) not in self.extents:
            self.extents[id(loop)] = compile_expression(loop.extent)
        return self.extents[id(loop)]

    def allocate(self, statement: Statement, buffer: Buffer, depth: int) -> None:
        """A tile in the next place of its pool."""
        if buffer.scope not in SPACES:
            raise CodegenError(
                f"buffer '{buffer.name}' is in '{buffer.scope}'; an accelerator has sbuf and psum"
            )
        self.buffers[buffer.name] = buffer
        if id(statement) not in self.pools:
            shape = [integer(e, f"the shape of '{buffer.name}'") for e in buffer.shape]
            shape = shape if len(shape) > 1 else [*shape, 1]
            count = max(depth, buffer.versions)
            self.pools[id(statement)] = self.kernel.buffers(
                count, shape, buffer.dtype, buffer.name, SPACES[buffer.scope]
            )
        tile = self.pools[id(statement)].next()
        self.tiles[buffer.name] = tile
        self.started[tile.allocation] = set()

    # -- operands -----------------------------------------------------------------------------
    def tile_view(
        self,
        access: NestAccess,
        env: Environment,
        partition: str,
        dims: list[tuple[str, int]],
        rows: int,
    ) -> Tile:
        """The part of a tile that `rows` of loop `partition` and the loops `dims` touch."""
        whole = self.tiles[access.buffer.name]
        strides = [(count, access.strides.get(name, 0)) for name, count in dims]
        offset = access.offset(env)
        for name in access.strides:
            if name in env:
                offset += access.strides[name] * env[name]
        row = access.row(env)
        for name in access.row_strides:
            if name in env and name != partition:
                row += access.row_strides[name] * env[name]
        return Tile(
            whole.name, whole.space, whole.allocation, whole.dtype, whole.partition + row, rows,
            whole.offset + offset * self.sizes[whole.dtype], tuple(strides) or ((1, 1),),
        )  # fmt: skip

    def hbm_view(
        self, access: NestAccess, env: Environment, dims: list[tuple[str, int]]
    ) -> HbmView:
        """The part of a tensor that the loops `dims` touch, the first of them on partitions."""
        whole = self.views[access.buffer.name]
        offset = access.offset(env)
        for name in access.strides:
            if name in env:
                offset += access.strides[name] * env[name]
        strides = tuple((count, access.strides.get(name, 0)) for name, count in dims)
        return HbmView(whole.name, whole.tensor, whole.dtype, offset, strides)

    # -- nests --------------------------------------------------------------------------------
    def emit(self, nest: Nest, env: Environment) -> None:
        """Emit a nest at one point of the loops outside it."""
        outside = [loop.variable for loop in nest.loops if loop.variable in nest.fixed]
        for values in self.points(nest, outside, env):
            inner = {**env, **values}
            sizes = {
                loop.variable: extent(inner)
                for loop, extent in zip(nest.loops, nest.extents, strict=True)
                if loop.variable not in nest.fixed
            }
            if all(size > 0 for size in sizes.values()):
                self.instruction(nest, inner, sizes)

    def points(self, nest: Nest, names: list[str], env: Environment) -> Iterator[dict[str, int]]:
        """Values of the loops `names`, whose extents may depend on each other."""
        if not names:
            yield {}
            return
        extents = {
            loop.variable: extent for loop, extent in zip(nest.loops, nest.extents, strict=True)
        }
        for value in range(extents[names[0]]({**env})):
            for rest in self.points(nest, names[1:], {**env, names[0]: value}):
                yield {names[0]: value, **rest}

    def instruction(self, nest: Nest, env: Environment, sizes: dict[str, int]) -> None:
        """Emit a rectangular nest."""
        apart = self.apart(nest, sizes)
        if apart:
            rest = {name: size for name, size in sizes.items() if name not in apart}
            for values in product(*(range(sizes[name]) for name in apart)):
                point = dict(zip(apart, values, strict=True))
                self.instruction(nest, {**env, **point}, rest)
            return
        block, scope = nest.block, nest.write.buffer.scope
        value = block.value
        reads = list(nest.reads.values())
        if isinstance(value, Const):
            self.initialise(nest, env, sizes, value.value)
        elif isinstance(value, Load) and block.reducer is None and self.is_dma(nest):
            self.dma(nest, env, sizes)
        elif isinstance(value, Select) and self.is_dma(nest):
            self.padded(nest, env, sizes, value)
        elif self.is_product(nest):
            self.matmul(nest, env, sizes)
        elif isinstance(value, Load) and scope == "psum" and reads[0].buffer.scope == "sbuf":
            self.transpose(nest, env, sizes)
        else:
            self.pointwise.emit(nest, env, sizes, self.partition(nest.write, sizes))

    def apart(self, nest: Nest, sizes: dict[str, int]) -> list[str]:
        """Loops that no single instruction runs over: those that skip partitions, and, where a
        border depends on two loops at once, the shorter of the two."""
        found = {
            name
            for access in (nest.write, *nest.reads.values())
            for name, step in access.row_strides.items()
            if step != 1 and sizes.get(name, 1) > 1
        }
        if isinstance(nest.block.value, Select):
            for expression in nest.block.value.condition:
                names = [n for n in expression.variables() if sizes.get(n, 1) > 1]
                if len(names) > 1:
                    found.add(min(names, key=lambda name: sizes[name]))
        return sorted(found)

    def is_dma(self, nest: Nest) -> bool:
        scopes = {nest.write.buffer.scope, *(a.buffer.scope for a in nest.reads.values())}
        return "sbuf" in scopes and bool(scopes - {"sbuf", "psum"})

    def is_product(self, nest: Nest) -> bool:
        block = nest.block
        return (
            block.reducer == "sum"
            and nest.write.buffer.scope == "psum"
            and isinstance(block.value, Call)
            and block.value.function == "multiply"
            and all(isinstance(a, Load) for a in block.value.arguments)
        )

    def partition(self, access: NestAccess, sizes: dict[str, int]) -> str:
        """The loop on the partitions of an access ("" if it has one partition only)."""
        names = [name for name in access.row_strides if sizes.get(name, 1) > 1]
        if len(names) > 1 or any(access.row_strides[name] != 1 for name in names):
            raise CodegenError(
                f"buffer '{access.buffer.name}' must have one unit-stride loop on its partitions"
            )
        return names[0] if names else ""

    def initialise(self, nest: Nest, env: Environment, sizes: dict[str, int], value: float) -> None:
        """A tile filled with a number; in PSUM the first matmul does it by not adding."""
        tile = self.tiles[nest.write.buffer.name]
        self.started[tile.allocation] = set()
        if nest.write.buffer.scope == "psum" and value == 0.0:
            return
        partition = self.partition(nest.write, sizes)
        dims = [(n, s) for n, s in sizes.items() if n != partition]
        view = self.tile_view(nest.write, env, partition, dims, sizes.get(partition, 1))
        self.kernel.memset(view, value)

    def dma(self, nest: Nest, env: Environment, sizes: dict[str, int]) -> None:
        """LOAD or STORE, outer free loops run while a transfer would be too large."""
        (source,) = nest.reads.values()
        load = nest.write.buffer.scope == "sbuf"
        chip, hbm = (nest.write, source) if load else (source, nest.write)
        partition = self.partition(chip, sizes)
        rows = sizes.get(partition, 1)
        free = [(n, s) for n, s in sizes.items() if n != partition and s > 1]
        free.sort(key=lambda item: -hbm.strides.get(item[0], 0))
        size = size_of(chip.buffer.dtype) * rows
        for _, count in free:
            size *= count
        cut = 0
        while len(free) - cut > 4 or (size > DMA_BYTES and len(free) - cut > 1):
            size //= free[cut][1]
            cut += 1
        for values in product(*(range(count) for _, count in free[:cut])):
            run = {name: env.get(name, 0) + v for (name, _), v in zip(free, values, strict=False)}
            inner = {**env, **run}
            tile = self.tile_view(chip, inner, partition, free[cut:], rows)
            view = self.hbm_view(hbm, inner, [(partition, rows), *free[cut:]])
            if load:
                self.kernel.load(tile, view)
            else:
                self.kernel.store(view, tile)

    def padded(self, nest: Nest, env: Environment, sizes: dict[str, int], value: Select) -> None:
        """A transfer into a frame of a constant: the frame is filled, the inside loaded.

        A place that rotates keeps its frame: it is filled once for each box.
        """
        if not isinstance(value.then, Load) or not isinstance(value.otherwise, Const):
            raise CodegenError(f"stage '{nest.block.stage}' pads with more than a number")
        low = dict.fromkeys(sizes, 0)
        high = dict(sizes)
        for expression in value.condition:
            narrow(expression, env, low, high)
        tile = self.tiles[nest.write.buffer.name]
        box = tuple((name, low[name], high[name], sizes[name]) for name in sizes)
        partition = self.partition(nest.write, sizes)
        view = self.tile_view(nest.write, env, partition, [], sizes.get(partition, 1))
        place = (tile.offset, view.partition)
        if self.framed.get(place) != box:
            self.framed[place] = box
            for name, size in sizes.items():
                for start, stop in ((0, low[name]), (max(high[name], low[name]), size)):
                    if stop > start:
                        side = {**sizes, name: stop - start}
                        self.initialise(nest, {**env, name: start}, side, value.otherwise.value)
        if all(high[name] > low[name] for name in sizes):
            moved = {name: first for name, first in low.items() if first}
            inside = {name: high[name] - low[name] for name in sizes}
            self.dma(nest, {**env, **moved}, inside)

    def matmul(self, nest: Nest, env: Environment, sizes: dict[str, int]) -> None:
        """MATMULs: reduction on partitions, one operand's loop on the result's partitions."""
        first, second = nest.reads.values()
        depth = self.partition(first, sizes)
        column = self.partition(nest.write, sizes)
        if depth != self.partition(second, sizes):
            raise CodegenError(f"stage '{nest.block.stage}': operands reduce over different loops")
        stationary, moving = (first, second) if column in first.strides else (second, first)
        if not column:
            stationary, moving = first, second
            if any(n in first.strides and n in nest.write.strides for n in sizes):
                stationary, moving = second, first
        free = [(n, s) for n, s in sizes.items() if n in nest.write.strides and n != column]
        free = [(n, s) for n, s in free if s > 1]
        reduce = [n for n in sizes if n not in nest.write.strides and n not in (depth, column)]
        for values in product(*(range(sizes[n]) for n in reduce)):
            inner = {**env, **dict(zip(reduce, values, strict=True))}
            k, m = sizes.get(depth, 1), sizes.get(column, 1)
            out = self.tile_view(nest.write, inner, column, free, m)
            key = (out.partition, out.offset, out.dims)
            begun = self.started[out.allocation]
            self.kernel.matmul(
                out,
                self.tile_view(stationary, inner, depth, [(column, m)], k),
                self.tile_view(moving, inner, depth, free, k),
                accumulate=key in begun,
            )
            begun.add(key)

    def transpose(self, nest: Nest, env: Environment, sizes: dict[str, int]) -> None:
        """TRANSPOSEs of one tile each."""
        (source,) = nest.reads.values()
        out_rows, in_rows = self.partition(nest.write, sizes), self.partition(source, sizes)
        rest = [n for n in sizes if n not in (out_rows, in_rows)]
        for values in product(*(range(sizes[n]) for n in rest)):
            inner = {**env, **dict(zip(rest, values, strict=True))}
            f, p = sizes.get(out_rows, 1), sizes.get(in_rows, 1)
            self.kernel.transpose(
                self.tile_view(nest.write, inner, out_rows, [(in_rows, p)], f),
                self.tile_view(source, inner, in_rows, [(out_rows, f)], p),
            )


def generate(program: Program, core: Core) -> InstructionStream:
    """The instruction stream of a bound program.

    Tensors keep the names of the program's parameters; inputs and the output are in HBM in the
    layouts the program gives them.

    Raises:
        CodegenError: a block that no instruction does, or tiles that do not fit.
        VerificationError: a limit of the core is broken.
    """
    kernel = Kernel(program.name, core)
    generator = Generator(kernel)
    for buffer in program.parameters:
        shape = [integer(e, f"the shape of '{buffer.name}'") for e in buffer.shape]
        make = kernel.output if buffer.role == "output" else kernel.input
        generator.views[buffer.name] = make(buffer.name, shape, buffer.dtype)
        generator.buffers[buffer.name] = buffer
    generator.run(program.body, {})
    return kernel.finish()
