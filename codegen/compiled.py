"""`@compiled`: loops over instruction tables, written in plain Python, run as native code.

The passes over instruction streams (dependences, grant order, timeline) look at a hundred thousand
instructions or more, each step depending on the last, so numpy cannot batch them. They are written
as ordinary Python functions in a small subset, compiled through llvmlite on first use, and remain
callable as Python (`.python`), which the tests use as the reference.

The subset: parameters annotated `int`, `float`, `Ints` (int64 array) or `Floats` (float64 array);
locals of type int or float, fixed by their first assignment; `for i in range(...)`, `while`, `if`,
`break`, `continue`, `return` of an int or float as annotated; arithmetic `+ - * // %` (`/` on
floats), comparisons, `and`, `or`, `not`, `min`, `max`, `float`, `int`; indexing of arrays; calls of
other compiled functions of the same module, which are inlined. `//` and `%` take non-negative
operands; `and` and `or` do not short-circuit, so both sides must be safe to evaluate. Indices are
not checked.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_KINDS = {"int": "int", "float": "float", "Ints": "ints", "Floats": "floats"}
_ARRAY_DTYPES = {"ints": np.int64, "floats": np.float64}


class Compiled:
    """A function of the subset; calling it runs native code. See the module's docstring."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self._native: Any = None
        self._kinds: list[str] = []

    @property
    def helpers(self) -> dict[str, Compiled]:
        """The compiled functions that this one calls, by name."""
        code, known = self.function.__code__, self.function.__globals__
        found = {name: known.get(name) for name in code.co_names}
        return {name: value for name, value in found.items() if isinstance(value, Compiled)}

    @property
    def python(self) -> Callable[..., Any]:
        """The function as plain Python, its helpers too."""
        helpers = {name: helper.python for name, helper in self.helpers.items()}
        return FunctionType(self.function.__code__, {**self.function.__globals__, **helpers})

    def __call__(self, *arguments: Any) -> int:
        if self._native is None:
            self._native, self._kinds = _build(self)
        assert len(arguments) == len(self._kinds), self.function.__name__
        return int(self._native(*map(_pass, arguments, self._kinds)))


def compiled(function: Callable[..., Any]) -> Compiled:
    """Decorator: compile `function` on first call."""
    return Compiled(function)


def _pass(value: Any, kind: str) -> Any:
    if kind in _ARRAY_DTYPES:
        assert value.dtype == _ARRAY_DTYPES[kind], (kind, value.dtype)
        assert value.flags.c_contiguous
        return value.ctypes.data
    return value


def _build(found: Compiled) -> tuple[Any, list[str]]:
    import llvmlite.binding as llvm
    from llvmlite import ir

    name = found.function.__name__
    module = ir.Module(name)
    translator = _translate(found, module, {})
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parsed = llvm.parse_assembly(str(module))
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    types = {"int": ctypes.c_int64, "float": ctypes.c_double}
    signature: list[Any] = [types.get(kind, ctypes.c_void_p) for kind in translator.kinds]
    native = ctypes.CFUNCTYPE(ctypes.c_int64, *signature)(engine.get_function_address(name))
    native.engine = engine  # type: ignore[attr-defined]  # keeps the code alive
    return native, translator.kinds


def _translate(found: Compiled, module: Any, known: dict[str, _Translator]) -> _Translator:
    """Add a function to an LLVM module, its helpers first; `known` are those already there."""
    for name, helper in found.helpers.items():
        if name not in known:
            known[name] = _translate(helper, module, known)
            known[name].function.linkage = "internal"
            known[name].function.attributes.add("alwaysinline")
    tree = ast.parse(textwrap.dedent(inspect.getsource(found.function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return _Translator(tree, module, known)


class _Translator:
    """One function of the subset to one of an LLVM module."""

    def __init__(self, tree: ast.FunctionDef, module: Any, helpers: dict[str, _Translator]) -> None:
        from llvmlite import ir

        self.ir, self.helpers = ir, helpers
        self.int_, self.float_, self.bool_ = ir.IntType(64), ir.DoubleType(), ir.IntType(1)
        self.kinds = [_KINDS[ast.unparse(a.annotation)] for a in tree.args.args if a.annotation]
        types = {"int": self.int_, "float": self.float_}
        pointers = {"ints": self.int_.as_pointer(), "floats": self.float_.as_pointer()}
        signature = [{**types, **pointers}[kind] for kind in self.kinds]
        assert tree.returns is not None, tree.name
        self.result = types[_KINDS[ast.unparse(tree.returns)]]
        self.function = ir.Function(module, ir.FunctionType(self.result, signature), name=tree.name)
        self.entry = ir.IRBuilder(self.function.append_basic_block("entry"))
        body = self.function.append_basic_block("body")
        self.at = ir.IRBuilder(body)
        self.arrays: dict[str, Any] = {}
        self.locals: dict[str, Any] = {}
        self.loops: list[tuple[Any, Any]] = []
        for name, kind, value in zip(tree.args.args, self.kinds, self.function.args, strict=True):
            if kind in _ARRAY_DTYPES:
                value.add_attribute("noalias")
                self.arrays[name.arg] = value
            else:
                self.store(name.arg, value)
        self.statements(tree.body)
        if not self.at.block.is_terminated:
            self.at.ret(self.result(0))
        self.entry.branch(body)

    # -- statements ---------------------------------------------------------------------------
    def statements(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if self.at.block.is_terminated:
                return
            getattr(self, f"do_{type(statement).__name__}")(statement)

    def do_Expr(self, node: ast.Expr) -> None:  # noqa: N802
        if isinstance(node.value, ast.Call):
            self.value(node.value)
            return
        assert isinstance(node.value, ast.Constant), "only docstrings and calls stand alone"

    def do_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        value = self.value(node.value)
        for target in node.targets:
            self.assign(target, value)

    def do_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        old = ast.copy_location(ast.parse(ast.unparse(node.target), mode="eval").body, node)
        self.assign(node.target, self.arithmetic(node.op, self.value(old), self.value(node.value)))

    def do_Return(self, node: ast.Return) -> None:  # noqa: N802
        value = self.int_(0) if node.value is None else self.value(node.value)
        self.at.ret(self.convert(value, self.result))

    def do_Break(self, _: ast.Break) -> None:  # noqa: N802
        self.at.branch(self.loops[-1][1])

    def do_Continue(self, _: ast.Continue) -> None:  # noqa: N802
        self.at.branch(self.loops[-1][0])

    def do_If(self, node: ast.If) -> None:  # noqa: N802
        then, other, after = (self.function.append_basic_block(n) for n in ("then", "else", "fi"))
        self.at.cbranch(self.truth(node.test), then, other)
        for block, body in ((then, node.body), (other, node.orelse)):
            self.at.position_at_end(block)
            self.statements(body)
            if not self.at.block.is_terminated:
                self.at.branch(after)
        self.at.position_at_end(after)

    def do_While(self, node: ast.While) -> None:  # noqa: N802
        test, body, after = (self.function.append_basic_block(n) for n in ("test", "loop", "end"))
        self.at.branch(test)
        self.at.position_at_end(test)
        self.at.cbranch(self.truth(node.test), body, after)
        self.at.position_at_end(body)
        self.loop_body(node.body, test, after)

    def do_For(self, node: ast.For) -> None:  # noqa: N802
        assert isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)
        bounds = [self.value(argument) for argument in node.iter.args]
        start, stop = (self.int_(0), bounds[0]) if len(bounds) == 1 else bounds[:2]
        names = ("test", "loop", "next", "end")
        test, body, step, after = (self.function.append_basic_block(n) for n in names)
        counter = self.entry.alloca(self.int_)
        self.at.store(start, counter)
        self.at.branch(test)
        self.at.position_at_end(test)
        current = self.at.load(counter)
        self.at.cbranch(self.at.icmp_signed("<", current, stop), body, after)
        self.at.position_at_end(step)
        self.at.store(self.at.add(self.at.load(counter), self.int_(1)), counter)
        self.at.branch(test)
        self.at.position_at_end(body)
        self.store(node.target.id, current)
        self.loop_body(node.body, step, after)

    def loop_body(self, body: list[ast.stmt], again: Any, after: Any) -> None:
        self.loops.append((again, after))
        self.statements(body)
        self.loops.pop()
        if not self.at.block.is_terminated:
            self.at.branch(again)
        self.at.position_at_end(after)

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Subscript):
            pointer = self.element(target)
            self.at.store(self.convert(value, pointer.type.pointee), pointer)
        else:
            assert isinstance(target, ast.Name)
            self.store(target.id, value)

    def store(self, name: str, value: Any) -> None:
        if value.type == self.bool_:
            value = self.at.zext(value, self.int_)
        if name not in self.locals:
            self.locals[name] = self.entry.alloca(value.type, name=name)
        slot = self.locals[name]
        self.at.store(self.convert(value, slot.type.pointee), slot)

    # -- expressions --------------------------------------------------------------------------
    def value(self, node: ast.expr) -> Any:
        return getattr(self, f"of_{type(node).__name__}")(node)

    def of_Constant(self, node: ast.Constant) -> Any:  # noqa: N802
        if isinstance(node.value, float):
            return self.float_(node.value)
        assert isinstance(node.value, int)
        return self.int_(node.value)

    def of_Name(self, node: ast.Name) -> Any:  # noqa: N802
        return self.at.load(self.locals[node.id])

    def of_Subscript(self, node: ast.Subscript) -> Any:  # noqa: N802
        return self.at.load(self.element(node))

    def element(self, node: ast.Subscript) -> Any:
        assert isinstance(node.value, ast.Name)
        return self.at.gep(self.arrays[node.value.id], [self.value(node.slice)])

    def of_BinOp(self, node: ast.BinOp) -> Any:  # noqa: N802
        return self.arithmetic(node.op, self.value(node.left), self.value(node.right))

    def arithmetic(self, operator: ast.operator, left: Any, right: Any) -> Any:
        left, right = self.same(left, right, force_float=isinstance(operator, ast.Div))
        real = left.type == self.float_
        table = {
            ast.Add: (self.at.add, self.at.fadd),
            ast.Sub: (self.at.sub, self.at.fsub),
            ast.Mult: (self.at.mul, self.at.fmul),
            ast.FloorDiv: (self.at.sdiv, None),
            ast.Mod: (self.at.srem, None),
            ast.Div: (None, self.at.fdiv),
        }
        make = table[type(operator)][real]
        assert make is not None
        return make(left, right)

    def of_UnaryOp(self, node: ast.UnaryOp) -> Any:  # noqa: N802
        if isinstance(node.op, ast.Not):
            return self.at.not_(self.truth(node.operand))
        assert isinstance(node.op, ast.USub)
        value = self.value(node.operand)
        return self.at.fneg(value) if value.type == self.float_ else self.at.neg(value)

    def of_Compare(self, node: ast.Compare) -> Any:  # noqa: N802
        assert len(node.ops) == 1
        left, right = self.same(self.value(node.left), self.value(node.comparators[0]))
        signs = {
            ast.Lt: "<",
            ast.LtE: "<=",
            ast.Gt: ">",
            ast.GtE: ">=",
            ast.Eq: "==",
            ast.NotEq: "!=",
        }
        sign = signs[type(node.ops[0])]
        if left.type == self.float_:
            return self.at.fcmp_ordered(sign, left, right)
        return self.at.icmp_signed(sign, left, right)

    def of_BoolOp(self, node: ast.BoolOp) -> Any:  # noqa: N802
        combine = self.at.and_ if isinstance(node.op, ast.And) else self.at.or_
        total = self.truth(node.values[0])
        for part in node.values[1:]:
            total = combine(total, self.truth(part))
        return total

    def of_Call(self, node: ast.Call) -> Any:  # noqa: N802
        assert isinstance(node.func, ast.Name)
        if node.func.id in self.helpers:
            return self.helper(self.helpers[node.func.id], node.args)
        values = [self.value(argument) for argument in node.args]
        if node.func.id == "float":
            return self.convert(values[0], self.float_)
        if node.func.id == "int":
            return self.convert(values[0], self.int_)
        assert node.func.id in ("min", "max"), node.func.id
        total = values[0]
        for value in values[1:]:
            left, right = self.same(total, value)
            sign = "<" if node.func.id == "min" else ">"
            real = left.type == self.float_
            compare = self.at.fcmp_ordered if real else self.at.icmp_signed
            total = self.at.select(compare(sign, right, left), right, left)
        return total

    def helper(self, callee: _Translator, arguments: list[ast.expr]) -> Any:
        """A call of another compiled function; arrays are passed on by name."""
        values = []
        for node, kind, expected in zip(
            arguments, callee.kinds, callee.function.function_type.args, strict=True
        ):
            if kind in _ARRAY_DTYPES:
                assert isinstance(node, ast.Name)
                values.append(self.arrays[node.id])
            else:
                values.append(self.convert(self.value(node), expected))
        return self.at.call(callee.function, values)

    def truth(self, node: ast.expr) -> Any:
        value = self.value(node)
        return value if value.type == self.bool_ else self.at.icmp_signed("!=", value, self.int_(0))

    def same(self, left: Any, right: Any, force_float: bool = False) -> tuple[Any, Any]:
        if force_float or self.float_ in (left.type, right.type):
            return self.convert(left, self.float_), self.convert(right, self.float_)
        return self.convert(left, self.int_), self.convert(right, self.int_)

    def convert(self, value: Any, kind: Any) -> Any:
        if value.type == kind:
            return value
        if value.type == self.bool_:
            value = self.at.zext(value, self.int_)
        if kind == self.float_:
            return self.at.sitofp(value, kind)
        return value if value.type == self.int_ else self.at.fptosi(value, self.int_)
