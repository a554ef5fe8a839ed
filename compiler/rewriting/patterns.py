"""Patterns: formulas of ONNX operators as text, and the one matcher that recognises them.

    Patterns(("0.5 * x * (1 + Erf(x * 0.70710678))", "gelu"))

A pattern is a Python expression:

    x                     one letter: a tensor, the same wherever it stands
    3.0                   a float32 constant of that one number, up to single precision
    epsilon               a word: any such constant, whose number is told
    a * b, a / b, -a      factors in any order, by way of Mul, Div, Neg and Reciprocal
    a + b, a - b          Add, in either order; Sub
    a ** 2                Pow, or a product of equal tensors
    mean(a)               ReduceMean, as `sum` and `max`: over the last axis, which is kept
    Clip(a, 0, 6)         an operator of ONNX and its operands
    Swish(a, alpha=1)     attributes, or what the standard takes where they are left out

Invariants: a match changes nothing; nodes may have other readers.
"""

import ast
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import onnx.defs
from onnx import helper

from tilesmith.compiler.graph.access import axes, clip_bounds, uniform
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.rewrite import Rewriter

_DEPTH = 4
"""Operators that a product is looked through."""

_REDUCTIONS = {"mean": "ReduceMean", "sum": "ReduceSum", "max": "ReduceMax"}


@dataclass(frozen=True)
class Bindings:
    """What the names of a pattern stand for."""

    tensors: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Product:
    """A constant times tensors (or what patterns say of them), divided by others."""

    constant: float = 1.0
    over: tuple[Any, ...] = ()
    under: tuple[Any, ...] = ()

    def times(self, other: "_Product") -> "_Product":
        constant = self.constant * other.constant
        return _Product(constant, self.over + other.over, self.under + other.under)

    def inverse(self) -> "_Product":
        return _Product(1 / self.constant if self.constant else math.nan, self.under, self.over)


class Patterns:
    """Formulas, and what each is called.

    Attributes:
        roots: operators of nodes that may compute one of them.
    """

    def __init__(self, *rows: tuple[str, str]) -> None:
        self._rows = [(_parsed(text), name) for text, name in rows]
        self.roots = tuple(dict.fromkeys(root for tree, _ in self._rows for root in _roots(tree)))

    def matches(self, rewriter: Rewriter, node: Node) -> Iterator[tuple[str, Bindings]]:
        """What a node computes, and what the names of the formula stand for there."""
        matcher = _Matcher(rewriter)
        for tree, name in self._rows:
            if node.is_onnx(*_roots(tree)):
                for match in matcher.matches(tree, node.writes[0], Bindings()):
                    yield name, match


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@cache
def _roots(tree: ast.expr) -> tuple[str, ...]:
    match tree:
        case ast.BinOp(op=ast.Mult() | ast.Div()):
            return ("Mul", "Div", "Reciprocal")
        case ast.BinOp(op=op):
            return ("Add",) if isinstance(op, ast.Add) else ("Sub",)
        case ast.Call(func=ast.Name(id=name)):
            return (_REDUCTIONS.get(name, name),)
    raise ValueError(f"'{ast.unparse(tree)}' is no operator")


@cache
def _products(tree: ast.expr) -> tuple[_Product, ...]:
    """A pattern as a product: several ones where a power may be written in two ways."""
    match tree:
        case ast.Constant(value=int() | float() as value):
            return (_Product(float(value)),)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return tuple(_Product(-1.0).times(product) for product in _products(inner))
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() as op, right=right):
            pairs = itertools.product(_products(left), _products(right))
            divides = isinstance(op, ast.Div)
            return tuple(a.times(b.inverse() if divides else b) for a, b in pairs)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as count)):
            return (_Product(over=(tree,)), _Product(over=(left,) * count))
    return (_Product(over=(tree,)),)


class _Matcher:
    """Looks for patterns in a graph."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self._known_factors: dict[tuple[str, int], _Product] = {}

    def matches(self, tree: ast.expr, name: str, known: Bindings) -> Iterator[Bindings]:
        """All ways in which a tensor is what a pattern says, beside what is known already."""
        match tree:
            case ast.Name(id=word):
                yield from self._named(word, name, known)
            case ast.Constant(value=int() | float() as value):
                if self._is_near(name, value):
                    yield known
            case ast.Call():
                yield from self._called(tree, name, known)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                node = self.rewriter.producer(name, "Add" if isinstance(op, ast.Add) else "Sub")
                orders = ((left, right), (right, left))[: 2 if isinstance(op, ast.Add) else 1]
                for order in orders if node is not None else ():
                    yield from self._all(order, node.inputs if node else (), known)
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as count)):
                node = self.rewriter.producer(name, "Pow")
                if node is not None and self._is_near(node.inputs[1], count):
                    yield from self.matches(left, node.inputs[0], known)
                yield from self._multiplied(_Product(over=(left,) * count), name, known)
            case _:
                for product in _products(tree):
                    yield from self._multiplied(product, name, known)

    def _named(self, word: str, name: str, known: Bindings) -> Iterator[Bindings]:
        if len(word) == 1:
            if known.tensors.get(word, name) == name:
                yield Bindings({**known.tensors, word: name}, known.numbers)
        elif (number := uniform(self.rewriter.constant, name)) is not None:
            yield Bindings(known.tensors, {**known.numbers, word: number})

    def _is_near(self, name: str, value: float) -> bool:
        number = uniform(self.rewriter.constant, name)
        return number is not None and _is_close(number, value)

    def _all(
        self, trees: Sequence[Any], names: Sequence[str], known: Bindings
    ) -> Iterator[Bindings]:
        """Each tensor is what the pattern at its place says."""
        if not trees:
            yield known
            return
        for first in self.matches(trees[0], names[0], known):
            yield from self._all(trees[1:], names[1:], first)

    def _called(self, tree: ast.Call, name: str, known: Bindings) -> Iterator[Bindings]:
        assert isinstance(tree.func, ast.Name)
        operator = _REDUCTIONS.get(tree.func.id, tree.func.id)
        node, operands = self.rewriter.producer(name, operator), tree.args
        if node is None or not all(_states(node, keyword) for keyword in tree.keywords):
            return
        if tree.func.id in _REDUCTIONS and not is_of_rows(self.rewriter, node):
            return
        if operator == "Clip":
            bounds = tuple(ast.literal_eval(bound) for bound in operands[1:])
            if clip_bounds(node, self.rewriter.constant) != bounds:
                return
            operands = operands[:1]
        yield from self._all(operands, node.inputs, known)

    def _multiplied(self, product: _Product, name: str, known: Bindings) -> Iterator[Bindings]:
        """Looked through from the outermost operator on, as far as it is a product."""
        before = None
        for depth in range(1, _DEPTH + 1):
            factors = self._factors(name, depth)
            if factors == before:
                return
            before = factors
            counts = [(len(part.over), len(part.under)) for part in (factors, product)]
            if counts[0] == counts[1] and _is_close(factors.constant, product.constant):
                for over in itertools.permutations(factors.over):
                    for under in itertools.permutations(factors.under):
                        pairs = zip((*product.over, *product.under), (*over, *under), strict=True)
                        trees, names = zip(*sorted(pairs, key=_is_name), strict=True)
                        yield from self._all(trees, names, known)

    def _factors(self, name: str, depth: int) -> _Product:
        """A tensor as a constant times and over tensors, products looked through."""
        known = self._known_factors.get((name, depth))
        if known is None:
            known = self._known_factors[name, depth] = self._multiplied_out(name, depth)
        return known

    def _multiplied_out(self, name: str, depth: int) -> _Product:
        constant = uniform(self.rewriter.constant, name)
        if constant is not None:
            return _Product(constant)
        node = self.rewriter.producer(name, "Mul", "Div", "Neg", "Reciprocal") if depth else None
        if node is None:
            return _Product(over=(name,))
        first, *others = (self._factors(part, depth - 1) for part in node.inputs)
        if node.operator in ("Neg", "Reciprocal"):
            return _Product(-1.0).times(first) if node.operator == "Neg" else first.inverse()
        return first.times(others[0].inverse() if node.operator == "Div" else others[0])


def _is_close(number: float, value: float) -> bool:
    return math.isclose(number, value, rel_tol=1e-5)


def _is_name(pair: tuple[ast.expr, str]) -> bool:
    """Names come last: they are whatever is left."""
    return isinstance(pair[0], ast.Name)


def _states(node: Node, keyword: ast.keyword) -> bool:
    """Whether a node's attribute has the value of a pattern."""
    assert keyword.arg is not None
    value = ast.literal_eval(keyword.value)
    stated = node.attribute(keyword.arg)
    if stated is None:
        schema = onnx.defs.get_schema(node.operator)
        stated = helper.get_attribute_value(schema.attributes[keyword.arg].default_value)
    if isinstance(value, str):
        return value in (stated, stated.decode() if isinstance(stated, bytes) else "")
    return _is_close(stated, value)


def is_of_rows(rewriter: Rewriter, node: Node) -> bool:
    """Whether a reduction is over the last axis, kept as an extent of one."""
    source = rewriter.info(node.inputs[0])
    if not source.known or not node.attribute("keepdims", 1):
        return False
    return axes(node, len(source.dims), rewriter.constant) == (len(source.dims) - 1,)
