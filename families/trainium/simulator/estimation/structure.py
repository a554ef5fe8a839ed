"""`Structure`: what the analytical model knows of a skeleton's program, whatever tile sizes and
settings are (`families.kit.programs.skeleton`).

Everything is found once and remembered: which loops are single nests, what a loop's body makes and
what uses that, which variables extents depend on, which buffers a statement touches.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.selection.loop_nests.nests import (
    Evaluate,
    compile_expression,
    match_nest,
    split_pipeline,
)
from tilesmith.families.trainium.codegen.selection.matching import specification
from tilesmith.families.trainium.simulator.estimation.estimate import StatementCosts
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import loads
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    Buffer,
    Loop,
    Program,
    Statement,
    children,
    walk,
)
from tilesmith.search_space.ir.settings import open_engine, open_number

Values = dict[str, Any]


@dataclass(eq=False)
class Structure:
    """A symbolic program, settings left open.

    Attributes:
        constants: parameters laid out as they are loaded
        (`families.trainium.codegen.selection.staging`). settings: of the batch that is evaluated:
        each one value for all, or an array of shape (n,).
    """

    program: Program
    core: Core
    constants: frozenset[str] = frozenset()
    settings: Sequence[Any] = ()
    mentioned: dict[int, frozenset[str]] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    rebuilt: dict[tuple[int | str, ...], Loop | None] = field(default_factory=dict)
    costs: dict[tuple[int, ...], StatementCosts] = field(default_factory=dict)
    blocks: dict[tuple[int, str], Block] = field(default_factory=dict)
    compiled: dict[int, Evaluate] = field(default_factory=dict)
    instructions: dict[int, str] = field(default_factory=dict)
    nests: dict[int, tuple[tuple[Loop, ...], Block] | None] = field(default_factory=dict)
    touched: dict[int, tuple[bool, frozenset[str], frozenset[str]]] = field(default_factory=dict)
    parts: dict[int, tuple[list[Allocate], list[Statement], list[Statement]]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.buffers = {b.name: b for b in self.program.parameters}
        for statement in walk(self.program.body):
            if isinstance(statement, Allocate):
                self.buffers[statement.buffer.name] = statement.buffer
        self.places = list(_places(self.program.body, 1))
        self.begun = frozenset(_begun(self.program.body))
        self.around = dict(_around(self.program.body, ()))

    def on(self, core: Core) -> Self:
        """The same program on a core that differs in how fast it is alone; what was found out of
        the program is shared, costs are not."""
        other = copy(self)  # not made anew: the program is walked once
        other.core, other.costs, other.settings = core, {}, ()
        return other

    def variables(self, body: Statement) -> frozenset[str]:
        """Variables that extents inside a statement depend on."""
        if id(body) not in self.mentioned:
            names: set[str] = set()
            for inner in walk(body):
                if isinstance(inner, Loop):
                    names |= inner.extent.variables()
            self.mentioned[id(body)] = frozenset(names)
        return self.mentioned[id(body)]

    def value(self, expression: Expr, values: Values) -> Any:
        """An expression for a batch: a number, or an array of shape (n,)."""
        key = id(expression)
        if key not in self.compiled:
            self.compiled[key] = compile_expression(expression, True)
        return self.compiled[key](values)

    def number(self, number: int) -> Any:
        """A number of the skeleton for a batch: of places, or how deep a loop is pipelined."""
        place = open_number(number)
        return number if place is None else self.settings[place]

    def engines(self, block: Block) -> Any:
        """Engines of a block for a batch: a text for all, or an array of texts of shape (n,)."""
        place = open_engine(block.engine)
        return block.engine if place is None else self.settings[place]

    def assigned(self, block: Block, engine: str) -> Block:
        """A block with an engine, the same object each time."""
        if block.engine == engine:
            return block
        if (id(block), engine) not in self.blocks:
            there = self.blocks[id(block), engine] = replace(block, engine=engine)
            self.around[id(there)] = self.around[id(block)]
        return self.blocks[id(block), engine]

    def instruction(self, block: Block) -> str:
        """The specification that a block fits; that of expressions where there is none."""
        if id(block) not in self.instructions:
            spec = specification(block, self.buffers)
            self.instructions[id(block)] = spec.name if spec is not None else "pointwise"
        return self.instructions[id(block)]

    def split(self, body: Statement) -> tuple[list[Allocate], list[Statement], list[Statement]]:
        """`split_pipeline` of a body, remembered."""
        if id(body) not in self.parts:
            self.parts[id(body)] = split_pipeline(body)
        return self.parts[id(body)]

    def sweeps(self, statement: Statement, values: Values) -> Any:
        """How often the users of a tile go over it: the iterations of their outermost loop.

        None where they are a single nest.
        """
        while isinstance(statement, Allocate):
            statement = statement.body
        if isinstance(statement, Loop) and match_nest(statement) is None:
            return np.maximum(self.value(statement.extent, values), 1)
        return None

    def chains(self, statement: Statement, values: Values) -> tuple[Any, Any]:
        """Iterations of a loop whose tiles have copies, and how many."""
        while isinstance(statement, Allocate):
            statement = statement.body
        if not isinstance(statement, Loop) or match_nest(statement) is not None:
            return 1.0, 1
        return np.maximum(self.value(statement.extent, values), 1), self.number(statement.stages)

    def turns(self, block: Block, loops: tuple[Loop, ...], values: Values) -> dict[str, Any]:
        """The loops around a nest, of which `loops` are the innermost: how often each is run."""
        around = self.around[id(block)][: -len(loops) or None]
        known = {**{loop.variable: 0 for loop in around}, **values}
        return {loop.variable: np.maximum(self.value(loop.extent, known), 1) for loop in around}

    def accesses(self, statement: Statement) -> tuple[bool, frozenset[str], frozenset[str]]:
        """Whether a statement makes tiles, the buffers it reads and those it writes."""
        if id(statement) not in self.touched:
            self.touched[id(statement)] = _accesses(statement)
        return self.touched[id(statement)]


def _accesses(statement: Statement) -> tuple[bool, frozenset[str], frozenset[str]]:
    makes, read, written = False, set(), set()
    for inner in walk(statement):
        makes |= isinstance(inner, Allocate)
        if isinstance(inner, Block):
            written.add(inner.buffer)
            read |= {load.buffer for load in loads(inner.value)}
    return makes, frozenset(read), frozenset(written)


def _places(statement: Statement, depth: int) -> Iterator[tuple[Buffer, int]]:
    """Every tile and the places it has, `depth` being those of the loop around."""
    if isinstance(statement, Allocate):
        yield statement.buffer, depth
    inner = statement.stages if isinstance(statement, Loop) else depth
    for child in children(statement):
        yield from _places(child, inner)


def _begun(statement: Statement) -> Iterator[str]:
    """Stages that single instructions reduce: what these begin from need not be written."""
    for inner in walk(statement):
        nest = match_nest(inner) if isinstance(inner, Loop) else None
        if nest and nest[1].reducer is not None:
            written = {name for index in nest[1].write.indices for name in index.variables()}
            if any(loop.variable not in written for loop in nest[0]):
                yield nest[1].stage


def _around(
    statement: Statement, loops: tuple[Loop, ...]
) -> Iterator[tuple[int, tuple[Loop, ...]]]:
    """Every block, by identity, and the loops around it."""
    if isinstance(statement, Block):
        yield id(statement), loops
    inner = (*loops, statement) if isinstance(statement, Loop) else loops
    for child in children(statement):
        yield from _around(child, inner)
