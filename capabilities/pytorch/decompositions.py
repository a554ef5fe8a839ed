"""Operators of PyTorch's that ONNX has no form for, or that its exporter writes wrongly, by others.

The table is given to `ExportedProgram.run_decompositions` before a program is written: each rule
takes the operator's own arguments and computes the same by operators that can be written, or
answers `NotImplemented` for arguments it does not serve. Invariant: a rule gives what the operator
gives, to rounding, for every argument that it takes; sizes may be symbolic where nothing says
otherwise.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesmith.capabilities.pytorch import complex_numbers, resizing

aten = torch.ops.aten

Rule = Callable[..., Any]

_RULES: dict[Any, Rule] = {}
_GATHERED = 1 << 24
"""Numbers of weights that are gathered for the rows of a grouped product, at most: beyond, one
product a group, as PyTorch computes it, moves less."""


def rules() -> dict[Any, Rule]:
    """By operator; those of libraries that are not imported are left out."""
    table = {**complex_numbers.RULES, **resizing.RULES, **_RULES}
    for library, name in (("transformers", "grouped_mm_fallback"),):
        operator = getattr(getattr(torch.ops, library), name, None)
        if operator is not None:
            table[operator.default] = _grouped_product
    return table


def _rule(*operators: Any) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(operators, rule))
        return rule

    return register


# -- scattering ----------------------------------------------------------------------------------
@_rule(aten.scatter_reduce.two)
def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Means by sums and counts; what is not to take part is replaced by what changes nothing."""
    part = _read(source, index)
    if reduce != "mean":
        if not include_self:
            x = x.scatter(dim, index, _neutral(reduce, x.dtype))
        elif part is source:
            return NotImplemented
        return x.scatter_reduce(dim, index, part, reduce, include_self=True)
    ones = torch.ones_like(x, dtype=torch.int64)
    more = torch.ones_like(index)
    if not include_self:
        x, ones = x.scatter(dim, index, 0), ones.scatter(dim, index, 0)
    total = x.scatter_add(dim, index, part)
    count = ones.scatter_add(dim, index, more)
    if x.dtype.is_floating_point:
        return total / count.to(x.dtype)
    return torch.div(total, count, rounding_mode="floor").to(x.dtype)


def _read(source: Tensor, index: Tensor) -> Tensor:
    """The corner of a scatter's source that it reads: the source may be larger than the index."""
    if source.shape == index.shape:
        return source
    return source[tuple(slice(size) for size in index.shape)]


@_rule(aten.scatter.src)
def _scatter(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    part = _read(source, index)
    return NotImplemented if part is source else x.scatter(dim, index, part)


@_rule(aten.scatter_add.default)
def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    part = _read(source, index)
    return NotImplemented if part is source else x.scatter_add(dim, index, part)


def _neutral(reduce: str, dtype: torch.dtype) -> float | int | bool:
    """What a reduction is not changed by."""
    if reduce in ("sum", "prod"):
        return int(reduce == "prod")
    if dtype is torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    limits = torch.iinfo(dtype)
    return int(limits.min if reduce == "amax" else limits.max)


# -- elements ------------------------------------------------------------------------------------
@_rule(aten.fmax.default)
def _fmax(a: Tensor, b: Tensor) -> Tensor:
    """What is no number gives way."""
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, torch.maximum(a, b)))


@_rule(aten.fmin.default)
def _fmin(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, torch.minimum(a, b)))


@_rule(aten.hypot.default)
def _hypot(a: Tensor, b: Tensor) -> Tensor:
    """By the larger side, that no square overflows; one endless side is enough."""
    a, b = a.abs(), b.abs()
    large = torch.maximum(a, b)
    scale = torch.where(large == 0, torch.ones_like(large), large)
    length = large * ((a / scale).square() + (b / scale).square()).sqrt()
    return torch.where(a.isinf() | b.isinf(), math.inf, length)


_ERFINV = (
    (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 2.1858087e-04,
     -1.25372503e-03, -4.17768164e-03, 0.246640727, 1.50140941),
    (-2.00214257e-04, 1.00950558e-04, 1.34934322e-03, -3.67342844e-03, 5.73950773e-03,
     -7.6224613e-03, 9.43887047e-03, 1.00167406, 2.83297682),
)  # fmt: skip
"""erfinv(y) / y where w = -log(1 - y^2) is below 5, by w - 2.5, and beyond, by sqrt(w) - 3, highest
power first: M. Giles, "Approximating the erfinv function" (2010)."""


@_rule(aten.erfinv.default)
def _inverse_error_function(y: Tensor) -> Any:
    if y.dtype is not torch.float32:
        return NotImplemented
    w = -((1 - y) * (1 + y)).log()

    def polynomial(at: Tensor, coefficients: tuple[float, ...]) -> Tensor:
        total = torch.full_like(y, coefficients[0])
        for coefficient in coefficients[1:]:
            total = total * at + coefficient
        return total

    near, far = polynomial(w - 2.5, _ERFINV[0]), polynomial(w.sqrt() - 3, _ERFINV[1])
    return torch.where(y.abs() == 1, y * math.inf, torch.where(w < 5, near, far) * y)


@_rule(aten.median.default)
def _median(x: Tensor) -> Any:
    """The lower of the middle two; what is no number is a result of all."""
    count = x.numel()
    if not isinstance(count, int) or count == 0 or x.dtype is torch.bool:
        return NotImplemented
    middle = x.flatten().sort().values[(count - 1) // 2]
    return torch.where(x.isnan().any(), math.nan, middle) if x.is_floating_point() else middle


@_rule(aten.split.Tensor, aten.split_with_sizes.default)
def _split(x: Tensor, sizes: Any, dim: int = 0) -> Any:
    """By slices; the exporter gives a sequence, which fewer passes see through."""
    extent = x.shape[dim]
    if not isinstance(sizes, list | tuple):
        if not isinstance(extent, int) or not isinstance(sizes, int) or not extent or not sizes:
            return NotImplemented
        sizes = [min(sizes, extent - start) for start in range(0, extent, sizes)]
    ends = list(itertools.accumulate(sizes))
    return [x.narrow(dim, end - size, size) for end, size in zip(ends, sizes, strict=True)]


# -- questions -----------------------------------------------------------------------------------
@_rule(aten._is_all_true.default)
def _is_all_true(x: Tensor) -> Tensor:
    return x.all()


@_rule(aten._is_any_true.default)
def _is_any_true(x: Tensor) -> Tensor:
    return x.any()


# -- ranges --------------------------------------------------------------------------------------
@_rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(*bounds: Any, dtype: Any = None, **_: Any) -> Any:
    """By double numbers, as PyTorch counts; the exporter counts by those of the result."""
    if len(bounds) == 1:
        bounds = (0, *bounds)
    start, end, step = bounds if len(bounds) == 3 else (*bounds, 1)
    if not any(isinstance(bound, float) for bound in (start, end, step)):
        return NotImplemented
    count = math.ceil((end - start) / step)
    dtype = dtype or torch.get_default_dtype()
    steps = torch.arange(count, dtype=torch.int64).to(torch.float64)
    return (steps * step + start).to(dtype)


@_rule(
    aten.linspace.default, aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor, aten.linspace.Tensor_Tensor,
)  # fmt: skip
def _linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, **_: Any) -> Any:
    """One step is a vector of one number; the exporter gives a number."""
    if steps != 1:
        return NotImplemented
    dtype = dtype or torch.get_default_dtype()
    if isinstance(start, Tensor):
        return start.reshape(1).to(dtype)
    return torch.full((1,), start, dtype=dtype)


@_rule(
    aten.logspace.default, aten.logspace.Tensor_Scalar,
    aten.logspace.Scalar_Tensor, aten.logspace.Tensor_Tensor,
)  # fmt: skip
def _logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, **_: Any
) -> Any:
    """As `_linspace`."""
    if steps != 1:
        return NotImplemented
    power = _linspace(start, end, 1, dtype=torch.float64)
    return torch.pow(base, power).to(dtype or torch.get_default_dtype())


# -- pools and normalisations --------------------------------------------------------------------
@_rule(aten.avg_pool2d.default, aten.avg_pool3d.default)
def _average(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    padded: bool = True, divisor: int | None = None,
) -> Any:  # fmt: skip
    """Sums divided by a number of one's own, which the exporter forgets."""
    if divisor is None:
        return NotImplemented
    axes = len(kernel)
    pool = torch.nn.functional.avg_pool2d if axes == 2 else torch.nn.functional.avg_pool3d
    stride, padding = stride or kernel, [*padding] * (axes // len(padding))
    stride = [*stride] * (axes // len(stride))
    sides: list[int] = []
    for n, k, s, p in zip(x.shape[-axes:], kernel, stride, padding, strict=True):
        spare = (n + 2 * p - k) % s
        late = s - spare if ceil and spare and n + p > n + 2 * p - k - spare + s else 0
        sides[:0] = [p, p + late]
    means = pool(torch.nn.functional.pad(x, sides), kernel, stride)
    return means * (math.prod(kernel) / divisor)


@_rule(aten.native_batch_norm.default, aten._native_batch_norm_legit_functional.default)
def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *rest: float
) -> Any:
    """By the batch's own numbers: PyTorch's decomposition, for the exporter's is for inference."""
    if not training:
        return NotImplemented
    table = torch._decomp.decomposition_table
    momentum, eps = rest
    if mean is None:
        return table[aten.native_batch_norm.default](
            x, weight, bias, mean, variance, True, momentum, eps
        )
    return table[aten._native_batch_norm_legit_functional.default](
        x, weight, bias, mean, variance, True, momentum, eps
    )


# -- linear algebra ------------------------------------------------------------------------------
@_rule(aten.einsum.default)
def _einsum(equation: str, operands: Any, *, path: Any = None) -> Any:
    """In float32, in which PyTorch sums, where ONNX's operator does not take the element type."""
    dtype = operands[0].dtype
    if any(operand.is_complex() for operand in operands):
        return complex_numbers.einsum(equation, operands)
    if dtype is not torch.bfloat16:
        return NotImplemented
    return torch.einsum(equation, [operand.to(torch.float32) for operand in operands]).to(dtype)


@_rule(aten.linalg_solve_triangular.default)
def _solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """x of a x = b: by the inverse of a, made of those of its diagonal blocks, which double."""
    if not left:
        flipped = {"upper": not upper, "left": True, "unitriangular": unitriangular}
        return _solve_triangular(a.mT, b.mT, **flipped).mT
    if upper:  # backwards, an upper triangle is a lower one
        turned = _solve_triangular(
            a.flip(-1, -2), b.flip(-2), upper=False, unitriangular=unitriangular
        )
        return turned.flip(-2)
    size = a.shape[-1]
    if not isinstance(size, int):
        return NotImplemented
    if size == 0:
        return b.new_zeros(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + b.shape[-2:])
    return _lower_inverse(a, size, unitriangular) @ b


def _lower_inverse(a: Tensor, size: int, unit: bool) -> Tensor:
    """(..., size, size) -> its inverse; only the lower triangle is read.

    [[p, 0], [r, q]] has the inverse [[1/p, 0], [-1/q r 1/p, 1/q]].
    """
    whole = 1 << (size - 1).bit_length()
    diagonal = a.diagonal(0, -2, -1)
    diagonal = torch.ones_like(diagonal) if unit else diagonal
    inverse = torch.nn.functional.pad(1 / diagonal, (0, whole - size), value=1.0)[..., None, None]
    a = torch.nn.functional.pad(a, (0, whole - size, 0, whole - size))
    lead, block = a.shape[:-2], 1
    while block < whole:
        pairs = whole // (2 * block)
        tiles = a.reshape(*lead, pairs, 2 * block, pairs, 2 * block)
        below = tiles.diagonal(0, -4, -2).movedim(-1, -3)[..., block:, :block]
        halves = inverse.reshape(*lead, pairs, 2, block, block)
        first, second = halves[..., 0, :, :], halves[..., 1, :, :]
        corner = -(second @ below @ first)
        top = torch.cat([first, torch.zeros_like(first)], -1)
        inverse = torch.cat([top, torch.cat([corner, second], -1)], -2)
        block *= 2
    return inverse.squeeze(-3)[..., :size, :size]


@_rule(aten.cdist.default, aten._cdist_forward.default)
def _cdist(a: Tensor, b: Tensor, p: float = 2.0, mode: int | None = None) -> Tensor:
    """Distances of rows; by products where PyTorch takes products."""
    many = a.shape[-2] > 25 or b.shape[-2] > 25
    if p == 2 and mode != 2 and (mode == 1 or many):
        squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1, keepdim=True).mT
        return (squares - 2 * (a @ b.mT)).clamp_min(0).sqrt()
    apart = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(a.dtype).sum(-1)
    if p == 1:
        return apart.sum(-1)
    if p == 2:
        return apart.square().sum(-1).sqrt()
    return apart.amax(-1) if math.isinf(p) else apart.pow(p).sum(-1).pow(1 / p)


def _grouped_product(x: Tensor, weight: Tensor, offs: Tensor) -> Any:
    """Row i (sorted by group) times the weight of its group; `offs` says where groups end."""
    rows, (_, width, out) = x.shape[0], weight.shape
    numbers = (rows, width, out)
    if not all(isinstance(n, int) for n in numbers) or math.prod(numbers) > _GATHERED:
        return NotImplemented
    place = torch.arange(rows, dtype=offs.dtype)
    group = (place[:, None] >= offs).to(torch.int64).sum(-1)
    inside = group < weight.shape[0]  # rows after the last group are zero
    product = torch.bmm(x[:, None, :], weight[group.clamp_max(weight.shape[0] - 1)])[:, 0]
    return torch.where(inside[:, None], product, torch.zeros_like(product))


# -- attention in one operator -------------------------------------------------------------------
@_rule(aten._native_multi_head_attention.default)
def _attention(*given: Any) -> Any:
    """(batch, length, width) thrice -> the attention's result, and its weights if wanted."""
    defaults = (None, True, True, None)
    whole: list[Any] = [*given, *defaults[len(given) - 9 :]]
    query, key, value, width, heads, weight, bias, *rest = whole
    out_weight, out_bias, mask, need_weights, average, mask_type = rest
    weights, biases = weight.chunk(3), bias.chunk(3)
    q, k, v = (
        torch.nn.functional.linear(x, w, c).unflatten(-1, (heads, -1)).transpose(1, 2)
        for x, w, c in zip((query, key, value), weights, biases, strict=True)
    )
    scores = q @ k.transpose(-2, -1) / math.sqrt(width // heads)
    if mask is not None:
        if mask.dim() == 2:  # of keys (batch, keys), else of queries and keys
            mask = mask[:, None, None] if mask_type == 1 else mask[None, None]
        scores = scores.masked_fill(mask.to(torch.bool), -math.inf)
    shares = scores.softmax(-1)
    mixed = (shares @ v).transpose(1, 2).flatten(2)
    result = torch.nn.functional.linear(mixed, out_weight, out_bias)
    if not need_weights:
        return result, query.new_empty(0)
    return result, shares.mean(1) if average else shares


@_rule(aten._transformer_encoder_layer_fwd.default)
def _encoder_layer(x: Tensor, *given: Any) -> Tensor:
    """What `nn.TransformerEncoderLayer` takes in one step in its fast path."""
    width, heads, *attention, use_gelu, norm_first, eps = given[:9]
    scale_1, shift_1, scale_2, shift_2, up, up_bias, down, down_bias = given[9:17]
    mask, mask_type = (*given[17:], None, None)[:2]
    from torch.nn import functional

    def attended(y: Tensor) -> Tensor:
        held = (*attention, mask, False, True, mask_type)
        result: Tensor = _attention(y, y, y, width, heads, *held)[0]
        return result

    def fed(y: Tensor) -> Tensor:
        y = functional.linear(y, up, up_bias)
        y = functional.gelu(y) if use_gelu else functional.relu(y)
        return functional.linear(y, down, down_bias)

    def normed(y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return functional.layer_norm(y, (width,), scale, shift, eps)

    if norm_first:
        x = x + attended(normed(x, scale_1, shift_1))
        return x + fed(normed(x, scale_2, shift_2))
    x = normed(x + attended(x), scale_1, shift_1)
    return normed(x + fed(x), scale_2, shift_2)
