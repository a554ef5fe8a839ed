"""Intrinsics: instructions that a schedule may tensorize with, as specifications.

A specification says what one instruction computes (a block of the loop IR over its operands), in
which memories each operand may be, which engines execute it, and how large each dimension may be:

    tensor.matmul   psum[m, n] += stationary[k, m] * moving[k, n]      K, M <= array, N <= one bank

`match` finds which loops of a tensorized statement play which part; `fits` says whether a block has
an instruction's form, whatever its loops: how code generators select. Which instructions there are
is for each family to say (`search_space.ir.family`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import (
    Call,
    Load,
    Scalar,
    Select,
    check_reducer,
    loads,
)
from tilesmith.search_space.ir.program import Block, Buffer, Intrinsic, Loop, Statement
from tilesmith.search_space.support.errors import VerificationError


@dataclass(frozen=True)
class IntrinsicSpec:
    """One instruction.

    Attributes:
        body: its meaning, for any number that stands in it and any condition. An operand without
            indices may be indexed in any way (HBM); a pointwise instruction computes any function
            of operands indexed like its output, or by partition.
        scopes: memories allowed for each operand of `body`, by name; none where code generation
            finds out by itself whether it can use the instruction.
        engines: that execute it.
        limits: dimension of `body` -> name of the limit in the family's `limits`.
        pointwise: see `body`.
        reducers: that it reduces by, where the body shows one of several.
    """

    name: str
    body: Block
    scopes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    engines: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    pointwise: bool = False
    reducers: tuple[str, ...] = ()

    def __str__(self) -> str:
        value = "f(operands)" if self.pointwise else str(self.body.value)
        sign = "+=" if self.body.reducer == "sum" else "="
        return f"{self.body.write} {sign} {value}"


def computes(value: Scalar, *indices: Expr, reducer: str | None = None) -> Block:
    """The body of a specification: `out[indices] = value`, or `reducer=` into it.

    Raises:
        ScheduleError: the reducer is none of `REDUCERS`.
    """
    check_reducer(reducer, f"the instruction that computes {value}")
    return Block("", "out", indices, value, reducer)


@dataclass(frozen=True)
class Match:
    """A tensorized statement read as its instruction.

    Attributes:
        block: the statement's block.
        operands: accesses by the specification's names; a pointwise one's inputs in order.
        loops: dimension of the specification ("k", "m", ...) -> its loops, outermost first.
    """

    block: Block
    operands: tuple[tuple[str, Load], ...]
    loops: Mapping[str, tuple[Loop, ...]]


def match(spec: IntrinsicSpec, statement: Intrinsic, buffers: Mapping[str, Buffer]) -> Match:
    """Read a tensorized statement as its instruction.

    Raises:
        VerificationError: it is no plain loop nest around one block, computes something else, or
            has an operand in a memory the instruction cannot reach.
    """
    loops, block = _nest(statement)
    pairs = _operands(spec, block)
    dimensions: dict[str, str] = {}
    for name, pattern, access in pairs:
        scope = buffers[access.buffer].scope
        if scope not in spec.scopes[name]:
            raise VerificationError(
                f"intrinsic '{spec.name}' in stage '{block.stage}': {name} is '{access.buffer}' in "
                f"{scope}; allowed: {', '.join(spec.scopes[name])}"
            )
        _assign(spec, block, pattern, access, {loop.variable for loop in loops}, dimensions)
    groups: dict[str, list[Loop]] = {str(d): [] for d in spec.limits}
    for loop in loops:
        if loop.variable in dimensions:
            groups.setdefault(dimensions[loop.variable], []).append(loop)
    return Match(
        block,
        tuple((name, access) for name, _, access in pairs),
        {name: tuple(group) for name, group in groups.items()},
    )


def _nest(statement: Intrinsic) -> tuple[list[Loop], Block]:
    loops: list[Loop] = []
    inner: Statement = statement.body
    while isinstance(inner, Loop):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, Block):
        raise VerificationError(
            f"intrinsic '{statement.name}' must hold loops around one block, "
            f"not a {type(inner).__name__}"
        )
    return loops, inner


def _operands(spec: IntrinsicSpec, block: Block) -> list[tuple[str, Load, Load]]:
    """`operands` of a block that must be the instruction."""
    matched = operands(spec, block)
    if matched is None:
        raise VerificationError(
            f"intrinsic '{spec.name}' computes {spec}, not {block.write} "
            f"{'=' if block.reducer is None else block.reducer + '='} {block.value}"
        )
    return matched


def operands(spec: IntrinsicSpec, block: Block) -> list[tuple[str, Load, Load]] | None:
    """(name, its access in the specification, the access here) of every operand, the result first;
    None where the block has another form.
    """
    if block.reducer != spec.body.reducer and block.reducer not in spec.reducers:
        return None
    matched = [("out", spec.body.write, block.write)]
    if spec.pointwise:
        source = next(loads(spec.body.value))
        matched += [(source.buffer, source, access) for access in loads(block.value)]
        return matched if _plain(block.value) else None
    if not _same(spec.body.value, block.value):
        return None
    pairs = zip(loads(spec.body.value), loads(block.value), strict=True)
    return matched + [(pattern.buffer, pattern, access) for pattern, access in pairs]


def fits(spec: IntrinsicSpec, block: Block, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a block computes what an instruction does, of operands where it reaches them."""
    if buffers[block.buffer].scope not in spec.scopes.get("out", ()):
        return False
    matched = operands(spec, block)
    return matched is not None and all(
        buffers[access.buffer].scope in spec.scopes[name] for name, _, access in matched
    )


def _plain(value: Scalar) -> bool:
    """Whether no part of a value is chosen by position, or picked by an index in memory."""
    if isinstance(value, Call):
        return all(map(_plain, value.arguments))
    return not isinstance(value, Select) and not (isinstance(value, Load) and _picks(value))


@lru_cache(maxsize=4096)
def _picks(access: Load) -> bool:
    """Whether an index of it is read from memory."""
    return any(atom.kind == "element" for index in access.indices for atom in index.atoms())


def _same(pattern: Scalar, value: Scalar) -> bool:
    """Whether two scalars have one form, whatever their indices, numbers and conditions."""
    match pattern, value:
        case Call(), Call():
            return pattern.function == value.function and all(
                _same(a, b) for a, b in zip(pattern.arguments, value.arguments, strict=True)
            )
        case Select(), Select():
            return _same(pattern.then, value.then) and _same(pattern.otherwise, value.otherwise)
        case Load(), Load():
            return _picks(pattern) == _picks(value)
        case _:
            return type(pattern) is type(value)


def _assign(
    spec: IntrinsicSpec,
    block: Block,
    pattern: Load,
    access: Load,
    variables: set[str],
    dimensions: dict[str, str],
) -> None:
    """Give the loops that move an access to the dimensions of its pattern."""
    if not pattern.indices or _picks(pattern):
        return
    for position, index in enumerate(access.indices):
        dimension = str(pattern.indices[min(position, len(pattern.indices) - 1)])
        for variable in index.variables() & variables:
            known = dimensions.setdefault(variable, dimension)
            if known != dimension:
                raise VerificationError(
                    f"intrinsic '{spec.name}' in stage '{block.stage}' computes {spec}; loop "
                    f"'{variable}' runs along {known} elsewhere and along {dimension} in {access}"
                )
