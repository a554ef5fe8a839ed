"""Expressions of the compiled subset, as LLVM values.

Invariant: a value is of the type Python's would be: int (64 bits), float (double), bool (one bit),
which becomes an int where it is counted, or numpy's float32, which the others become beside it.
What has no such value is refused.
"""

import ast
from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from tilesmith.codegen.compiled.signature import (
    ARRAYS,
    KINDS,
    RESULTS,
    FunctionParameter,
    FunctionSignature,
    FunctionSource,
)

INT, FLOAT, BOOL = ir.IntType(64), ir.DoubleType(), ir.IntType(1)
SINGLE = ir.FloatType()
REALS = (FLOAT, SINGLE)

TYPES = {
    "int": INT, "float": FLOAT, "ints": INT.as_pointer(), "floats": FLOAT.as_pointer(),
    "singles": SINGLE.as_pointer(), "none": ir.VoidType(),
}  # fmt: skip

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip

REAL: dict[type[ast.operator], str] = {
    ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv",
}  # fmt: skip
WHOLE: dict[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}

WORD = 1 << 63


class Expressions:
    """What the names of a function are, and values of its expressions.

    Attributes:
        at: where instructions are added.
        arrays, numbers: parameters by name, or by (name, field) of a table.
        own: names that the function assigns to.
        locals: a place in memory for each; `assigned`: those that surely have a value here.
        written: places (in the signature) of the arrays that are written.
        helpers: compiled functions by name.
        kinds, results: what annotations of parameters and results mean.
        types: of LLVM, for these.
    """

    kinds: Mapping[str, str] = KINDS
    results: Mapping[str, str] = RESULTS
    types: Mapping[str, Any] = TYPES

    def __init__(
        self,
        source: FunctionSource,
        module: ir.Module,
        name: str,
        names: dict[str, Any],
        helpers: dict[str, Any],
    ) -> None:
        self.source, self.names, self.helpers = source, names, helpers
        self.signature = FunctionSignature.of(source, names, self.kinds, self.results)
        self.result = self.types[self.signature.result]
        kinds = [self.types[kind] for kind in self.signature.kinds]
        self.function = ir.Function(module, ir.FunctionType(self.result, kinds), name=name)
        self.entry = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.at = ir.IRBuilder(self.function.append_basic_block("body"))
        self.arrays: dict[tuple[str, str], int] = {}
        self.numbers: dict[tuple[str, str], Any] = {}
        self.tables: dict[str, FunctionParameter] = {}
        self.own = {
            node.id
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        self.locals: dict[str, Any] = {}
        self.assigned: set[str] = set()
        self.written: set[int] = set()
        place = 0
        for parameter in self.signature.parameters:
            if parameter.table:
                self.tables[parameter.name] = parameter
            for field, kind in parameter.parts:
                value = self.function.args[place]
                if kind in ARRAYS:
                    value.add_attribute("noalias")
                    self.arrays[parameter.name, field] = place
                elif field:
                    self.numbers[parameter.name, field] = value
                else:
                    self.store(source.tree, parameter.name, self.taken(value))
                place += 1

    def taken(self, value: Any) -> Any:
        """The number that a parameter's value is."""
        return value

    def block(self, name: str) -> ir.Block:
        return self.function.append_basic_block(name)

    # -- names --------------------------------------------------------------------------------
    def store(self, node: ast.AST, name: str, value: Any) -> None:
        """Give a local a value; its type is that of its first one."""
        if (name, "") in self.arrays or name in self.tables or name in self.helpers:
            raise self.source.refusal(node, f"'{name}' is an array, table or function and stays so")
        if name not in self.locals:
            self.locals[name] = self.entry.alloca(value.type, name=name)
        slot = self.locals[name]
        self.at.store(self.expect(node, value, slot.type.pointee, f"'{name}'"), slot)
        self.assigned.add(name)

    def expect(self, node: ast.AST, value: Any, kind: Any, what: str) -> Any:
        """A value where one of type `kind` is expected: bools become ints, ints floats."""
        if SINGLE in (value.type, kind) and value.type != kind:
            one = "is a single and would become another number"
            other = "is another number and would become a single"
            raise self.source.refusal(
                node, f"{what} {one if kind == SINGLE else other}; convert it"
            )
        if value.type == kind:
            return value
        order = [BOOL, INT, FLOAT]
        if order.index(value.type) > order.index(kind):
            one, other = ("an int", "a float") if kind == INT else ("a bool", "a number")
            raise self.source.refusal(node, f"{what} is {one} and would become {other}; convert it")
        return self.convert(value, kind)

    def name(self, node: ast.Name) -> Any:
        name = node.id
        if name in self.locals:
            if name not in self.assigned:
                raise self.source.refusal(node, f"'{name}' may be read before it is assigned")
            return self.at.load(self.locals[name])
        if (name, "") in self.arrays or name in self.tables:
            raise self.source.refusal(node, f"'{name}' is used as a number")
        if name in self.own:
            raise self.source.refusal(node, f"'{name}' may be read before it is assigned")
        constant = self.names.get(name)
        if name in self.helpers or isinstance(constant, bool):
            constant = None
        if not isinstance(constant, int | float):
            raise self.source.refusal(
                node, f"'{name}' is no local, nor an int or float of the module"
            )
        return self.constant(node, constant)

    def constant(self, node: ast.AST, value: Any) -> Any:
        if isinstance(value, float):
            return FLOAT(float(value))
        if not isinstance(value, int) or not -WORD <= value < WORD:
            raise self.source.refusal(node, f"{value!r} is neither a float nor an int of 64 bits")
        return INT(int(value))

    def array(self, node: ast.AST) -> int:
        """The place of the array that a name, or a table's field, stands for."""
        match node:
            case ast.Name(id=name):
                key = name, ""
            case ast.Attribute(value=ast.Name(id=name), attr=field):
                key = name, field
            case _:
                key = "", ""
        if key not in self.arrays:
            raise self.source.refusal(node, f"'{ast.unparse(node)}' is no array of this function")
        return self.arrays[key]

    def element(self, node: ast.Subscript, written: bool) -> Any:
        """A pointer to an element of an array."""
        place = self.array(node.value)
        if written:
            self.written.add(place)
        index = self.value(node.slice)
        literal = isinstance(index, ir.Constant)
        if index.type != INT or (literal and index.constant < 0):
            raise self.source.refusal(node, "an index is one int that is not negative")
        return self.at.gep(self.function.args[place], [index])

    # -- values -------------------------------------------------------------------------------
    def value(self, node: ast.expr) -> Any:
        """The value of an expression: an int, a float or a bool."""
        match node:
            case ast.Constant(value=value):
                return self.constant(node, value)
            case ast.Name():
                return self.name(node)
            case ast.Attribute(value=ast.Name(id=table), attr=field):
                if (table, field) not in self.numbers:
                    raise self.source.refusal(node, f"'{table}.{field}' is no number of a table")
                return self.numbers[table, field]
            case ast.Subscript():
                return self.at.load(self.element(node, written=False))
            case ast.BinOp(left=left, op=operator, right=right):
                return self.arithmetic(node, operator, self.value(left), self.value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.number(self.value(operand))
                if isinstance(value, ir.Constant) and value.type == INT:
                    return INT(-value.constant)
                return self.at.fneg(value) if value.type in REALS else self.at.neg(value)
            case ast.Compare():
                return self.compare(node)
            case ast.UnaryOp(op=ast.Not()):
                return self.truth(node)
            case ast.BoolOp(values=values):
                if not all(self.is_bool(part) for part in values):
                    raise self.source.refusal(node, "'and' and 'or' of numbers give one of them")
                return self.truth(node)
            case ast.Call():
                result = self.call(node)
                if isinstance(result.type, ir.VoidType):
                    raise self.source.refusal(node, "a function without a result gives no value")
                return result
        raise self.source.refusal(
            node, f"'{ast.unparse(node)}' ({type(node).__name__}) is not translated"
        )

    def number(self, value: Any) -> Any:
        return self.at.zext(value, INT) if value.type == BOOL else value

    def convert(self, value: Any, kind: Any) -> Any:
        """A value as an int (towards zero), a float, or a single."""
        value = self.number(value)
        if value.type == kind:
            return value
        if kind == SINGLE:
            return self.at.fptrunc(self.convert(value, FLOAT), SINGLE)
        if value.type == SINGLE and kind == FLOAT:
            return self.at.fpext(value, FLOAT)
        return self.at.sitofp(value, kind) if kind == FLOAT else self.at.fptosi(value, INT)

    def alike(self, left: Any, right: Any) -> tuple[Any, Any]:
        """Two numbers as singles if either is one, else as floats, else as ints."""
        kinds = (left.type, right.type)
        kind = SINGLE if SINGLE in kinds else FLOAT if FLOAT in kinds else INT
        return self.convert(left, kind), self.convert(right, kind)

    def arithmetic(self, node: ast.AST, operator: ast.operator, left: Any, right: Any) -> Any:
        left, right = self.alike(left, right)
        if isinstance(operator, ast.Div) and left.type == INT:
            left, right = self.convert(left, FLOAT), self.convert(right, FLOAT)
        kind = type(operator)
        if left.type in REALS and kind in REAL:
            return getattr(self.at, REAL[kind])(left, right)
        if left.type == INT and kind in WHOLE:
            return getattr(self.at, WHOLE[kind])(left, right)
        if left.type == INT and kind in (ast.FloorDiv, ast.Mod):
            return self.floored(kind is ast.FloorDiv, left, right)
        of = "floats" if left.type in REALS else "ints"
        raise self.source.refusal(node, f"{kind.__name__} of {of} is not translated")

    def floored(self, quotient: bool, left: Any, right: Any) -> Any:
        """`//` or `%` as Python rounds, which is down."""
        at = self.at
        if isinstance(right, ir.Constant) and right.constant > 0:
            power = right.constant.bit_length() - 1
            if right.constant == 1 << power:
                if quotient:
                    return at.ashr(left, INT(power))
                return at.and_(left, INT(right.constant - 1))
        rest = at.srem(left, right)
        other_sign = at.icmp_signed("<", at.xor(rest, right), INT(0))
        below = at.and_(at.icmp_signed("!=", rest, INT(0)), other_sign)
        if quotient:
            return at.sub(at.sdiv(left, right), at.zext(below, INT))
        return at.add(rest, at.select(below, right, INT(0)))

    # -- conditions ---------------------------------------------------------------------------
    def compare(self, node: ast.Compare) -> Any:
        if len(node.ops) > 1:
            raise self.source.refusal(node, "a chain of comparisons; join two by 'and'")
        kind = type(node.ops[0])
        if kind not in COMPARISONS:
            raise self.source.refusal(node, f"comparison {kind.__name__} is not translated")
        sign = COMPARISONS[kind]
        left, right = self.alike(self.value(node.left), self.value(node.comparators[0]))
        if left.type == INT:
            return self.at.icmp_signed(sign, left, right)
        compare = self.at.fcmp_unordered if sign == "!=" else self.at.fcmp_ordered
        return compare(sign, left, right)

    def is_bool(self, node: ast.expr) -> bool:
        """Whether an expression gives True or False."""
        match node:
            case ast.BoolOp(values=values):
                return all(self.is_bool(part) for part in values)
            case ast.Name(id=name):
                return name in self.locals and self.locals[name].type.pointee == BOOL
        return isinstance(node, ast.Compare) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        )

    def truth(self, node: ast.expr) -> Any:
        """Whether an expression holds, as one bit."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.at.not_(self.truth(operand))
            case ast.BoolOp(op=operator, values=values):
                total = self.truth(values[0])
                for part in values[1:]:
                    total = self.joined(isinstance(operator, ast.And), total, part)
                return total
        value = self.value(node)
        if value.type in REALS:
            return self.at.fcmp_unordered("!=", value, value.type(0.0))
        return value if value.type == BOOL else self.at.icmp_signed("!=", value, INT(0))

    def joined(self, both: bool, first: Any, node: ast.expr) -> Any:
        """`first and node` or `first or node`; what could do harm is evaluated only if needed."""
        if _is_harmless(node):
            second = self.truth(node)
            return self.at.and_(first, second) if both else self.at.or_(first, second)
        begun, other, after = self.at.block, self.block("other"), self.block("joined")
        self.at.cbranch(first, *((other, after) if both else (after, other)))
        self.at.position_at_end(other)
        second = self.truth(node)
        ended = self.at.block
        self.at.branch(after)
        self.at.position_at_end(after)
        phi = self.at.phi(BOOL)
        phi.add_incoming(BOOL(int(not both)), begun)
        phi.add_incoming(second, ended)
        return phi

    # -- calls --------------------------------------------------------------------------------
    def call(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise self.source.refusal(node, "arguments are given by position")
        if name in self.helpers:
            return self.helper(node, self.helpers[name])
        if name not in ("int", "float", "min", "max") or name in self.names or name in self.locals:
            raise self.source.refusal(node, f"'{ast.unparse(node.func)}' is no compiled function")
        values = [self.value(argument) for argument in node.args]
        if name in ("int", "float"):
            if len(values) != 1:
                raise self.source.refusal(node, f"{name}() takes one argument")
            return self.convert(values[0], TYPES[name])
        if len(values) < 2:
            raise self.source.refusal(node, f"{name}() takes two numbers or more")
        singles = [value.type == SINGLE for value in values]
        if any(singles) and not all(singles):
            raise self.source.refusal(node, f"{name}() of singles and other numbers; convert them")
        total = self.number(values[0])
        for value in values[1:]:
            left, right = self.alike(total, value)
            compare = self.at.icmp_signed if left.type == INT else self.at.fcmp_ordered
            total = self.at.select(compare("<" if name == "min" else ">", right, left), right, left)
        return total

    def helper(self, node: ast.Call, callee: Any) -> Any:
        """A call of another compiled function; arrays and tables are passed on by name."""
        parameters = callee.signature.parameters
        if len(node.args) != len(parameters):
            raise self.source.refusal(node, f"{len(parameters)} arguments are expected")
        values: list[Any] = []
        places: list[int] = []
        for argument, parameter in zip(node.args, parameters, strict=True):
            for field, kind in parameter.parts:
                places.append(-1)
                if kind in ARRAYS:
                    part = ast.Attribute(argument, field) if field else argument
                    places[-1] = self.array(ast.copy_location(part, argument))
                    values.append(self.function.args[places[-1]])
                elif field:
                    part = ast.copy_location(ast.Attribute(argument, field), argument)
                    values.append(self.value(part))
                else:
                    what = f"argument '{parameter.name}'"
                    values.append(self.expect(node, self.value(argument), TYPES[kind], what))
                if values[-1].type != TYPES[kind]:
                    raise self.source.refusal(
                        argument, f"argument '{parameter.name}' is of another type"
                    )
        for place in callee.written:
            self.written.add(places[place])
            if places.count(places[place]) > 1:
                raise self.source.refusal(node, "an array that it writes is passed twice")
        return self.at.call(callee.function, values)


def _is_harmless(node: ast.expr) -> bool:
    """Whether an expression can be evaluated at any time: it neither reads memory, nor divides,
    nor calls."""
    divides = ast.Div | ast.FloorDiv | ast.Mod
    return not any(
        isinstance(part, ast.Subscript | ast.Call)
        or (isinstance(part, ast.BinOp) and isinstance(part.op, divides))
        for part in ast.walk(node)
    )
