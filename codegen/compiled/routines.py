"""Routines: run-time code that works on addresses, in the compiled subset, as text of a module.

What runs without Python (loops over tables of calls, threads that wait, the functions of a library
in C) is written in Python, and becomes the text of functions beside others of an LLVM module:

    @routine                                           define ptr @error(ptr %workspace) {
    def error(workspace: Address) -> Address:            %n = ptrtoint ptr %workspace to i64
        if workspace == 0:                      ->       %none = icmp eq i64 %n, 0
            return status(ARGUMENT)                      br i1 %none, label %then, label %fi
        return workspace + TEXT_AT                       ...

Addresses are ints; the functions below read and write what lies there. A routine calls other
routines and functions of other objects (`External`). Names of its module that stand for ints are
constants, which `routines_text` may replace; an `if` of a constant keeps one of its sides. Integers
wrap around at 64 bits. Nothing is inlined here and nothing is checked.
"""

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from llvmlite import ir

from tilesmith.codegen.compiled.expressions import BOOL, INT, TYPES
from tilesmith.codegen.compiled.signature import FunctionSource
from tilesmith.codegen.compiled.translator import Translator

Address: TypeAlias = int
"""A parameter or result that is a pointer for others."""

Int32: TypeAlias = int
"""A parameter or result of 32 bits, with a sign."""

BYTE, INT32, POINTER = ir.IntType(8), ir.IntType(32), ir.PointerType()

_TYPES = {
    "i1": BOOL, "i8": BYTE, "i32": INT32, "i64": INT, "ptr": POINTER, "void": ir.VoidType(),
}  # fmt: skip

_BITS: dict[type[ast.operator], str] = {
    ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "ashr",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Routine:
    """A function that is translated; what names of its module stand for instead."""

    function: Callable[..., int | None]
    symbol: str
    names: Mapping[str, Any]

    def __call__(self, *arguments: Any) -> int:
        raise NotImplementedError(f"'{self.symbol}' runs as native code alone")

    def named(self, symbol: str, **names: Any) -> "Routine":
        """Return this routine under another symbol and with other constants."""
        return Routine(self.function, symbol, {**self.names, **names})


def routine(function: Callable[..., int | None]) -> Routine:
    """Decorator: a routine whose symbol is the function's name."""
    return Routine(function, function.__code__.co_name, {})


class External:
    """A function of another object, or (without a symbol) one at an address, its first argument.

    Args:
        kind: its type, as LLVM writes it: "i32 (ptr, i64, ...)". Arguments are cut to it, and an
            i32 that it gives keeps its sign.
    """

    def __init__(self, symbol: str, kind: str) -> None:
        self.symbol = symbol
        result, inside = kind.rstrip(")").split("(")
        given = [part.strip() for part in inside.split(",") if part.strip()]
        arguments = [_TYPES[part] for part in given if part != "..."]
        self.type = ir.FunctionType(_TYPES[result.strip()], arguments, var_arg="..." in given)

    def __call__(self, *arguments: Any) -> int:
        raise NotImplementedError(f"'{self.symbol}' is called by native code alone")


@dataclass(frozen=True)
class _Memory:
    """What the translator does itself: a method, and the number of bits."""

    method: str
    bits: int

    def __call__(self, *arguments: int) -> int:
        raise NotImplementedError(f"{self.method} runs as native code alone")


load8, load32, load64 = (_Memory("load", bits) for bits in (8, 32, 64))
"""load(at): bytes count from 0 on, others have a sign."""
store8, store32, store64 = (_Memory("store", bits) for bits in (8, 32, 64))
"""store(at, value)."""
atomic_load32, atomic_load64 = _Memory("atomic_load", 32), _Memory("atomic_load", 64)
"""A load that sees what was written before the `atomic_store` or exchange that it reads."""
atomic_store32, atomic_store64 = _Memory("atomic_store", 32), _Memory("atomic_store", 64)
exchange32, exchange64 = _Memory("exchange", 32), _Memory("exchange", 64)
"""exchange(at, value): what was there before."""
replace64 = _Memory("replace", 64)
"""replace(at, old, new): 1 if old was there, and new is now."""
room = _Memory("room", 0)
"""room(bytes): memory of this call, whose size is a constant."""


class _RoutineTranslator(Translator):
    """Translates one routine into a module."""

    kinds: Mapping[str, str] = {"int": "int", "Address": "address", "Int32": "int32"}
    results: Mapping[str, str] = {
        "int": "int",
        "None": "none",
        "Address": "address",
        "Int32": "int32",
    }
    types: Mapping[str, Any] = {**TYPES, "address": POINTER, "int32": INT32}

    def narrowed(self, value: Any, kind: Any) -> Any:
        """A number as what a function takes or gives."""
        value = self.number(value)
        if kind == POINTER:
            return self.at.inttoptr(value, POINTER)
        if isinstance(value, ir.Constant) and isinstance(value.constant, int):
            return kind(value.constant)
        return value if kind == INT else self.at.trunc(value, kind)

    def taken(self, value: Any) -> Any:
        """What a function was given, or gave, as a number."""
        if isinstance(value.type, ir.PointerType):
            return self.at.ptrtoint(value, INT)
        if value.type == INT32:
            return self.at.sext(value, INT)
        return self.at.zext(value, INT) if value.type in (BYTE, BOOL) else value

    def expect(self, node: ast.AST, value: Any, kind: Any, what: str) -> Any:
        if kind in (POINTER, INT32):
            return self.narrowed(value, kind)
        return super().expect(node, value, kind, what)

    def name(self, node: ast.Name) -> Any:
        known = None if node.id in self.locals else self.names.get(node.id)
        if isinstance(known, Routine | str):
            symbol = known if isinstance(known, str) else f"@{known.symbol}"
            return ir.FormattedConstant(INT, f"ptrtoint (ptr {symbol} to i64)")
        return super().name(node)

    def arithmetic(self, node: ast.AST, operator: ast.operator, left: Any, right: Any) -> Any:
        if type(operator) in _BITS:
            left, right = self.alike(left, right)
            return getattr(self.at, _BITS[type(operator)])(left, right)
        return super().arithmetic(node, operator, left, right)

    def known(self, node: ast.expr) -> int | None:
        """What a condition is, where constants alone decide it."""
        match node:
            case ast.Name(id=name) if name not in self.own and isinstance(
                self.names.get(name), int
            ):
                return int(self.names[name])
            case ast.BoolOp(op=ast.And(), values=[first, *_]) if self.known(first) == 0:
                return 0
        return None

    def branch(self, node: ast.If) -> None:
        known = self.known(node.test)
        if known is None:
            super().branch(node)
        else:
            self.statements(node.body if known else node.orelse)

    def call(self, node: ast.Call) -> Any:
        known = self.names.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if not isinstance(known, Routine | External | _Memory):
            return super().call(node)
        values = [self.number(self.value(argument)) for argument in node.args]
        if isinstance(known, _Memory):
            return getattr(self, f"memory_{known.method}")(known.bits, *values)
        if isinstance(known, Routine):
            known = External(known.symbol, _kind_of(known))
        if known.symbol:
            callee = self.function.module.globals.get(known.symbol)
            callee = callee or ir.Function(self.function.module, known.type, known.symbol)
        else:
            callee = self.at.inttoptr(values.pop(0), known.type.as_pointer())
        kinds = [*known.type.args, *[INT] * (len(values) - len(known.type.args))]
        if len(kinds) != len(values) or (len(values) > len(known.type.args)) > known.type.var_arg:
            raise self.source.refusal(node, f"{len(known.type.args)} arguments are expected")
        given = [self.narrowed(value, kind) for value, kind in zip(values, kinds, strict=True)]
        result = self.at.call(callee, given)
        return result if isinstance(result.type, ir.VoidType) else self.taken(result)

    # -- memory -------------------------------------------------------------------------------
    def place(self, bits: int, at: Any) -> Any:
        return self.at.inttoptr(at, ir.IntType(bits).as_pointer())

    def memory_load(self, bits: int, at: Any) -> Any:
        return self.taken(self.at.load(self.place(bits, at)))

    def memory_store(self, bits: int, at: Any, value: Any) -> Any:
        return self.at.store(self.narrowed(value, ir.IntType(bits)), self.place(bits, at))

    def memory_atomic_load(self, bits: int, at: Any) -> Any:
        return self.taken(self.at.load_atomic(self.place(bits, at), "acquire", bits // 8))

    def memory_atomic_store(self, bits: int, at: Any, value: Any) -> Any:
        value = self.narrowed(value, ir.IntType(bits))
        return self.at.store_atomic(value, self.place(bits, at), "release", bits // 8)

    def memory_exchange(self, bits: int, at: Any, value: Any) -> Any:
        value = self.narrowed(value, ir.IntType(bits))
        return self.taken(self.at.atomic_rmw("xchg", self.place(bits, at), value, "acq_rel"))

    def memory_replace(self, bits: int, at: Any, old: Any, new: Any) -> Any:
        pair = self.at.cmpxchg(self.place(bits, at), old, new, "acq_rel", "acquire")
        return self.at.extract_value(pair, 1)

    def memory_room(self, bits: int, nbytes: Any) -> Any:
        memory = self.entry.alloca(BYTE, nbytes.constant)
        memory.align = 16
        return self.at.ptrtoint(memory, INT)


def _kind_of(known: Routine) -> str:
    """The type of a routine, as LLVM writes it."""
    words = {"int": "i64", "Address": "ptr", "Int32": "i32", "None": "void"}
    tree = FunctionSource.of(known.function).tree
    kinds = (tree.returns, *(one.annotation for one in tree.args.args))
    result, *arguments = (words[ast.unparse(kind)] for kind in kinds if kind is not None)
    return f"{result} ({', '.join(arguments)})"


def routines_text(
    routines: Iterable[Routine],
    names: Mapping[str, int | str] | None = None,
    exported: Mapping[str, str] | None = None,
) -> str:
    """Routines as text of an LLVM module; `joined` puts it together with others.

    Args:
        names: what names stand for: numbers, or addresses of the module ("@name").
        exported: symbols of those that other objects see, by name; all others are internal.

    Raises:
        TranslationError: a routine is not in the subset.
    """
    exported, parts = exported or {}, list[str]()
    for one in (given := list(routines)):
        constants = {**one.function.__globals__, **(names or {}), **one.names}
        for name, value in constants.items():
            if isinstance(value, Routine) and value.symbol in exported and value in given:
                constants[name] = value.named(exported[value.symbol])
        symbol = exported.get(one.symbol, one.symbol)
        source = FunctionSource.of(one.function)
        translated = _RoutineTranslator(source, ir.Module(symbol), symbol, constants, {})
        if one.symbol not in exported:
            translated.function.linkage = "internal"
        parts += map(str, translated.function.module.functions)
    return joined(re.sub(r'([@%])"([\w.$]+)"', r"\1\2", "\n".join(parts)))


def joined(*parts: str) -> str:
    """Parts of a module's text: what one declares and another defines is not declared, and what
    several declare is declared once."""
    text = "\n".join(parts)
    seen = set(re.findall(r"^define [^@\n]*@([\w.$]+)\(", text, re.M))
    lines = []
    for line in text.splitlines():
        if match := re.match(r"declare [^@]*@([\w.$]+)\(", line):
            if match[1] in seen:
                continue
            seen.add(match[1])
        lines.append(line)
    return "\n".join(lines) + "\n"
