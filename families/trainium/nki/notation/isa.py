"""`nki.isa`: a function an instruction, each appended as the builder's method of that meaning.

Engines are those that were asked for; where none is, copies and products with a scalar go to the
scalar engine, as profiles of AWS's compiler show (sums leave PSUM there), the rest to the vector
engine.
"""

# mypy: disable-error-code="no-any-return"

from itertools import pairwise
from math import prod
from typing import Any

from tilesmith.families.trainium.nki.notation.calls import NkiCall, NkiFunctions, scalar_of
from tilesmith.families.trainium.nki.notation.dtypes import DType, dtype_of, wider
from tilesmith.families.trainium.nki.notation.errors import NkiError
from tilesmith.families.trainium.nki.notation.indices import AffineIndex, AffineMask
from tilesmith.families.trainium.nki.notation.operations import activation_of, operation
from tilesmith.families.trainium.nki.notation.tensors import (
    PARTITION,
    PSUM,
    TensorView,
    ViewAxis,
    fitting,
    replace_axes,
)

INSTRUCTIONS = NkiFunctions("nki.isa")
BANK_COLUMNS = 512
"""Elements a partition of a product (ISA)."""


# -- data movement ------------------------------------------------------------------------------
@INSTRUCTIONS.add("dst src dst_rmw_op=None oob_mode=None dge_mode=None unique_indices=None")
def dma_copy(call: NkiCall) -> Any:
    if not isinstance(call.dst, TensorView) or not isinstance(call.src, TensorView):
        raise NkiError("nki.isa.dma_copy moves a tile or tensor, 'src', to another, 'dst'")
    dst, src = call.dst, call.src
    if call.nowhere:
        return dst
    if src.shape != dst.shape:
        src = fitting(src, dst.shape)
    if isinstance(call.mask, AffineMask):
        box = call.mask.box(dst.shape)
        if box is None:
            return dst
        dst, src = dst.cut(box), src.cut(box)
    call.trace.move(dst, src)
    return dst


@INSTRUCTIONS.add("dst src axes=None dge_mode=None")
def dma_transpose(call: NkiCall) -> Any:
    """DMA with the axes of two dimensions swapped."""
    call.trace.move(call.dst, call.src.permute(*range(call.src.ndim)[::-1]))
    return call.dst


@INSTRUCTIONS.add("src")
def tensor_copy(call: NkiCall) -> TensorView:
    src = call.tile("src")
    return call.emit("copy", call.out(src.shape, src.dtype), a=src, engine=_copier(call))


def _copier(call: NkiCall) -> str:
    return call.engine_of("scalar")


@INSTRUCTIONS.add("shape value", new="value")
def memset(call: NkiCall) -> TensorView:
    out = call.out(tuple(call.given.get("shape", ())), DType("float32"))
    return call.emit("memset", out, value=float(call.value), engine=call.engine_of("vector"))


@INSTRUCTIONS.add("src predicate on_true=None on_false=None reverse_pred=False")
def tensor_copy_predicated(call: NkiCall) -> TensorView:
    src = call.tile("src")
    out = call.out(src.shape, src.dtype)
    return call.emit("copy_predicated", out, a=src, predicate=call.tile("predicate"))


# -- tensor engine ------------------------------------------------------------------------------
@INSTRUCTIONS.add(
    "stationary moving is_stationary_onezero=False is_moving_onezero=False is_transpose=False "
    "accumulate=None tile_position=() tile_size=() perf_mode=None"
)
def nc_matmul(call: NkiCall) -> TensorView:
    stationary, moving = (call.trace.in_sbuf(call.tile(n)) for n in ("stationary", "moving"))
    shape = (prod(stationary.shape[1:]), *moving.shape[1:])
    if call.is_transpose and shape[-1] == moving.shape[0]:  # else no identity: a product
        out = call.out(
            shape, stationary.dtype if "dst" not in call.given else DType("float32"), PSUM
        )
        return call.emit("transpose", out, data=stationary)
    _check_product(stationary, moving)
    out = call.out(shape, DType("float32"), PSUM, fixed=True)
    masked = (
        AffineMask.box(call.mask, shape)
        if isinstance(call.mask, AffineMask)
        else [(0, n) for n in shape]
    )
    if masked is None or call.nowhere:
        return out
    part = out.cut(masked)
    cut = moving.cut([(0, moving.shape[0]), *masked[1:]])
    stationary = stationary.cut([(0, stationary.shape[0]), masked[0]])
    accumulate = {None: "auto"}.get(call.accumulate, call.accumulate)
    accumulate = accumulate if call.given.get("dst") is not None else False
    call.trace.emit("matmul", out=part, stationary=stationary, moving=cut, accumulate=accumulate)
    return out


def _check_product(stationary: TensorView, moving: TensorView) -> None:
    columns, width = prod(stationary.shape[1:]), prod(moving.shape[1:])
    if stationary.shape[0] != moving.shape[0]:
        raise NkiError(
            f"nc_matmul: stationary has {stationary.shape[0]} partitions and moving "
            f"{moving.shape[0]}; what is summed over stands on the partitions of both"
        )
    if columns > 128:
        raise NkiError(f"nc_matmul: stationary has {columns} columns; the array takes 128")
    if width > BANK_COLUMNS:
        raise NkiError(
            f"nc_matmul: moving has {width} columns; {BANK_COLUMNS} are the most, a bank of PSUM"
        )


@INSTRUCTIONS.add("data")
def nc_transpose(call: NkiCall) -> TensorView:
    data = call.tile("data")
    shape = (prod(data.shape[1:]), data.shape[0])
    out = call.out(shape, data.dtype, PSUM)
    if out.array.space == PSUM and data.array.space != PSUM:
        return call.emit("transpose", out, data=data)
    place = call.trace.tile(shape, data.dtype, PSUM)
    call.trace.emit("transpose", out=place, data=call.trace.in_sbuf(data))
    return call.emit("copy", out, a=place, engine="vector")


# -- elementwise --------------------------------------------------------------------------------
@INSTRUCTIONS.add("op data bias=None scale=1.0 reduce_op=None reduce_res=None reduce_cmd=None")
def activation(call: NkiCall) -> TensorView:
    data = call.tile("data")
    out = call.out(data.shape, data.dtype)
    sums = {"sums": call.reduce_res} if call.given.get("reduce_res") is not None else {}
    return call.emit(
        "activation", out, function=activation_of(call.op), data=data,
        bias=scalar(call, "bias", 0.0), scale=scalar(call, "scale", 1.0), **sums,
    )  # fmt: skip


@INSTRUCTIONS.add("op data reduce_op reduce_res bias=None scale=1.0")
def activation_reduce(call: NkiCall) -> TensorView:
    return activation(call)


def scalar(call: NkiCall, name: str, default: float) -> Any:
    value = call.given.get(name)
    if value is None:
        return default
    return call.tile(name) if isinstance(value, TensorView) else float(value)


@INSTRUCTIONS.add("data1 data2 op")
def tensor_tensor(call: NkiCall) -> TensorView:
    one, two = spread(call.tile("data1")), spread(call.tile("data2"))
    shape = tuple(max(a, b) for a, b in zip(one.shape, two.shape, strict=False))
    if one.shape != two.shape:
        one, two = fitting(one, shape), fitting(two, shape)
    out = call.out(shape, wider(one.dtype, two.dtype))
    return call.emit(
        "tensor_tensor", out, a=one, op=operation(call.op), b=two, engine=call.engine_of("vector")
    )


@INSTRUCTIONS.add("data op0 operand0 reverse0=False op1=None operand1=None reverse1=False")
def tensor_scalar(call: NkiCall) -> TensorView:
    data = call.tile("data")
    if call.engine_of("") == "" and call.op1 is None and operation(call.op0) == "multiply":
        return call.emit(
            "activation", call.out(data.shape, data.dtype), function="copy", data=data,
            scale=scalar(call, "operand0", 1.0),
        )  # fmt: skip
    second: dict[str, Any] = {}
    if call.op1 is not None:
        second = {"op1": operation(call.op1, call.reverse1), "s1": scalar(call, "operand1", 0.0)}
    return call.emit(
        "tensor_scalar", call.out(data.shape, data.dtype), a=data,
        op0=operation(call.op0, call.reverse0), s0=scalar(call, "operand0", 0.0), **second,
        engine=call.engine_of("vector"),
    )  # fmt: skip


@INSTRUCTIONS.add("data op0 operand0 op1 operand1 reverse0=False reverse1=False")
def scalar_tensor_tensor(call: NkiCall) -> TensorView:
    data = call.tile("data")
    return call.emit(
        "scalar_tensor_tensor", call.out(data.shape, data.dtype), a=data,
        op0=operation(call.op0, call.reverse0), s=scalar(call, "operand0", 0.0),
        op1=operation(call.op1, call.reverse1), b=spread(call.tile("operand1")),
    )  # fmt: skip


@INSTRUCTIONS.add("data op0 operand0 reduce_op reduce_res reverse0=False")
def tensor_scalar_reduce(call: NkiCall) -> TensorView:
    data = call.tile("data")
    return call.emit(
        "tensor_scalar_reduce", call.out(data.shape, data.dtype), a=data,
        op=operation(call.op0, call.reverse0), s=scalar(call, "operand0", 0.0),
        reduce=operation(call.reduce_op), reduced=call.reduce_res,
    )  # fmt: skip


@INSTRUCTIONS.add("data")
def reciprocal(call: NkiCall) -> TensorView:
    data = call.tile("data")
    return call.emit("reciprocal", call.out(data.shape, data.dtype), a=data)


# -- reductions ---------------------------------------------------------------------------------
@INSTRUCTIONS.add("op data axis negate=False keepdims=False")
def tensor_reduce(call: NkiCall) -> TensorView:
    data = call.tile("data")
    axes = sorted({at % data.ndim for at in _several(call.axis)})
    if 0 in axes:
        raise NkiError("tensor_reduce: axis 0 is the partitions'; engines reduce over the others")
    kept = [at for at in range(data.ndim) if at not in axes]
    shape = tuple(data.shape[at] for at in kept)
    if call.keepdims or len(shape) == 1:
        shape = tuple(1 if at in axes else n for at, n in enumerate(data.shape))
        shape = shape if call.keepdims else shape[:2]
    out = call.out(shape, data.dtype)
    operands: dict[str, Any] = {"a": data.permute(*kept, *axes), "op": operation(call.op)}
    if isinstance(call.mask, AffineMask):
        box = call.mask.box(data.shape)
        if box is None:
            return out
        operands["a"] = data.cut(box).permute(*kept, *axes)
        part = out.cut([box[at] for at in kept]) if not call.keepdims else out
        call.trace.emit("reduce", out=part, **operands, engine="vector")
        return out
    call.trace.emit("reduce", out=out, **operands, engine="vector")
    if call.negate:
        call.trace.emit("tensor_scalar", out=out, a=out, op0="multiply", s0=-1.0)
    return out


def _several(axis: Any) -> list[int]:
    return [int(at) for at in axis] if isinstance(axis, (tuple, list)) else [int(axis)]


@INSTRUCTIONS.add("data0 data1 initial op0 op1 reverse0=False reverse1=False")
def tensor_tensor_scan(call: NkiCall) -> TensorView:
    one, two = spread(call.tile("data0")), spread(call.tile("data1"))
    return call.emit(
        "scan", call.out(one.shape, wider(one.dtype, two.dtype)), a=one, op0=operation(call.op0),
        b=two, op1=operation(call.op1), initial=scalar(call, "initial", 0.0),
    )  # fmt: skip


@INSTRUCTIONS.add("data")
def bn_stats(call: NkiCall) -> TensorView:
    data = call.tile("data")
    return call.emit("bn_stats", call.out((data.shape[0], 6), DType("float32")), a=data)


@INSTRUCTIONS.add("data")
def bn_aggr(call: NkiCall) -> TensorView:
    data = call.tile("data")
    out = call.out((data.shape[0], 2), DType("float32"))
    return call.emit("bn_aggr", out, statistics=data)


@INSTRUCTIONS.add("src")
def max8(call: NkiCall) -> TensorView:
    src = call.tile("src")
    return call.emit("max8", call.out((src.shape[0], 8), src.dtype), a=src)


@INSTRUCTIONS.add("data vals")
def nc_find_index8(call: NkiCall) -> TensorView:
    out = call.out((call.data.shape[0], 8), DType("int32"))
    return call.emit("find_index8", out, a=call.tile("data"), values=call.tile("vals"))


@INSTRUCTIONS.add("data vals imm dst_idx=None")
def nc_match_replace8(call: NkiCall) -> TensorView:
    data = call.tile("data")
    out = call.out(data.shape, data.dtype)
    return call.emit("match_replace8", out, a=data, values=call.tile("vals"), fill=float(call.imm))


# -- patterns -----------------------------------------------------------------------------------
@INSTRUCTIONS.add("expr", new="pattern offset=0 channel_multiplier=0")
def iota(call: NkiCall) -> TensorView:
    if "expr" in call.given:
        index, kind = call.expr, dtype_of(call.given["dtype"] or "int32")
        if not isinstance(index, AffineIndex):
            raise NkiError("nki.isa.iota takes an expression of nl.arange")
        base, channel, step = _pattern(index, index.shape)
        return call.emit("iota", call.out(index.shape, kind), base=base, channel=channel, step=step)
    out = call.tile("dst")
    step = _one_step(call.pattern)
    return call.emit(
        "iota", flat(out), base=int(call.offset), channel=int(call.channel_multiplier), step=step
    )


@INSTRUCTIONS.add(
    "pred on_true_tile on_false_value",
    new="pattern on_true_tile on_false_value offset=0 channel_multiplier=0 cmp_op=None",
)
def affine_select(call: NkiCall) -> TensorView:
    tile = call.trace.in_sbuf(call.tile("on_true_tile"))  # gpsimd does not reach PSUM
    out = call.out(tile.shape, tile.dtype)
    if "pred" in call.given:
        if not isinstance(call.pred, AffineMask) or len(call.pred.terms) != 1:
            raise NkiError("nki.isa.affine_select takes one comparison of nl.arange expressions")
        base, channel, step = _pattern(call.pred.terms[0], tile.shape)
    else:
        channel, step, base = (
            int(call.channel_multiplier),
            _one_step(call.pattern),
            int(call.offset),
        )
        word = operation(call.cmp_op or "equal")
        if word not in ("is_ge", "is_gt"):
            raise NkiError(f"affine_select compares by greater_equal or greater, not {word}")
        base -= word == "is_gt"
    call.emit(
        "select", flat(out), a=flat(tile), base=base, channel=channel, step=step,
        fill=float(call.on_false_value),
    )  # fmt: skip
    return out


def _pattern(index: AffineIndex, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Base, step of a partition, and step of an element, of an index over a tile."""
    axes = ((1, 0),) * (len(shape) - len(index.axes)) + index.axes
    moving = [(n, step) for n, (_, step) in zip(shape[1:], axes[1:], strict=True) if n > 1]
    for (_, outer), (count, inner) in pairwise(moving):
        if outer != count * inner:
            raise NkiError("a pattern has one step from an element to the next of a partition")
    return index.base, axes[0][1], moving[-1][1] if moving else 0


def _one_step(pattern: Any) -> int:
    moving = [(int(n), int(step)) for step, n in pattern if int(n) > 1]
    for (_, outer), (count, inner) in pairwise(moving):
        if outer != count * inner:
            raise NkiError("a pattern has one step from an element to the next of a partition")
    return moving[-1][1] if moving else 0


def flat(view: TensorView) -> TensorView:
    """A tile with all its elements along one axis."""
    return view if view.ndim == 2 else view.reshape((view.shape[0], -1))


def spread(view: TensorView) -> Any:
    """A tile whose one partition is read by many, in all of them: a product with ones spreads it,
    a bank of PSUM at a time (tutorial of fused Mamba)."""
    axis = view.axes[0]
    if axis.count == 1 or axis.step or not any(a.kind == PARTITION for a in view.axes[:1]):
        return view
    trace, count = view.array.trace, axis.count
    row = replace_axes(view, (ViewAxis(PARTITION, 1, 0), *view.axes[1:]))
    row, width = flat(row), prod(view.shape[1:])
    key = (view.first, view.axes)
    known = trace.spreads.get(id(view.array), {}).get(key)
    if known is not None:
        return known
    ones = trace.ones(count, row.dtype)
    out = None if width <= BANK_COLUMNS else trace.tile((count, width), row.dtype)
    for start in range(0, width, BANK_COLUMNS):
        part = slice(start, min(start + BANK_COLUMNS, width))
        place = trace.tile((count, part.stop - part.start), DType("float32"), PSUM)
        trace.emit("matmul", out=place, stationary=ones, moving=row[:, part], accumulate=False)
        if out is None:
            out = place
        else:
            trace.emit("copy", out=out[:, part], a=place, engine="scalar")
    assert out is not None
    result = fitting(out, view.shape)
    trace.spreads.setdefault(id(view.array), {})[key] = result
    return result


__all__ = ["INSTRUCTIONS", "scalar_of", "spread"]
