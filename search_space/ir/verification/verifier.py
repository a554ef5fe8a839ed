"""The verifier: does a program keep the rules of the loop IR and the limits of its target?

It runs on what lowering made, before any code is generated, and on what a pass or a person changed.
Every message names the block, buffer or loop and the rule or limit it breaks. See `program.py` for
the rules. Index ranges need numbers: they are checked where no symbol is left.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Call, Condition, Index, Load, Scalar, Select
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir import program as ir
from tilesmith.search_space.ir.settings import Settings
from tilesmith.search_space.ir.verification.bounds import Surroundings
from tilesmith.search_space.ir.verification.machine_rules import MachineRules
from tilesmith.search_space.support.errors import VerificationError


def verify(program: ir.Program, target: Target | None = None, settings: Settings = ()) -> None:
    """Check a program, symbolic or bound; with a target, its scopes, instructions and capacities.

    Args:
        settings: those that the program leaves open; without them, what they decide is not checked.

    Raises:
        VerificationError: naming the block, buffer or loop, and the rule or limit that is broken.
    """
    rules = MachineRules(target, settings)
    parts = [part for part in (program.prologue, program.body) if part is not None]
    inside = [statement for part in parts for statement in ir.walk(part)]
    loops = frozenset(s.variable for s in inside if isinstance(s, ir.Loop))
    engines = rules.family is not None and bool(rules.family.engines)
    tensorized = engines and any(isinstance(s, ir.Intrinsic) for s in inside)
    checker = _Checker(rules, loops, tensorized)
    for buffer in (*program.parameters, *program.literals):
        checker.declare(buffer)
    for part in parts:
        checker.check(part, Surroundings())


@dataclass
class _Checker:
    """The state of one walk.

    Attributes:
        loops: names of all loop variables; other free names are symbols.
        tensorized: whether the program consists of an accelerator's instructions.
        kinds: kind of every loop around, by variable.
        instruction: name of the intrinsic around.
        proved: index ranges decided before.
    """

    rules: MachineRules
    loops: frozenset[str]
    tensorized: bool = False
    buffers: dict[str, ir.Buffer] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    instruction: str = ""
    proved: dict[object, bool] = field(default_factory=dict)

    # -- statements ---------------------------------------------------------------------------
    def check(self, statement: ir.Statement, around: Surroundings) -> None:
        match statement:
            case ir.Loop():
                self._loop(statement, around)
            case ir.Sequence(statements):
                for inner in statements:
                    self.check(inner, around)
            case ir.If(condition, then, otherwise):
                self._variables(condition, around, "the condition of an if")
                self.check(then, around.knowing(condition))
                if otherwise is not None:
                    self.check(otherwise, around.otherwise(condition))
            case ir.Allocate(buffer, body):
                self._allocate(buffer, body, around)
            case ir.Intrinsic():
                self._intrinsic(statement, around)
            case ir.Block():
                self._block(statement, around)

    def _loop(self, loop: ir.Loop, around: Surroundings) -> None:
        if loop.variable in around.extents:
            raise VerificationError(f"loop '{loop.variable}' stands inside a loop of that name")
        self._variables((loop.extent,), around, f"the extent of loop '{loop.variable}'")
        self.rules.loop(loop)
        if loop.kind == "vector" and any(isinstance(s, ir.Loop) for s in ir.walk(loop.body)):
            raise VerificationError(f"vector loop '{loop.variable}' holds another loop")
        self.kinds[loop.variable] = loop.kind
        if loop.extent.constant == 0:
            return  # as at sizes that fill no vector: nothing of its body is ever done
        self.check(loop.body, around.inside(loop.variable, loop.extent))

    def _allocate(self, buffer: ir.Buffer, body: ir.Statement, around: Surroundings) -> None:
        self._variables(buffer.shape, around, f"the shape of buffer '{buffer.name}'")
        self.declare(buffer)
        self.rules.place(buffer)
        self.check(body, around)
        self.rules.leave(buffer)
        del self.buffers[buffer.name]

    def declare(self, buffer: ir.Buffer) -> None:
        """A buffer comes into being: its name must be free, its memory one of the target's."""
        if buffer.name in self.buffers:
            raise VerificationError(f"buffer '{buffer.name}' is allocated inside its own lifetime")
        self.rules.buffer(buffer)
        self.buffers[buffer.name] = buffer

    # -- instructions -------------------------------------------------------------------------
    def _intrinsic(self, statement: ir.Intrinsic, around: Surroundings) -> None:
        spec = self.rules.instruction(statement)
        if self.instruction:
            raise VerificationError(
                f"intrinsic '{statement.name}' stands inside intrinsic '{self.instruction}'"
            )
        self.instruction = statement.name
        self.check(statement.body, around)
        self.instruction = ""
        if spec.scopes:
            self.rules.tensorized(spec, statement, self.buffers, around)

    # -- blocks -------------------------------------------------------------------------------
    def _block(self, block: ir.Block, around: Surroundings) -> None:
        where = f"block '{block.stage}'"
        self.rules.engine(block)
        if self.tensorized and not self.instruction:
            specs = self.rules.family.intrinsics if self.rules.family else ()
            raise VerificationError(
                f"{where} is no part of an instruction; tensorize its loops with one of "
                f"{', '.join(spec.name for spec in specs)}"
            )
        self._variables(block.guard, around, where)
        known = around.knowing(block.guard)
        self._access(block.write, known, where)
        if self.buffers[block.buffer].role in ("input", "literal"):
            raise VerificationError(f"{where} writes '{block.buffer}', which is an input")
        self._scalar(block.value, known, where)

    def _scalar(self, value: Scalar, around: Surroundings, where: str) -> None:
        match value:
            case Load():
                self._access(value, around, where)
            case Call(arguments=arguments):
                for argument in arguments:
                    self._scalar(argument, around, where)
            case Select(condition, then, otherwise):
                self._variables(condition, around, where)
                self._scalar(then, around.knowing(condition), where)
                self._scalar(otherwise, around.otherwise(condition), where)
            case Index(expression):
                self._variables((expression,), around, where)
                self._elements((expression,), around, where)
            case _:
                pass

    def _access(self, access: Load, around: Surroundings, where: str) -> None:
        buffer = self.buffers.get(access.buffer)
        if buffer is None:
            raise VerificationError(
                f"{where} uses buffer '{access.buffer}', which is neither a parameter nor "
                f"allocated around it"
            )
        if len(access.indices) != len(buffer.shape):
            raise VerificationError(
                f"{where} uses {len(access.indices)} indices in {access}; buffer '{buffer.name}' "
                f"has {len(buffer.shape)} dimensions"
            )
        self._variables(access.indices, around, where)
        if buffer.scope == "register":
            self._register(access, around, where)
        self._elements(access.indices, around, where)
        for position, (index, extent) in enumerate(zip(access.indices, buffer.shape, strict=True)):
            if around.evidently_inside(index, extent):
                continue
            if self._free(index, around) or self._free(extent, around):
                continue
            if not self._inside(index, extent, around):
                raise VerificationError(
                    f"{where}: index {position} of {access} can leave 0..{extent - 1}, the range "
                    f"of buffer '{buffer.name}'"
                )

    def _elements(self, expressions: Iterable[Expr], around: Surroundings, where: str) -> None:
        """Index expressions read tensors inside their bounds."""
        for tensor, index in _elements(expressions):
            self._access(Load(tensor, (index,)), around, where)

    def _inside(self, index: Expr, extent: Expr, around: Surroundings) -> bool:
        """Whether `0 <= index < extent` in every iteration (remembered: accesses repeat)."""
        key = (index, extent, around.facts, tuple(around.extents.items()))
        known = self.proved.get(key)
        if known is None:
            known = around.holds(index) and around.holds(extent - 1 - index)
            self.proved[key] = known
        return known

    def _register(self, access: Load, around: Surroundings, where: str) -> None:
        """Registers have no addresses: their indices must be known while code is emitted."""
        for name in (name for index in access.indices for name in index.variables()):
            extent = around.extents.get(name)
            single = extent is not None and extent.constant == 1
            if self.kinds.get(name) in ("serial", "parallel") and not single:
                raise VerificationError(
                    f"{where} indexes register buffer '{access.buffer}' by the {self.kinds[name]} "
                    f"loop '{name}'; unroll or vectorize it"
                )

    # -- variables ----------------------------------------------------------------------------
    def _variables(self, condition: Condition, around: Surroundings, where: str) -> None:
        """Every variable is that of a loop around, or a symbol."""
        for expression in condition:
            for name in expression.variables():
                if name in self.loops and name not in around.extents:
                    raise VerificationError(
                        f"{where} uses variable '{name}' in '{expression}', outside its loop"
                    )

    def _free(self, expression: Expr, around: Surroundings) -> bool:
        """Whether it depends on a symbol, directly or through an extent."""
        return around.closure([expression]) is None


def _elements(indices: Iterable[Expr]) -> Iterator[tuple[str, Expr]]:
    """The tensors that index expressions read, and where."""
    for index in indices:
        for atom in index.atoms():
            for side in (atom.left, atom.right):
                yield from _elements((side,) if side is not None else ())
            if atom.kind == "element" and atom.left is not None:
                yield atom.name, atom.left
