"""Writes LLVM instructions, one line each, at the end of a basic block.

Methods are named like the instructions and llvmlite's builder. Operands of arithmetic have one
type. Flags are LLVM's words, as in "contract nsz".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tilesmith.codegen.llvm.text.ir import (
    BOOL,
    POINTER,
    BasicBlock,
    Function,
    Module,
    Type,
    Value,
    VectorType,
    scalar_of,
    vector,
)

_SIGNED = {"==": "eq", "!=": "ne", "<": "slt", "<=": "sle", ">": "sgt", ">=": "sge"}
_UNSIGNED = {sign: word.replace("s", "u", 1) for sign, word in _SIGNED.items()} | {
    "==": "eq", "!=": "ne"
}  # fmt: skip
_FLOAT = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


class Phi(Value):
    """A value that depends on the block control came from."""

    __slots__ = ("_block", "_incoming", "_line")

    def __init__(self, kind: Type, text: str, block: BasicBlock) -> None:
        super().__init__(kind, text)
        self._block, self._line = block, len(block.lines)
        self._incoming: list[str] = []
        block.lines.append("")

    def add_incoming(self, value: Value, block: BasicBlock) -> None:
        """The value it has when control comes from `block`."""
        self._incoming.append(f"[ {value.text}, %{block.label} ]")
        self._block.lines[self._line] = (
            f"  {self.text} = phi {self.type} {', '.join(self._incoming)}"
        )


def _binary(word: str) -> Callable[..., Value]:
    """A method of `Builder` that emits an instruction of two operands of one type."""

    def emit(builder: "Builder", left: Value, right: Value, *, flags: str = "") -> Value:
        kind = left.type
        return builder._value(kind, f"{_word(word, flags)} {kind.text} {left.text}, {right.text}")

    return emit


class Builder:
    """Appends to `block`."""

    def __init__(self, block: BasicBlock) -> None:
        self.block = block
        self._function = block.function

    @property
    def module(self) -> Module:
        """The module of the function that is written."""
        return self._function.module

    def append_block(self, name: str) -> BasicBlock:
        """A new block at the end of the function."""
        return self._function.append_block(name)

    def position_at_end(self, block: BasicBlock) -> None:
        """Write into `block` from here on."""
        self.block = block

    def _name(self) -> str:
        function = self._function
        function.names += 1
        return f"%v{function.names}"

    def _value(self, kind: Type, text: str) -> Value:
        name = self._name()
        self.block.lines.append(f"  {name} = {text}")
        return Value(kind, name)

    add, sub, mul = _binary("add"), _binary("sub"), _binary("mul")
    sdiv, udiv, srem, urem = _binary("sdiv"), _binary("udiv"), _binary("srem"), _binary("urem")
    and_, or_, xor = _binary("and"), _binary("or"), _binary("xor")
    shl, ashr, lshr = _binary("shl"), _binary("ashr"), _binary("lshr")
    fadd, fsub, fmul, fdiv = _binary("fadd"), _binary("fsub"), _binary("fmul"), _binary("fdiv")

    def fneg(self, value: Value) -> Value:
        return self._value(value.type, f"fneg {value.type} {value.text}")

    # -- comparisons and choices --------------------------------------------------------------
    def icmp_signed(self, sign: str, left: Value, right: Value) -> Value:
        return self._compare(f"icmp {_SIGNED[sign]}", left, right)

    def icmp_unsigned(self, sign: str, left: Value, right: Value) -> Value:
        return self._compare(f"icmp {_UNSIGNED[sign]}", left, right)

    def fcmp_ordered(self, sign: str, left: Value, right: Value) -> Value:
        return self._compare(f"fcmp o{_FLOAT[sign]}", left, right)

    def fcmp_unordered(self, sign: str, left: Value, right: Value) -> Value:
        return self._compare(f"fcmp u{_FLOAT[sign]}", left, right)

    def _compare(self, word: str, left: Value, right: Value) -> Value:
        kind = vector(BOOL, left.type.count) if isinstance(left.type, VectorType) else BOOL
        return self._value(kind, f"{word} {left.type} {left.text}, {right.text}")

    def select(self, bits: Value, then: Value, otherwise: Value, *, flags: str = "") -> Value:
        return self._value(
            then.type,
            f"{_word('select', flags)} {bits.type} {bits.text}, {then.type} {then.text}, "
            f"{otherwise.type} {otherwise.text}",
        )

    def phi(self, kind: Type) -> Phi:
        return Phi(kind, self._name(), self.block)

    # -- conversions --------------------------------------------------------------------------
    def convert(self, word: str, value: Value, kind: Type) -> Value:
        """zext | sext | trunc | bitcast | uitofp | sitofp | fptosi."""
        return self._value(kind, f"{word} {value.type} {value.text} to {kind}")

    def freeze(self, value: Value) -> Value:
        """Some value of its type where LLVM leaves it undefined."""
        return self._value(value.type, f"freeze {value.type} {value.text}")

    # -- vectors ------------------------------------------------------------------------------
    def extract_element(self, value: Value, position: Value) -> Value:
        kind = scalar_of(value.type)
        return self._value(
            kind, f"extractelement {value.type} {value.text}, {position.type} {position.text}"
        )

    def insert_element(self, value: Value, element: Value, position: Value) -> Value:
        return self._value(
            value.type,
            f"insertelement {value.type} {value.text}, {element.type} {element.text}, "
            f"{position.type} {position.text}",
        )

    def shuffle_vector(self, one: Value, two: Value, order: Value) -> Value:
        assert isinstance(one.type, VectorType) and isinstance(order.type, VectorType)
        return self._value(
            vector(one.type.element, order.type.count),
            f"shufflevector {one.type} {one.text}, {two.type} {two.text}, "
            f"{order.type} {order.text}",
        )

    # -- memory -------------------------------------------------------------------------------
    def alloca(self, kind: Type, align: int | None = None, count: int = 1) -> Value:
        """`count` elements of a type on the stack."""
        many = f", i64 {count}" if count > 1 else ""
        return self._value(POINTER, f"alloca {kind}{many}{_aligned(align)}")

    def load(self, address: Value, kind: Type, align: int | None = None) -> Value:
        return self._value(kind, f"load {kind.text}, ptr {address.text}{_aligned(align)}")

    def load_within(self, address: Value, kind: Type, ends: tuple[int, int]) -> Value:
        """An integer known to be from the first end on and below the second."""
        within = f"!range !{{{kind.text} {ends[0]}, {kind.text} {ends[1]}}}"
        return self._value(kind, f"load {kind.text}, ptr {address.text}, {within}")

    def store(self, value: Value, address: Value, align: int | None = None) -> int:
        """Returns the number of the line in its block, for `drop`."""
        lines = self.block.lines
        lines.append(f"  store {value.type.text} {value.text}, ptr {address.text}{_aligned(align)}")
        return len(lines) - 1

    def drop(self, line: int) -> None:
        """Take a line of the current block back."""
        self.block.lines[line] = ""

    def gep(self, base: Value, offset: Value, kind: Type, inbounds: bool = False) -> Value:
        """The address `offset` elements of `kind` after `base`."""
        word = "getelementptr inbounds" if inbounds else "getelementptr"
        return self._value(
            POINTER, f"{word} {kind.text}, ptr {base.text}, {offset.type.text} {offset.text}"
        )

    def atomic_rmw(self, word: str, address: Value, value: Value, ordering: str) -> Value:
        return self._value(
            value.type,
            f"atomicrmw {word} ptr {address.text}, {value.type} {value.text} {ordering}",
        )

    def load_atomic(self, address: Value, kind: Type, ordering: str, align: int) -> Value:
        return self._value(
            kind, f"load atomic {kind}, ptr {address.text} {ordering}, align {align}"
        )

    def keep_order(self) -> None:
        """No memory access crosses this point while LLVM compiles; no instruction comes of it."""
        self.block.lines.append('  fence syncscope("singlethread") acq_rel')

    # -- control ------------------------------------------------------------------------------
    def call(self, function: Function, arguments: Sequence[Value], flags: str = "") -> Value:
        """A call; its value where the function has one."""
        given = ", ".join([f"{a.type.text} {a.text}" for a in arguments])
        text = f"{_word('call', flags)} {function.result.text} {function.text}({given})"
        if function.result.text != "void":
            return self._value(function.result, text)
        self.block.lines.append(f"  {text}")
        return Value(function.result, "void")

    def _terminate(self, text: str) -> None:
        self.block.lines.append(f"  {text}")
        self.block.is_terminated = True

    def ret_void(self) -> None:
        self._terminate("ret void")

    def branch(self, block: BasicBlock) -> None:
        self._terminate(f"br label %{block.label}")

    def cbranch(
        self, condition: Value, then: BasicBlock, otherwise: BasicBlock, likely: bool | None = None
    ) -> None:
        weights = {None: "", True: ", !prof !0", False: ", !prof !1"}[likely]
        self._terminate(
            f"br i1 {condition.text}, label %{then.label}, label %{otherwise.label}{weights}"
        )

    @contextmanager
    def if_then(self, condition: Value, likely: bool | None = None) -> Iterator[None]:
        """What is written inside runs under the condition."""
        then, after = self.append_block("then"), self.append_block("after")
        self.cbranch(condition, then, after, likely)
        self.position_at_end(then)
        yield
        if not self.block.is_terminated:
            self.branch(after)
        self.position_at_end(after)

    @contextmanager
    def if_else(self, condition: Value) -> "Iterator[tuple[_Side, _Side]]":
        """Two contexts, one for each outcome, to be entered one after the other."""
        then, otherwise, after = (self.append_block(n) for n in ("then", "else", "after"))
        self.cbranch(condition, then, otherwise)
        yield _Side(self, then, after), _Side(self, otherwise, after)
        self.position_at_end(after)


class _Side:
    """One side of an `if_else`, as a context."""

    def __init__(self, builder: Builder, block: BasicBlock, after: BasicBlock) -> None:
        self._builder = builder
        self._block = block
        self._after = after

    def __enter__(self) -> None:
        self._builder.position_at_end(self._block)

    def __exit__(self, *error: object) -> None:
        if not self._builder.block.is_terminated:
            self._builder.branch(self._after)


def _word(instruction: str, flags: str) -> str:
    return f"{instruction} {flags}" if flags else instruction


def _aligned(align: int | None) -> str:
    return "" if align is None else f", align {align}"
