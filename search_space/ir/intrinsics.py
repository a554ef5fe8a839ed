"""Intrinsics: instructions of accelerators that a schedule may tensorize with, as specifications.

A specification says what one instruction computes (a block of the loop IR over its operands), in
which memories each operand may be, which engines execute it, and how large each dimension may be:

    tensor.matmul   psum[m, n] += stationary[k, m] * moving[k, n]      K, M <= array, N <= one bank

An operand in SBUF or PSUM is indexed [partition, free]: its first physical dimension lies across
the partitions, all others within one. `match` finds which loops of a tensorized statement play
which part. CPUs know one: `transpose`, a tile turned in vector registers.

Sources of the limits: AWS Neuron SDK documentation, NKI architecture guide and instruction
reference; the targets carry the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilesmith.search_space.errors import VerificationError
from tilesmith.search_space.ir.expression import Expr, var
from tilesmith.search_space.ir.program import Block, Buffer, Intrinsic, Loop, Statement
from tilesmith.search_space.ir.scalar import Call, Const, Load, Scalar, call, load, loads
from tilesmith.search_space.target import Target

FAMILIES = ("systolic", "trainium")
"""Families of targets with SBUF and PSUM."""

_K, _M, _N, _P, _F = var("k"), var("m"), var("n"), var("p"), var("f")


@dataclass(frozen=True)
class IntrinsicSpec:
    """One instruction.

    Attributes:
        body: its meaning. An operand without indices may be indexed in any way (HBM); a pointwise
            instruction computes any function of operands indexed like its output, or by partition.
        scopes: memories allowed for each operand of `body`, by name.
        engines: that execute it.
        limits: dimension of `body` -> name of the limit in `machine_limits`.
        pointwise: see `body`.
        families: of the targets that have it.
    """

    name: str
    body: Block
    scopes: Mapping[str, tuple[str, ...]]
    engines: tuple[str, ...]
    limits: Mapping[str, str]
    pointwise: bool = False
    families: tuple[str, ...] = FAMILIES

    def __str__(self) -> str:
        value = "f(operands)" if self.pointwise else str(self.body.value)
        sign = "+=" if self.body.reducer == "sum" else "="
        return f"{self.body.write} {sign} {value}"


def _block(value: Scalar, *indices: Expr, reducer: str | None = None) -> Block:
    return Block("", "out", indices, value, reducer)


_ON_CHIP = ("sbuf", "psum")
_PARTITION = {"p": "partitions"}

INTRINSICS: Mapping[str, IntrinsicSpec] = {
    spec.name: spec
    for spec in (
        IntrinsicSpec(
            "tensor.matmul",
            _block(
                call("multiply", load("stationary", _K, _M), load("moving", _K, _N)),
                _M, _N, reducer="sum",
            ),
            {"out": ("psum",), "stationary": ("sbuf",), "moving": ("sbuf",)},
            ("tensor",),
            {"k": "rows", "m": "columns", "n": "moving"},
        ),
        IntrinsicSpec(
            "dma.load",
            _block(Load("source", ()), _P, _F),
            {"out": ("sbuf",), "source": ("hbm",)},
            ("dma",),
            _PARTITION,
        ),
        IntrinsicSpec(
            "dma.store",
            Block("", "out", (), load("source", _P, _F)),
            {"out": ("hbm",), "source": ("sbuf",)},
            ("dma",),
            _PARTITION,
        ),
        IntrinsicSpec(
            "memset",
            _block(Const(0.0), _P, _F),
            {"out": _ON_CHIP},
            ("vector", "gpsimd"),
            _PARTITION,
        ),
        IntrinsicSpec(
            "pointwise",
            _block(load("source", _P, _F), _P, _F),
            {"out": _ON_CHIP, "source": _ON_CHIP},
            ("vector", "scalar", "gpsimd"),
            _PARTITION,
            pointwise=True,
        ),
        IntrinsicSpec(
            "transpose",
            _block(load("source", _N, _M), _M, _N),
            {},
            (),
            {},
            families=("cpu",),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """An on-chip memory: partitions, bytes in each, and bytes of one bank (0: no banks)."""

    partitions: int
    bytes: int
    bank: int = 0


def memories(target: Target) -> dict[str, Memory]:
    """The on-chip memories of an accelerator, by scope."""
    partitions = target.integer("sbuf.partitions")
    sbuf = target.integer("sbuf.mib") * 2**20 // partitions
    psum = target.integer("psum.mib") * 2**20 // partitions
    return {
        "sbuf": Memory(partitions, sbuf),
        "psum": Memory(partitions, psum, psum // target.integer("psum.banks")),
    }


def machine_limits(target: Target) -> dict[str, int]:
    """The largest dimensions of an accelerator's instructions, by the names specifications use."""
    array = "array" if target.family == "systolic" else "tensor"
    bank = memories(target)["psum"].bank
    moving = "tensor.moving_free"
    return {
        "rows": target.integer(f"{array}.rows"),
        "columns": target.integer(f"{array}.cols"),
        "moving": target.integer(moving) if moving in target else bank // 4,
        "partitions": target.integer("sbuf.partitions"),
    }


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


def match(statement: Intrinsic, buffers: Mapping[str, Buffer]) -> Match:
    """Read a tensorized statement as its instruction.

    Raises:
        VerificationError: it is no plain loop nest around one block, computes something else, or
            has an operand in a memory the instruction cannot reach.
    """
    spec = INTRINSICS[statement.name]
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
    found: dict[str, list[Loop]] = {str(d): [] for d in spec.limits}
    for loop in loops:
        if loop.variable in dimensions:
            found.setdefault(dimensions[loop.variable], []).append(loop)
    return Match(
        block,
        tuple((name, access) for name, _, access in pairs),
        {name: tuple(group) for name, group in found.items()},
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
    """(name, its access in the specification, the access here) of every operand."""
    found = [("out", spec.body.write, block.write)]
    if spec.pointwise:
        source = next(loads(spec.body.value))
        same = block.reducer is None
        found += [(source.buffer, source, access) for access in loads(block.value)]
    else:
        same = block.reducer == spec.body.reducer and _same(spec.body.value, block.value)
        pairs = zip(loads(spec.body.value), loads(block.value), strict=True)
        found += [(pattern.buffer, pattern, access) for pattern, access in pairs] if same else []
    if not same:
        raise VerificationError(
            f"intrinsic '{spec.name}' computes {spec}, not {block.write} "
            f"{'=' if block.reducer is None else block.reducer + '='} {block.value}"
        )
    return found


def _same(pattern: Scalar, value: Scalar) -> bool:
    """Whether two scalars have one form, whatever their loads and numbers."""
    if isinstance(pattern, Call) and isinstance(value, Call):
        return pattern.function == value.function and all(
            _same(a, b) for a, b in zip(pattern.arguments, value.arguments, strict=True)
        )
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
    if not pattern.indices:
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
