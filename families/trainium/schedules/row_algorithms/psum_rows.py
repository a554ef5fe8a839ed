"""Rows whose values between two instructions stand in PSUM, on Trainium-like cores.

An instruction of two tensors takes two cycles an element, and one where one of them comes from PSUM
(instruction reference): SBUF gives the vector engine one element a cycle, PSUM another. What one
instruction hands to the next becomes a stage of its own there, piece by piece of a row:

    y[k] = f(x[k]) * g[k] + b[k]
      -->  for pieces of k:  p[k] = f(x[k]);  q[k] = p[k] * g[k];  y[k] = q[k] + b[k]

where p and q are there.

Taken out is the one operand of an instruction of two tensors that is computed; its other operand
stays where it is. What only multiplies by a column may be done by either engine. The pieces' places
are as many as PSUM holds, at most four each.
"""

from dataclasses import replace

from tilesmith.families.trainium.schedules.building_blocks.activations import UNARY, simplify
from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.families.trainium.schedules.row_algorithms.rows import RowsSpace
from tilesmith.search_space.expressions.expression import const
from tilesmith.search_space.expressions.scalar import Call, Load, Scalar, loads
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, count
from tilesmith.search_space.spaces.space import SearchSpace, Subspace

ALGORITHM = "psum"

PIECES = (512, 1024, 2048)
"""Elements of a row that an instruction works on: whole banks."""

USUAL = 1024
"""Elements of a piece of the default."""

MOST_PLACES = 4
"""Places of a tile in PSUM: more chains are seldom under way at once."""

BYTES = 4
"""Of an element: everything in between is float32."""


class PsumRowsSpace(RowsSpace):
    """See the module's docstring; what is computed is as in `RowsSpace`."""

    has_pieces = False

    def __init__(self, compute: ComputeDefinition, dtype: str, target: Target) -> None:
        super().__init__(compute, dtype, target)
        self.between: tuple[Stage, ...] = ()
        if len(self.others) == 1:
            self.compute, self.between = _taken_out(self.compute)
        self.psum = memories(target)["psum"].bytes

    @property
    def offered(self) -> bool:
        """Whether anything of a row may stand in PSUM, which is long enough to spare cycles."""
        return bool(self.between) and self.refusal is None and self.length >= PIECES[0]

    @property
    def is_usual(self) -> bool:
        """Whether the default is of this kind: more instructions of fewer cycles are no gain for
        one block of rows that are not long, where each waits for the one before."""
        rows = self.rows_axis.extent.constant or 1
        long = rows > self.partitions or self.length >= USUAL
        return self.offered and long and not self.space().empty

    def space(self) -> SearchSpace:
        """As `RowsSpace`, with pieces of the row of which at least one place fits PSUM."""
        pieces = [n for n in PIECES if self._bytes(n) <= self.psum and n < 2 * self.length]
        spaces: list[Subspace] = []
        for subspace in super().space().subspaces if pieces else ():
            fixed = tuple(sorted({**dict(subspace.fixed), "algorithm": ALGORITHM}.items()))
            knobs = (*subspace.knobs, count("piece", pieces))
            limit = Constraint(
                const(self._bytes(min(pieces))),
                self.psum,
                "bytes of PSUM a partition that values in between take",
                "choose smaller pieces",
            )
            limits = (*subspace.constraints, limit)
            spaces.append(replace(subspace, fixed=fixed, knobs=knobs, constraints=limits))
        return SearchSpace(tuple(spaces))

    def default(self) -> Config:
        """As `RowsSpace`, in pieces of about `USUAL`."""
        usual = super().default()
        near = [c for c in self.space() if c.integer("columns") == usual.integer("columns")]
        copies = usual.integer("copies")
        return min(
            (c for c in near if c.integer("copies") == copies),
            key=lambda c: abs(c.integer("piece") - USUAL),
        )

    def schedule(self, structure: Config) -> Schedule:
        piece = structure.integer("piece")
        schedule = super().schedule(structure)
        (k,) = (a.name for a in self.others)
        schedule = schedule.split("row", k, piece, "piece", "element")
        schedule = schedule.reorder("row", ("piece", self.rows_axis.name, "element"))
        for stage in self.between:
            schedule = schedule.compute_at(stage.name, "row", "piece", "psum")
            if _Taking(stage.axes).scales(stage.value):
                schedule = schedule.assign_engine(stage.name, "vector|scalar")
        for stage in self.compute.stages:
            if stage.reducer == "sum" and isinstance(stage.value, Load):
                schedule = schedule.assign_engine(stage.name, "scalar")
        places = min(MOST_PLACES, self.psum // self._bytes(piece))
        return schedule.pipeline("row", "piece", places)

    def _bytes(self, piece: int) -> int:
        """Bytes of PSUM a partition of one place of each tile there."""
        return len(self.between) * piece * BYTES


def _taken_out(compute: ComputeDefinition) -> tuple[ComputeDefinition, tuple[Stage, ...]]:
    """A computation with the values between its row's instructions as stages, and these."""
    row = compute.stage("row")
    taking = _Taking(row.axes)
    last = replace(row, value=taking.visit(row.value))
    taken = tuple(taking.stages)
    stages = tuple(
        new for old in compute.stages for new in ((*taken, last) if old is row else (old,))
    )
    return replace(compute, stages=stages), taken


class _Taking:
    """One walk over a row's expression, what is found in it in the order of computing."""

    def __init__(self, axes: tuple[Axis, ...]) -> None:
        self.axes, self.stages = axes, list[Stage]()

    def visit(self, value: Scalar) -> Scalar:
        """A value with what is taken out of it read from there."""
        simple = simplify(value)
        if simple is None or not isinstance(value, Call):
            return value
        if simple[0] in UNARY:
            (argument,) = simple[1]
            return self.known(_replaced(value, argument, self.visit(argument)))
        arguments = [self.visit(argument) for argument in value.arguments]
        both = len(arguments) == 2 and all(self.is_full(a) for a in arguments)
        if both and not any(self.is_there(a) for a in arguments):
            arguments = self.one_taken(arguments)
        return self.known(Call(value.function, tuple(arguments)))

    def known(self, value: Scalar) -> Scalar:
        """What has been taken out before, where a value is that."""
        same = next((stage for stage in self.stages if stage.value == value), None)
        return value if same is None else Load(same.name, tuple(a.var for a in self.axes))

    def one_taken(self, arguments: list[Scalar]) -> list[Scalar]:
        """Operands of an instruction of two tensors with one of them in PSUM, if that pays."""
        for place, argument in enumerate(arguments):
            if self.pays(argument):
                self.stages.append(Stage(f"row.{len(self.stages)}", self.axes, argument))
                return [*arguments[:place], self.known(argument), *arguments[place + 1 :]]
        return arguments

    def pays(self, value: Scalar) -> bool:
        """Whether an instruction of its own for an operand costs less than what it spares.

        One operation with a column is otherwise part of the instruction of two tensors; it takes
        as long as it spares, unless the scalar engine can do it.
        """
        if not isinstance(value, Call):
            return False
        full = [a for a in value.arguments if self.is_full(a)]
        one = len(value.arguments) == 2 and len(full) == 1
        return not one or isinstance(full[0], Call) or self.scales(value)

    def scales(self, value: Scalar) -> bool:
        """Whether a value is a tensor times a column, which either engine computes."""
        return (
            isinstance(value, Call)
            and value.function == "multiply"
            and [type(a) for a in value.arguments if self.is_full(a)] == [Load]
        )

    def is_full(self, value: Scalar) -> bool:
        """Whether a value changes along the row."""
        k = self.axes[-1].name
        return any(k in index.variables() for load in loads(value) for index in load.indices)

    def is_there(self, value: Scalar) -> bool:
        """Whether a value is read from PSUM."""
        return isinstance(value, Load) and value.buffer in {stage.name for stage in self.stages}


def _replaced(value: Scalar, old: Scalar, new: Scalar) -> Scalar:
    """A value with another one wherever `old` occurs in it."""
    if value == old:
        return new
    if not isinstance(value, Call):
        return value
    return Call(value.function, tuple(_replaced(a, old, new) for a in value.arguments))
