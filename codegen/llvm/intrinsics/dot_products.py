"""The intrinsics `dot_product` and `interleave`: neighbours multiplied and added in each lane.

    intrinsic dot_product:
      unroll p in P:
        vector j:
          c[j] += widened(a[.., p]) * widened(b[.., j, p])       c in registers, b's groups together

One load of a group of a (32 bits for four bytes or two bfloat16) put in every lane, one vector of
groups of b, and the target's instruction, as its instruction set lists them. Lanes may have groups
of bytes of their own, a[.., p, j]: loaded at once, and turned. Bytes that have no instruction are
widened to 16 bits first, in pairs. Where a reduction ends fewer products are left: no more of a is
read than there is, its missing neighbours are zeros; b's are cleared where 0 times it may not be 0.

    intrinsic interleave:
      unroll p in P:
        vector j:
          y[.., j, p] = x[.., p, .., j]

A vector of each row (in zeros: `x if inside else 0`), widened to groups, moved to its place in them
and put together.

What is read lane by lane may be codes of few bits, unpacked first (`unpacking`). A body of any
other form is emitted as the loops it is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tilesmith.codegen.llvm.expressions.loads import Lane
from tilesmith.codegen.llvm.expressions.values import ValueEmitter
from tilesmith.codegen.llvm.functions.unpacking import numbers, source, unpacked
from tilesmith.codegen.llvm.intrinsics.dot_calls import call_product, vector_of
from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import (
    INDEX,
    INT32,
    VOID,
    Constant,
    IntType,
    Value,
    integer,
    lanes,
    literal,
    undefined,
    vector,
)
from tilesmith.codegen.llvm.text.types import element_type
from tilesmith.search_space.expressions.dtypes import is_floating, size_of
from tilesmith.search_space.expressions.scalar import CONVERSIONS, Call, Const, Load, Scalar, Select
from tilesmith.search_space.hardware.instruction_set import DotProduct, dot_product
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.program import Block, Intrinsic, Loop


@dataclass(frozen=True)
class _Groups:
    """The loops of a recognised statement.

    Attributes:
        block: in them.
        lane: the vector loop.
        along: the variable over neighbours; "" where only one is left.
        used: neighbours there are, of `products` in a group.
        formula: what is made of each element that is read lane by lane, before it is widened.
    """

    block: Block
    lane: Lane
    along: str
    used: int
    products: int
    formula: Scalar | None = None


class DotProductEmitter:
    """Emits both intrinsics where their bodies have the form above.

    Args:
        lane_of: the lanes that a vector loop stands for.
    """

    def __init__(
        self, values: ValueEmitter, target: Target, width: int, lane_of: Callable[[Loop], Lane]
    ) -> None:
        self.values, self.target, self.width = values, target, width
        self.builder: Builder = values.builder
        self._lane_of = lane_of

    def emit(self, statement: Intrinsic) -> bool:
        """Whether the statement had the form and is written."""
        loops = self._loops(statement)
        if loops is None:
            return False
        block, lane, along, used = loops
        if statement.name == "interleave":
            return self._interleave(block, lane, along, used)
        return self._dot_product(block, lane, along, used)

    # -- forms --------------------------------------------------------------------------------
    def _loops(self, statement: Intrinsic) -> tuple[Block, Lane, str, int] | None:
        """(block, lanes, variable over neighbours, how many) of the nest inside."""
        body, along, used = statement.body, "", 1
        if isinstance(body, Loop) and body.kind == "unroll":
            count = self.values.index.integer(body.extent)
            if not isinstance(count, int) or count < 1:
                return None
            along, used, body = body.variable, count, body.body
        if not isinstance(body, Loop) or body.kind != "vector":
            return None
        block = body.body
        if not isinstance(block, Block) or block.guard:
            return None
        lane = self._lane_of(body)
        return (block, lane, along, used) if lane.width == self.width and lane.active else None

    def _steps(self, access: Load, lane: Lane, along: str) -> tuple[int | None, int | None]:
        """Elements that an access moves by with the lane, and with the neighbour (1 where only one
        is left)."""
        by_lane = self.values.compiled(access, lane).stride
        if not along:
            return by_lane, 1
        other = Lane(along, self.width, self.width)
        return by_lane, self.values.compiled(access, other).stride

    def _dot_product(self, block: Block, lane: Lane, along: str, used: int) -> bool:
        registers, value = self.values.registers, block.value
        if block.reducer != "sum" or block.buffer not in registers:
            return False
        if not isinstance(value, Call) or value.function != "multiply":
            return False
        factors = [_widened(argument) for argument in value.arguments]
        one, two = map(source, factors)
        if one is None or two is None or self._steps(block.write, lane, "")[0] != 1:
            return False
        for group, vectors, formulas in ((one, two, factors), (two, one, factors[::-1])):
            products, step = self._steps(vectors, lane, along)
            if step != 1 or not products or not self._groups(group, lane, along, products == used):
                continue
            instruction = self._instruction(group.buffer, vectors.buffer, products)
            if instruction is None or used > products or formulas[0] is not group:
                continue
            form = _Groups(block, lane, along, used, products, formulas[1])
            if self._codes(form) is None:
                continue
            self._multiply(form, group, vectors, instruction)
            return True
        return False

    def _groups(self, group: Load, lane: Lane, along: str, whole: bool) -> bool:
        """Whether an access is one group for all lanes, or bytes with the lanes between them."""
        steps = self._steps(group, lane, along)
        apart = whole and bool(along) and size_of(self._dtype(group.buffer)) == 1
        return steps == (0, 1) or (apart and steps == (1, self.width))

    def _dtype(self, buffer: str) -> str:
        return self.values.memory.buffers[buffer].dtype

    def _instruction(self, group: str, vectors: str, products: int) -> DotProduct | None:
        """The target's, of the elements of two buffers, or of bytes as pairs of 16 bits."""
        dtypes = self._dtype(group), self._dtype(vectors)
        instruction = dot_product(self.target, *dtypes)
        if instruction is None and set(dtypes) <= {"int8", "uint8"}:
            instruction = dot_product(self.target, "int16", "int16")
        return instruction if instruction is not None and instruction.products == products else None

    # -- dot products -------------------------------------------------------------------------
    def _multiply(self, form: _Groups, group: Load, vectors: Load, instruction: DotProduct) -> None:
        values, lane = self.values, form.lane
        if form.along:
            values.index.environment[form.along] = 0
        values.enter_lane(lane)
        target = values.compiled(form.block.write, lane)
        number, runtime = values.place(target)
        old = values.registers.load(form.block.buffer, number, self.width, runtime)
        ordered = [
            self._as_inputs(self._group(form, group), group, instruction),
            self._as_inputs(self._unpacked(form, vectors), vectors, instruction),
        ]
        if (
            instruction.inputs[0] != instruction.inputs[1]
            and self._dtype(group.buffer) != instruction.inputs[0]
        ):
            ordered.reverse()
        given = [old, *ordered] if instruction.accumulates else ordered
        result = call_product(self.builder, self.target, instruction, given)
        if not instruction.accumulates:
            result = self.builder.add(old, result)
        values.registers.store(form.block.buffer, number, self.width, runtime, result)
        for variable in filter(None, (form.along, lane.variable)):
            values.index.environment.pop(variable, None)

    def _as_inputs(self, groups: Value, access: Load, instruction: DotProduct) -> Value:
        """A vector of groups as the instruction takes it; bytes widened where it takes 16 bits."""
        dtype, count = self._dtype(access.buffer), self.width * instruction.products
        wanted = instruction.inputs[0] if dtype not in instruction.inputs else dtype
        if wanted == dtype:
            return self.builder.convert("bitcast", groups, vector_of(dtype, count))
        key = ("widened", groups, wanted)
        known = self.values.index.remembered(key)
        if known is None:
            narrow = self.builder.convert("bitcast", groups, vector_of(dtype, count))
            word = "zext" if dtype.startswith("u") else "sext"
            known = self.builder.convert(word, narrow, vector_of(wanted, count))
            self.values.index.remember(key, known)
        return known

    def _place(self, access: Load, lane: Lane) -> tuple[int, tuple[tuple[Value, int], ...]]:
        return self.values.place(self.values.compiled(access, lane))

    def _group(self, form: _Groups, access: Load) -> Value:
        """The group of every lane; those with the lanes between neighbours are loaded at once, and
        turned (what stands in idle lanes is never stored)."""
        if self._steps(access, form.lane, form.along) == (0, 1):
            return self._broadcast(form, access)
        values, builder, count = self.values, self.builder, self.width * form.products
        kind = vector(integer(8), count)
        address = values.pointer(access.buffer, *self._place(access, form.lane))
        order = [p * self.width + j for j in range(self.width) for p in range(form.products)]
        turned = lanes(vector(INT32, count), order)
        return builder.shuffle_vector(builder.load(address, kind, 1), undefined(kind), turned)

    def _broadcast(self, form: _Groups, access: Load) -> Value:
        """A group in every lane."""
        values, builder = self.values, self.builder
        number, runtime = self._place(access, form.lane)
        key = ("group", access.buffer, number, runtime, form.used)
        group = values.index.remembered(key)
        if group is None:
            address = values.pointer(access.buffer, number, runtime)
            size = size_of(self._dtype(access.buffer))
            whole = integer(8 * size * form.products)
            full = form.used == form.products
            group = builder.load(address, whole, size) if full else None
            group = group or self._first_of(address, whole, size, form.used)
            if access.buffer not in values.memory.written:
                values.index.remember(key, group)
        return values.splat(group, self.width)

    def _first_of(self, address: Value, whole: IntType, size: int, used: int) -> Value:
        """The first neighbours of a group, the others zero."""
        builder, element = self.builder, integer(8 * size)
        total: Value | None = None
        for position in range(used):
            place = builder.gep(address, INDEX(position), element, inbounds=True)
            part = builder.convert("zext", builder.load(place, element, size), whole)
            if position:
                part = builder.shl(part, literal(whole, 8 * size * position))
            total = part if total is None else builder.or_(total, part)
        assert total is not None
        return total

    def _vectors(self, form: _Groups, access: Load) -> Value:
        """A vector of groups, those of idle lanes zero."""
        values, builder = self.values, self.builder
        number, runtime = self._place(access, form.lane)
        key = ("groups", access.buffer, number, runtime, form.used, form.lane.active)
        packed = values.index.remembered(key)
        if packed is not None:
            return packed
        dtype = self._dtype(access.buffer)
        size = size_of(dtype)
        kind = vector(integer(8 * size * form.products), self.width)
        address = values.pointer(access.buffer, number, runtime)
        bits = values.mask(form.lane, form.lane.bits)
        if bits is None:
            packed = builder.load(address, kind, size)
        else:
            given = [address, INT32(size), bits, literal(kind, 0)]
            name = f"llvm.masked.load.v{self.width}i{8 * size * form.products}.p0"
            function = builder.module.declare(name, kind, [value.type for value in given])
            packed = builder.call(function, given)
        if form.used < form.products and is_floating(dtype):
            packed = builder.and_(packed, literal(kind, (1 << (8 * size * form.used)) - 1))
        if access.buffer not in values.memory.written:
            values.index.remember(key, packed)
        return packed

    def _codes(self, form: _Groups) -> tuple[int, ...] | None:
        """The numbers in the formula of each element; None where they are not known."""
        return numbers(form.formula, self.values.index.integer) if form.formula is not None else ()

    def _unpacked(self, form: _Groups, access: Load) -> Value:
        """A vector of groups, or of what is made of each of their elements."""
        groups, known = self._vectors(form, access), self._codes(form)
        if not known or form.formula is None:
            return groups
        key = ("unpacked", groups, known)
        result = self.values.index.remembered(key)
        if result is None:
            kind = vector(element_type(self._dtype(access.buffer)), self.width * form.products)
            elements = self.builder.convert("bitcast", groups, kind)
            converted = unpacked(self.builder, form.formula, elements, list(known))
            result = self.builder.convert("bitcast", converted, groups.type)
            self.values.index.remember(key, result)
        return result

    # -- interleaving -------------------------------------------------------------------------
    def _interleave(self, block: Block, lane: Lane, along: str, used: int) -> bool:
        value, values = _framed(block.value), self.values
        if block.reducer is not None or value is None:
            return False
        if block.buffer in values.registers or value.buffer in values.registers:
            return False
        products, step = self._steps(block.write, lane, along)
        dtype = self._dtype(block.buffer)
        if not products or products < used or step != 1 or dtype != self._dtype(value.buffer):
            return False
        size = size_of(dtype)
        if products * size not in (2, 4, 8):
            return False
        form = _Groups(block, lane, along, used, products)
        match self._steps(value, lane, along):
            case (1, _):
                groups = self._from_rows(form, size)
            case (_, 1) if value is block.value:
                groups = self._from_columns(form, value, size)
            case _:
                return False
        self._store(form, groups, size)
        for variable in filter(None, (along, lane.variable)):
            values.index.environment.pop(variable, None)
        return True

    def _from_rows(self, form: _Groups, size: int) -> Value:
        """Groups of rows that lie along the lanes."""
        values, builder = self.values, self.builder
        kind = vector(integer(8 * size * form.products), self.width)
        total: Value | None = None
        for position in range(form.used):
            if form.along:
                values.index.environment[form.along] = position
            values.enter_lane(form.lane)
            row = values.emit(form.block.value, form.lane, form.lane.bits)
            if isinstance(row, Constant):  # the frame
                row = literal(integer(8 * size), 0)
            row = values.splat(row, self.width)
            bits = builder.convert("bitcast", row, vector(integer(8 * size), self.width))
            part = builder.convert("zext", bits, kind)
            if position:
                part = builder.shl(part, literal(kind, 8 * size * position))
            total = part if total is None else builder.or_(total, part)
        assert total is not None
        return total

    def _from_columns(self, form: _Groups, source: Load, size: int) -> Value:
        """Groups that lie together, those of the lanes apart."""
        values, builder, lane = self.values, self.builder, form.lane
        whole = integer(8 * size * form.products)
        groups: Value = undefined(vector(whole, self.width))
        plain = values.compiled(source, None)
        for position in range(lane.active):
            if form.along:
                values.index.environment[form.along] = 0
            # Lanes beyond the end read the first one's.
            values.index.environment[lane.variable] = self._in_use(lane, position)
            address = values.pointer(source.buffer, *values.place(plain))
            if form.used == form.products:
                group = builder.load(address, whole, size)
            else:
                group = self._first_of(address, whole, size, form.used)
            groups = builder.insert_element(groups, group, INDEX(position))
        return groups

    def _in_use(self, lane: Lane, position: int) -> int | Value:
        if lane.count is None or not position:
            return position
        used = self.builder.icmp_signed(">", lane.count, INDEX(position))
        return self.builder.select(used, INDEX(position), INDEX(0))

    def _store(self, form: _Groups, groups: Value, size: int) -> None:
        """Whole groups, of the lanes in use."""
        values, builder, lane = self.values, self.builder, form.lane
        if form.along:
            values.index.environment[form.along] = 0
        values.enter_lane(lane)
        number, runtime = self._place(form.block.write, lane)
        address = values.pointer(form.block.buffer, number, runtime)
        bits = values.mask(lane, lane.bits)
        if bits is None:
            builder.store(groups, address, size)
            return
        given = [groups, address, INT32(size), bits]
        name = f"llvm.masked.store.v{self.width}i{8 * size * form.products}.p0"
        function = builder.module.declare(name, VOID, [value.type for value in given])
        builder.call(function, given)


def _framed(value: Scalar) -> Load | None:
    """The load that a value is, in zeros or not."""
    if isinstance(value, Select) and value.otherwise == Const(0.0):
        value = value.then
    return value if isinstance(value, Load) else None


def _widened(value: Scalar) -> Scalar:
    """What a factor is before it is widened."""
    widens = isinstance(value, Call) and value.function in CONVERSIONS
    return value.arguments[0] if isinstance(value, Call) and widens else value
