"""From the loop IR to an instruction stream.

The generator walks a bound program. Loops around several statements are run, loops around a single
block become instructions: their variables are dealt out to the partition axis and the free axes of
the operands, as far as the hardware's limits allow, and what remains is run.

Which instruction a block is, its family's specifications say (`matching`); `EMITTERS` has, for each
of them, what writes it.

A buffer allocated inside a loop rotates over as many places as it has versions. Program order is
kept for each engine; semaphores, verification and the grant order are `builder.Kernel.finish`'s.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from tilesmith.families.kit.programs.coverage import written
from tilesmith.families.kit.programs.skeleton import verify_settings
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.footprints import SMALLEST_GRANULE
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.kernel.builder import Buffers, Kernel
from tilesmith.families.trainium.codegen.selection.copies import Copies, CopyNest
from tilesmith.families.trainium.codegen.selection.gathers import GatherNest, Gathers
from tilesmith.families.trainium.codegen.selection.loop_nests.nests import (
    Environment,
    Evaluate,
    PlannedNest,
    compile_expression,
    integer,
    match_nest,
    split_pipeline,
)
from tilesmith.families.trainium.codegen.selection.loop_nests.operands import SPACES, Operands
from tilesmith.families.trainium.codegen.selection.matching import AnyNest, Selected, select
from tilesmith.families.trainium.codegen.selection.pointwise import PointwiseEmitter
from tilesmith.families.trainium.codegen.selection.positions import PositionEmitter
from tilesmith.families.trainium.codegen.selection.products import Products
from tilesmith.families.trainium.codegen.selection.repetition import FEWEST, Iterations, alike
from tilesmith.families.trainium.codegen.selection.transfers import TransferEmitter
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import const
from tilesmith.search_space.expressions.scalar import Const, Select
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.program import (
    Allocate,
    Buffer,
    If,
    Loop,
    Program,
    Sequence,
    Statement,
    blocks,
    walk,
)
from tilesmith.search_space.ir.settings import Settings, open_engine, open_number
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.support.errors import CodegenError

Parts = tuple[list[Allocate], list[Statement], list[Statement]]


@dataclass
class Plans:
    """A bound program, verified, and what is found of its statements once, whatever its settings.

    Attributes:
        aligned: buffers whose rows begin at granules of dependences.
        reductions: stages that reduce.
    """

    program: Program
    target: Target
    nests: dict[int, Selected | None] = field(default_factory=dict)
    extents: dict[int, Evaluate] = field(default_factory=dict)
    parts: dict[int, Parts] = field(default_factory=dict)
    even: dict[tuple[int, int], int] = field(default_factory=dict)
    aligned: frozenset[str] = frozenset()
    reductions: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        verify(self.program, self.target)
        self.aligned = frozenset(_filled_in_parts(self.program.body))
        self.reductions = frozenset(b.stage for b in blocks(self.program.body) if b.reducer)

    def nest(self, statement: Statement, buffers: Mapping[str, Buffer]) -> Selected | None:
        """The instruction a statement is, or None; `buffers` are those in sight."""
        key = id(statement)
        if key not in self.nests:
            self.nests[key] = select(statement, buffers)
        return self.nests[key]

    def split(self, body: Statement) -> Parts:
        """`split_pipeline` of a body."""
        if id(body) not in self.parts:
            self.parts[id(body)] = split_pipeline(body)
        return self.parts[id(body)]

    def alike(self, loop: Loop, extent: int, buffers: Mapping[str, Buffer]) -> int:
        """See `repetition.alike`."""
        if extent < FEWEST:
            return 0
        key = (id(loop), extent)
        if key not in self.even:
            self.even[key] = alike(loop, extent, buffers)
        return self.even[key]

    def extent(self, loop: Loop) -> Evaluate:
        if id(loop) not in self.extents:
            self.extents[id(loop)] = compile_expression(loop.extent)
        return self.extents[id(loop)]


@dataclass
class Generator:
    """The state of one walk. `generate` is the entry."""

    kernel: Kernel
    plans: Plans
    settings: Settings = ()
    buffers: dict[str, Buffer] = field(default_factory=dict)
    pools: dict[int, Buffers] = field(default_factory=dict)
    nests: dict[int, Selected | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operands = Operands(self.kernel)
        self.transfers = TransferEmitter(self.operands)
        self.products = Products(self.operands)
        self.positions = PositionEmitter(self.operands)
        self.copies = Copies(self.kernel, self.operands.tiles, self.operands.views)
        self.gathers = Gathers(self.kernel, self.operands.tiles, self.operands.views)
        self.pointwise = PointwiseEmitter(self.kernel, self.operands.tile_view, self.operands.views)

    def walk(self, program: Program) -> None:
        """Give parameters a place in HBM, and emit all statements."""
        for buffer in program.parameters:
            shape = [integer(e, f"the shape of '{buffer.name}'") for e in buffer.shape]
            make = self.kernel.output if buffer.role == "output" else self.kernel.input
            self.operands.views[buffer.name] = make(buffer.name, shape, buffer.dtype)
            self.buffers[buffer.name] = buffer
        self.run(program.body, {})

    def run(self, statement: Statement, env: Environment) -> None:
        """Emit a statement."""
        nest = self.nest(statement)
        if nest is not None:
            self.emit(nest, env)
            return
        match statement:
            case Loop():
                self.loop(statement, env)
            case Sequence(statements):
                for inner in statements:
                    self.run(inner, env)
            case Allocate(buffer, body):
                self.allocate(statement, buffer)
                self.run(body, env)
            case If(condition, then, otherwise):
                if all(compile_expression(e)(env) >= 0 for e in condition):
                    self.run(then, env)
                elif otherwise is not None:
                    self.run(otherwise, env)
            case _:
                raise AssertionError(type(statement))

    def loop(self, loop: Loop, env: Environment) -> None:
        """Run a loop. A pipelined one makes the tiles of iteration i + 1 beside the use of i's.

        Both parts' instructions are merged evenly, so that an engine that works for both (the
        tensor engine transposes and multiplies) never waits long for the latencies of one.
        """
        begin, stages = self.kernel.length, self.number(loop.stages)
        extent, split = self.plans.extent(loop)(env), self.plans.split
        allocations, producers, consumers = split(loop.body) if stages > 1 else ([], [], [])
        regular = self.plans.alike(loop, extent, self.buffers) - int(bool(producers))
        iterations = self.iterations() if regular >= FEWEST else None
        value = -1
        while (value := value + 1) < extent:
            if iterations is not None and value < regular:
                value += iterations.repeated(regular - value)
                if value == extent:
                    break
            env[loop.variable] = value
            if not producers:
                self.run(loop.body, env)
                continue
            if value == 0:
                self.part(allocations, producers, env)
            start = self.kernel.length
            self.part([], consumers, env)
            middle = self.kernel.length
            if value + 1 < extent:
                env[loop.variable] = value + 1
                self.part(allocations, producers, env)
                self.kernel.merge(start, middle)
        env.pop(loop.variable, None)
        if loop.kind == "interleaved":
            self.kernel.interleave(begin)

    def iterations(self) -> Iterations:
        return Iterations(self.operands, self.pointwise, self.transfers.framed, self.pools)

    def part(self, allocations: list[Allocate], body: list[Statement], env: Environment) -> None:
        """One of the two parts of a pipelined loop's body; their instructions are merged."""
        with self.pointwise.beside("made" if allocations else "used"):
            for allocation in allocations:
                self.allocate(allocation, allocation.buffer)
            for statement in body:
                self.run(statement, env)

    def nest(self, statement: Statement) -> Selected | None:
        """The instruction a statement is, on the engine it is assigned to, or None."""
        key = id(statement)
        if key not in self.nests:
            selected = self.plans.nest(statement, self.buffers)
            if selected is not None and isinstance(selected.nest, PlannedNest | CopyNest):
                place = open_engine(selected.nest.block.engine)
                if place is not None:
                    block = replace(selected.nest.block, engine=str(self.settings[place]))
                    selected = replace(selected, nest=replace(selected.nest, block=block))
            self.nests[key] = selected
        return self.nests[key]

    def number(self, number: int) -> int:
        """A number of places, or how deep a loop is pipelined."""
        place = open_number(number)
        return number if place is None else int(self.settings[place])

    def allocate(self, statement: Statement, buffer: Buffer) -> None:
        """A tile in the next place of its pool."""
        if buffer.scope not in SPACES:
            raise CodegenError(
                f"buffer '{buffer.name}' is in '{buffer.scope}'; an accelerator has sbuf and psum"
            )
        if buffer.name in self.plans.aligned:
            buffer = _row_aligned(buffer)
        self.buffers[buffer.name] = buffer
        if id(statement) not in self.pools:
            shape = [integer(e, f"the shape of '{buffer.name}'") for e in buffer.shape]
            shape = shape if len(shape) > 1 else [*shape, 1]
            self.pools[id(statement)] = self.kernel.buffers(
                self.number(buffer.versions), shape, buffer.dtype, buffer.name, SPACES[buffer.scope]
            )
        tile = self.pools[id(statement)].next()
        self.operands.tiles[buffer.name] = tile
        self.operands.started[tile.allocation] = set()

    def emit(self, selected: Selected, env: Environment) -> None:
        """Emit a nest at one point of the loops outside it."""
        match selected.nest:
            case CopyNest() as nest:
                for inner, sizes in self.boxes(nest, env):
                    self.copies.emit(nest, inner, sizes)
            case GatherNest() as nest:
                for inner, sizes in self.boxes(nest, env):
                    self.gathers.emit(nest, inner, sizes)
            case nest:
                EMITTERS[selected.spec.name](self, nest, env)

    def fill(self, nest: PlannedNest, env: Environment) -> None:
        """A tile of one number. What a sum in SBUF begins from is promised; in PSUM, the first
        matmul adds nothing."""
        assert isinstance(nest.block.value, Const)
        number, psum = nest.block.value.value, nest.write.buffer.scope == "psum"
        reduced = nest.block.stage in self.plans.reductions
        for inner, sizes in self.pieces(nest, env):
            view = self.transfers.begun(nest, inner, sizes)
            if reduced and not psum:
                self.pointwise.promise(view, number)
            elif not reduced or number != 0.0:
                self.kernel.memset(view, number)

    def choose(self, nest: PlannedNest, env: Environment) -> None:
        """One number or another, by position."""
        for inner, sizes in self.boxes(nest, env):
            self.positions.emit(nest, inner, sizes)

    def move(self, nest: PlannedNest, env: Environment) -> None:
        """Between HBM and SBUF; frames wait for nothing, so they come before all else."""
        pieces = list(self.pieces(nest, env))
        for inner, sizes in pieces:
            self.transfers.frame(nest, inner, sizes)
        for inner, sizes in pieces:
            self.transfers.move(nest, inner, sizes)

    def matmul(self, nest: PlannedNest, env: Environment) -> None:
        for inner, sizes in self.pieces(nest, env):
            self.products.matmul(nest, inner, sizes)

    def transpose(self, nest: PlannedNest, env: Environment) -> None:
        for inner, sizes in self.pieces(nest, env):
            self.products.transpose(nest, inner, sizes)

    def compute(self, nest: PlannedNest, env: Environment) -> None:
        """An expression, or a reduction of one."""
        for inner, sizes in self.pieces(nest, env):
            partition = self.operands.partition(nest.write, sizes)
            self.pointwise.emit(nest, inner, sizes, partition)

    def boxes(
        self, nest: AnyNest, env: Environment
    ) -> Iterator[tuple[Environment, dict[str, int]]]:
        """(outer values, extents of the rest) with loops outside that extents depend on."""
        outside = [loop.variable for loop in nest.loops if loop.variable in nest.fixed]
        for values in self.points(nest, outside, env):
            inner = {**env, **values}
            sizes = {
                loop.variable: extent(inner)
                for loop, extent in zip(nest.loops, nest.extents, strict=True)
                if loop.variable not in nest.fixed
            }
            if all(size > 0 for size in sizes.values()):
                yield inner, sizes

    def pieces(
        self, nest: PlannedNest, env: Environment
    ) -> Iterator[tuple[Environment, dict[str, int]]]:
        """The boxes in the parts that single instructions can run over."""
        for inner, sizes in self.boxes(nest, env):
            apart = self.apart(nest, sizes)
            rest = {name: size for name, size in sizes.items() if name not in apart}
            for values in product(*(range(sizes[name]) for name in apart)):
                yield {**inner, **dict(zip(apart, values, strict=True))}, rest

    def points(self, nest: AnyNest, names: list[str], env: Environment) -> Iterator[dict[str, int]]:
        """Values of the loops `names`, whose extents may depend on each other."""
        if not names:
            yield {}
            return
        extents = {o.variable: e for o, e in zip(nest.loops, nest.extents, strict=True)}
        for value in range(extents[names[0]]({**env})):
            for rest in self.points(nest, names[1:], {**env, names[0]: value}):
                yield {names[0]: value, **rest}

    def apart(self, nest: PlannedNest, sizes: dict[str, int]) -> list[str]:
        """Loops that no single instruction runs over: those the schedule unrolls, those that skip
        partitions, and, where a border depends on several loops, all but the innermost of them."""
        outside = {loop.variable for loop in nest.loops if loop.kind == "unroll"}
        for access in (nest.write, *nest.reads.values()):
            outside |= {name for name, step in access.row_strides.items() if step != 1}
        if isinstance(nest.block.value, Select):
            for expression in nest.block.value.condition:
                names = set(expression.variables())
                outside |= set([n for n in sizes if n in names and sizes[n] > 1][:-1])
        return [name for name in sizes if name in outside and sizes[name] > 1]


EMITTERS: Mapping[str, Callable[[Generator, PlannedNest, Environment], None]] = {
    "memset": Generator.fill,
    "select": Generator.choose,
    "tensor.matmul": Generator.matmul,
    "tensor.transpose": Generator.transpose,
    "dma.load": Generator.move,
    "dma.store": Generator.move,
    "framed": Generator.move,
    "pointwise": Generator.compute,
    "reduce": Generator.compute,
}
"""What writes the instructions of a nest, by specification; `copies` and `gathers` write theirs."""


def _filled_in_parts(body: Statement) -> Iterator[str]:
    """Buffers that an unrolled nest frames: several transfers fill them."""
    for statement in walk(body):
        matched = match_nest(statement) if isinstance(statement, Loop) else None
        unrolled = matched and any(loop.kind == "unroll" for loop in matched[0])
        if matched and unrolled and isinstance(matched[1].value, Select):
            yield matched[1].buffer


def _row_aligned(buffer: Buffer) -> Buffer:
    """The buffer with rows that begin at granules of dependences, so that work on the first rows
    need not wait for transfers of the next."""
    *lead, last = buffer.shape
    step = max(1, SMALLEST_GRANULE // size_of(buffer.dtype))
    row = -(-integer(last, f"the shape of '{buffer.name}'") // step) * step
    return replace(buffer, shape=(*lead, const(row)))


def generate(program: Program | Plans, core: Core, settings: Settings = ()) -> InstructionStream:
    """The instruction stream of a bound program.

    Tensors keep the names of the program's parameters; inputs and the output are in HBM in the
    layouts the program gives them.

    Args:
        program: may be a skeleton's (`families.kit.programs.skeleton`); with plans, what was
            found before of its statements is not looked for again.
        settings: those that it leaves open.

    Raises:
        CodegenError: a block that no instruction does, or tiles that do not fit.
        VerificationError: the program breaks a rule of the IR, or a limit of the core.
    """
    plans = program if isinstance(program, Plans) else Plans(program, core.target)
    program = plans.program
    verify_settings(program, core.target, settings)
    kernel = Kernel(program.name, core)
    Generator(kernel, plans, settings).walk(program)
    return kernel.finish(lambda name: written(program, name))
