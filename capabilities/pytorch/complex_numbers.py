"""Operators of complex numbers that PyTorch's exporter has functions for of real ones alone.

The exporter writes complex numbers as pairs of real ones along a last axis. Rules here (see
`decompositions`) state the operators by such pairs, and leave real numbers as they are. Invariant:
axes count from the front, for the pairs are one axis more at the end.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

Rule = Callable[..., Any]


def _joined(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.contiguous())


def _alike(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both complex, of one type."""
    kind = torch.promote_types(a.dtype, b.dtype)
    return a.to(kind), b.to(kind)


def _moved(move: Rule) -> Rule:
    """A rule for an operator that moves elements: the same of pairs."""

    def rule(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not x.is_complex():
            return NotImplemented
        moved = move(torch.view_as_real(x), x.dim(), *args, **kwargs)
        return NotImplemented if moved is NotImplemented else _joined(moved)

    return rule


def _indexed(pairs: Tensor, rank: int, indices: Any) -> Tensor:
    return pairs[tuple(slice(None) if index is None else index for index in indices)]


def _squeezed(pairs: Tensor, rank: int, axes: Any) -> Tensor:
    return pairs.squeeze([axis % max(rank, 1) for axis in axes])


def _written(x: Tensor, source: Tensor, axis: int = 0, *place: Any, **bounds: Any) -> Any:
    """Numbers of a tensor replaced, of which one is complex."""
    if not x.is_complex():
        return NotImplemented
    pairs, new = map(torch.view_as_real, _alike(x, source))
    return _joined(torch.slice_scatter(pairs, new, axis % x.dim(), *place, **bounds))


def _filled(size: Any, value: Any, *, dtype: Any = None, **_: Any) -> Any:
    if not (isinstance(value, complex) or (dtype is not None and dtype.is_complex)):
        return NotImplemented
    kind = (dtype or torch.complex64).to_real()
    return torch.complex(*(torch.full(size, n, dtype=kind) for n in (value.real, value.imag)))


def _copied(x: Tensor, source: Tensor, *_: Any) -> Any:
    if not x.is_complex():
        return NotImplemented
    pairs = torch.view_as_real(source.to(x.dtype))
    return _joined(pairs.expand(*x.shape, 2))


def _padded(pairs: Tensor, rank: int, pads: Any, mode: Any = 0, value: Any = 0) -> Any:
    """Of `aten.pad` with a mode, of `aten.constant_pad_nd` with a number in its place."""
    if value or mode not in (0, "constant"):
        return NotImplemented
    return torch.nn.functional.pad(pairs, [0, 0, *pads])


def _by_parts(product: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    """A rule for a product of two, linear in both."""

    def rule(a: Tensor, b: Tensor) -> Any:
        if not a.is_complex() and not b.is_complex():
            return NotImplemented
        a, b = _alike(a, b)
        real = product(a.real, b.real) - product(a.imag, b.imag)
        return torch.complex(real, product(a.real, b.imag) + product(a.imag, b.real))

    return rule


def einsum(equation: str, operands: Any) -> Any:
    """Sums of products of two operands, of which one is complex."""
    if len(operands) != 2:
        return NotImplemented
    return _by_parts(lambda a, b: torch.einsum(equation, [a, b]))(*operands)


def _polar(size: Tensor, angle: Tensor) -> Tensor:
    return torch.complex(size * angle.cos(), size * angle.sin())


def _of(function: Callable[[Tensor], Tensor]) -> Rule:
    """A rule for a function of one complex number."""
    return lambda z: function(z) if z.is_complex() else NotImplemented


def _power(z: Tensor, exponent: Any) -> Any:
    if not z.is_complex() or not isinstance(exponent, int | float):
        return NotImplemented
    if exponent == 2:
        return z * z
    return _polar(z.abs().pow(exponent), z.angle() * exponent)


def _where(flag: Tensor, a: Tensor, b: Tensor) -> Any:
    if not a.is_complex() and not b.is_complex():
        return NotImplemented
    return _joined(torch.where(flag.unsqueeze(-1), *map(torch.view_as_real, _alike(a, b))))


RULES: dict[Any, Rule] = {
    aten.unsqueeze.default: _moved(lambda p, rank, axis: p.unsqueeze(axis % (rank + 1))),
    aten.squeeze.default: _moved(lambda p, rank: _squeezed(p, rank, range(rank))),
    aten.squeeze.dims: _moved(_squeezed),
    aten.expand.default: _moved(lambda p, rank, sizes, **_: p.expand(*sizes, 2)),
    aten.repeat.default: _moved(lambda p, rank, times: p.repeat(*times, 1)),
    aten.select.int: _moved(lambda p, rank, axis, place: p.select(axis % rank, place)),
    aten.index.Tensor: _moved(_indexed),
    aten.index_select.default: _moved(
        lambda p, rank, axis, index: p.index_select(axis % max(rank, 1), index)
    ),
    aten.pad.default: _moved(_padded),
    aten.constant_pad_nd.default: _moved(_padded),
    aten.cumsum.default: _moved(lambda p, rank, axis, **_: p.cumsum(axis % max(rank, 1))),
    aten.where.self: _where,
    aten.slice_scatter.default: _written,
    aten.copy.default: _copied,
    aten.zeros.default: lambda size, **asked: _filled(size, 0, **asked),
    aten.ones.default: lambda size, **asked: _filled(size, 1, **asked),
    aten.full.default: _filled,
    aten.full_like.default: lambda x, value, dtype=None, **_: _filled(
        x.shape, value, dtype=dtype or x.dtype
    ),
    aten.mm.default: _by_parts(torch.mm),
    aten.bmm.default: _by_parts(torch.bmm),
    aten.exp.default: _of(lambda z: _polar(z.real.exp(), z.imag)),
    aten.log.default: _of(lambda z: torch.complex(z.abs().log(), z.angle())),
    aten.sqrt.default: _of(lambda z: _polar(z.abs().sqrt(), z.angle() / 2)),
    aten.pow.Tensor_Scalar: _power,
}
"""Rules by operator, which answer `NotImplemented` for real numbers."""
