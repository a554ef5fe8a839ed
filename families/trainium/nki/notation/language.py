"""`nki.language`: tensors, loads and stores, products, mathematics, each as instructions.

Which instruction a function becomes is that of the profiles of AWS's compiler where they show it:
functions of one tile go to the scalar engine, those of two to the vector engine; a tile of one
element a partition is a scalar operand.
"""

# mypy: disable-error-code="no-any-return"

from math import prod
from typing import Any

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import ACTIVATIONS
from tilesmith.families.trainium.nki.notation import isa
from tilesmith.families.trainium.nki.notation.calls import NkiCall, NkiFunctions, scalar_of
from tilesmith.families.trainium.nki.notation.dtypes import DType, dtype_of, wider
from tilesmith.families.trainium.nki.notation.errors import NkiError
from tilesmith.families.trainium.nki.notation.indices import AffineMask, whole
from tilesmith.families.trainium.nki.notation.operations import operation
from tilesmith.families.trainium.nki.notation.tensors import (
    HBM,
    PSUM,
    SBUF,
    LoopReduction,
    NkiArray,
    ParDim,
    TensorView,
    fitting,
)
from tilesmith.families.trainium.nki.notation.tracing import of_number

LANGUAGE = NkiFunctions("nki.language")

BUFFERS = {
    "hbm": HBM, "shared_hbm": HBM, "private_hbm": HBM, "sbuf": SBUF, "psum": PSUM,
}  # fmt: skip


# -- declarations -------------------------------------------------------------------------------
def _declared(call: NkiCall, fill: float | None) -> TensorView:
    shape = call.shape if isinstance(call.shape, (tuple, list)) else (call.shape,)
    extents = tuple(n if isinstance(n, ParDim) else whole(n) for n in shape)
    if not extents or min(extents) < 1:
        raise NkiError(f"a tensor of shape {extents}: extents are positive")
    buffer = getattr(call.given.get("buffer"), "space", call.given.get("buffer")) or SBUF
    if str(buffer) not in BUFFERS:
        raise NkiError(f"buffer {buffer!r} is none of {', '.join(BUFFERS)}")
    marked = [at for at, n in enumerate(extents) if isinstance(n, ParDim)]
    dtype = dtype_of("float32" if call.dtype is None else call.dtype)
    array = NkiArray(
        call.trace, call.name or "", tuple(map(int, extents)), dtype, BUFFERS[str(buffer)],
        marked[0] if marked else 0, fill=fill,
    )  # fmt: skip
    return call.trace.declare(array)


@LANGUAGE.add("shape dtype=None buffer=None lazy_initialization=False address=None")
def ndarray(call: NkiCall) -> TensorView:
    return _declared(call, None)


@LANGUAGE.add("shape dtype=None buffer=None lazy_initialization=False")
def zeros(call: NkiCall) -> TensorView:
    return _declared(call, 0.0)


@LANGUAGE.add("shape dtype=None buffer=None lazy_initialization=False")
def ones(call: NkiCall) -> TensorView:
    return _declared(call, 1.0)


@LANGUAGE.add("shape fill_value dtype=None buffer=None lazy_initialization=False")
def full(call: NkiCall) -> TensorView:
    return _declared(call, float(call.fill_value))


def _like(call: NkiCall, fill: float | None) -> TensorView:
    dtype = call.x.dtype if call.dtype is None else dtype_of(call.dtype)
    return call.trace.declare(NkiArray(call.trace, "", call.x.shape, dtype, SBUF, fill=fill))


@LANGUAGE.add("x")
def zeros_like(call: NkiCall) -> TensorView:
    return _like(call, 0.0)


@LANGUAGE.add("x")
def empty_like(call: NkiCall) -> TensorView:
    return _like(call, None)


@LANGUAGE.add("constant")
def shared_constant(call: NkiCall) -> TensorView:
    given = np.asarray(call.constant)
    dtype = dtype_of(given.dtype if call.dtype is None else call.dtype)
    array = NkiArray(call.trace, "constant", given.shape, dtype, HBM, role="input", given=given)
    return call.trace.declare(array)


@LANGUAGE.add("n")
def shared_identity_matrix(call: NkiCall) -> TensorView:
    identity = np.identity(whole(call.n), np.float32)
    dtype = dtype_of("uint8" if call.dtype is None else call.dtype)
    array = NkiArray(
        call.trace, "identity", identity.shape, dtype, HBM, role="input", given=identity
    )
    return call.trace.declare(array)


# -- data movement ------------------------------------------------------------------------------
def _source(call: NkiCall, name: str) -> TensorView:
    value = call.given[name]
    if not isinstance(value, TensorView) or value.array.space != HBM:
        raise NkiError(f"{call.function}: '{name}' is a tensor in HBM, not {value!r}")
    return value


@LANGUAGE.add("src")
def load(call: NkiCall) -> TensorView:
    src = _source(call, "src")
    return call.emit("load", call.out(src.shape, src.dtype), source=src, once=True)


@LANGUAGE.add("src")
def load_transpose2d(call: NkiCall) -> TensorView:
    src = _source(call, "src").permute(1, 0)
    return call.emit("load", call.out(src.shape, src.dtype), source=src)


@LANGUAGE.add("dst value")
def store(call: NkiCall) -> None:
    dst = _source(call, "dst")
    if call.nowhere:
        return
    if isinstance(call.value, TensorView):
        source = call.trace.in_sbuf(call.tile("value"))
    else:
        source = call.trace.tile(dst.shape, dst.dtype)
        call.trace.emit("memset", out=source, value=float(call.value))
    if isinstance(call.mask, AffineMask):
        box = call.mask.box(dst.shape)
        if box is None:
            return
        dst, source = dst.cut(box), source.cut(box)
    call.trace.emit("store", out=dst, source=fitting(source, dst.shape))


@LANGUAGE.add("src")
def copy(call: NkiCall) -> TensorView:
    return isa.tensor_copy(call)


@LANGUAGE.add("src shape")
def broadcast_to(call: NkiCall) -> TensorView:
    return _view(call, "src").broadcast_to(call.shape)


@LANGUAGE.add("data axis")
def expand_dims(call: NkiCall) -> TensorView:
    return _view(call, "data").expand_dims(call.axis)


def _view(call: NkiCall, name: str) -> TensorView:
    value = call.given[name]
    if not isinstance(value, TensorView):
        raise NkiError(f"{call.function}: '{name}' is a tile, not {value!r}")
    return value


@LANGUAGE.add("value op loop_indices")
def loop_reduce(call: NkiCall) -> LoopReduction:
    first = all(getattr(index, "first", index == 0) for index in call.loop_indices)
    return LoopReduction(_view(call, "value"), operation(call.op), first)


# -- products -----------------------------------------------------------------------------------
@LANGUAGE.add("x y transpose_x=False")
def matmul(call: NkiCall) -> TensorView:
    x, y = call.tile("x"), call.tile("y")
    if not call.transpose_x:
        x = _turned(call, x)
    out = call.trace.tile((prod(x.shape[1:]), *y.shape[1:]), DType("float32"), PSUM)
    isa._check_product(x, y)
    call.trace.emit("matmul", out=out, stationary=x, moving=y, accumulate=False)
    return out


def _turned(call: NkiCall, x: TensorView) -> TensorView:
    """A tile transposed by the tensor engine, back in SBUF."""
    shape = (prod(x.shape[1:]), x.shape[0])
    place = call.trace.tile(shape, x.dtype, PSUM)
    call.trace.emit("transpose", out=place, data=call.trace.in_sbuf(x), alone=True)
    out = call.trace.tile(shape, x.dtype)
    call.trace.emit("copy", out=out, a=place, engine="scalar")
    return out


@LANGUAGE.add("x")
def transpose(call: NkiCall) -> TensorView:
    return _turned(call, call.tile("x"))


# -- mathematics --------------------------------------------------------------------------------
def _binary(call: NkiCall) -> TensorView:
    """Two operands: tiles of a shape, or a tile and a scalar, or one that broadcasts."""
    name, x, y = call.function.rpartition(".")[2], call.x, call.y
    for one in (x, y):
        if isinstance(one, TensorView) and one.array.space == HBM:
            raise NkiError(f"{call.function}: {one!r} is loaded into SBUF before it is used")
    if of_number(x) and of_number(y):
        return getattr(np, name)(x, y)
    if of_number(x) or of_number(y):
        return _with_scalar(call, *((y, x, True) if of_number(x) else (x, y, False)), name)
    if name == "not_equal":
        equal = call.trace.function("equal")(x, y)
        return call.trace.function("subtract")(1.0, equal)
    narrow = [scalar_of(one) and one.shape[0] == other.shape[0] for one, other in ((x, y), (y, x))]
    if narrow[0] != narrow[1] and name != "power":
        tile, scalar, reverse = (y, x, True) if narrow[0] else (x, y, False)
        return _with_scalar(call, tile, scalar, reverse, name)
    shape = np.broadcast_shapes(x.shape, y.shape)
    x, y = (isa.spread(one if one.shape == shape else one.broadcast_to(shape)) for one in (x, y))
    return call.emit(
        "tensor_tensor", call.out(shape, wider(x.dtype, y.dtype)), a=x, op=operation(name), b=y
    )


def _with_scalar(
    call: NkiCall, tile: TensorView, scalar: Any, reverse: bool, name: str
) -> TensorView:
    kind = tile.dtype if of_number(scalar) else wider(tile.dtype, scalar.dtype)
    out = call.out(tile.shape, kind)
    if name == "not_equal":
        call.emit("tensor_scalar", out, a=tile, op0="is_equal", s0=scalar)
        return call.emit("tensor_scalar", out, a=out, op0="reverse_subtract", s0=1.0)
    value = scalar if isinstance(scalar, TensorView) else float(scalar)
    return call.emit("tensor_scalar", out, a=tile, op0=operation(name, reverse), s0=value)


for _name in (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "equal", "not_equal",
    "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or",
):  # fmt: skip
    LANGUAGE.add("x y", name=_name)(_binary)


def _unary(call: NkiCall) -> TensorView:
    x, name = call.tile("x"), call.function.rpartition(".")[2]
    function = {"gelu_apprx_tanh": "gelu_tanh"}.get(name, name)
    return call.emit("activation", call.out(x.shape, x.dtype), function=function, data=x)


for _name in (*(n for n in ACTIVATIONS if n not in ("copy", "reciprocal")), "gelu_apprx_tanh"):
    LANGUAGE.add("x", name=_name)(_unary)


@LANGUAGE.add("x")
def reciprocal(call: NkiCall) -> TensorView:
    x = call.tile("x")
    return call.emit("reciprocal", call.out(x.shape, x.dtype), a=x)


@LANGUAGE.add("x")
def negative(call: NkiCall) -> TensorView:
    x = call.tile("x")
    return call.emit("tensor_scalar", call.out(x.shape, x.dtype), a=x, op0="multiply", s0=-1.0)


@LANGUAGE.add("x")
def cos(call: NkiCall) -> TensorView:
    x = call.tile("x")
    out = call.out(x.shape, x.dtype)
    return call.emit("activation", out, function="sin", data=x, bias=float(np.pi / 2))


def _reduction(call: NkiCall) -> TensorView:
    names = {"sum": "add", "max": "maximum", "min": "minimum", "mean": "add", "prod": "multiply"}
    name = call.function.rpartition(".")[2]
    given = {"op": names[name], "data": call.x, "axis": call.axis, "negate": False}
    rest = {"keepdims": call.keepdims, "mask": call.mask, "dtype": call.dtype}
    out = isa.tensor_reduce(NkiCall(call.function, {**given, **rest}))
    if name == "mean":
        count = call.x.size // out.size
        call.trace.emit("tensor_scalar", out=out, a=out, op0="multiply", s0=1.0 / count)
    return out


for _name in ("sum", "max", "min", "mean", "prod"):
    LANGUAGE.add("x axis keepdims=False", name=_name)(_reduction)


@LANGUAGE.add("x axis")
def softmax(call: NkiCall) -> TensorView:
    call_of, x = call.trace.function, call.tile("x")
    largest = call_of("max")(x, axis=call.axis, keepdims=True)
    powers = call_of("exp")(call_of("subtract")(x, largest))
    total = call_of("sum")(powers, axis=call.axis, keepdims=True)
    return call_of("multiply")(powers, call_of("reciprocal")(total))


@LANGUAGE.add("condition x y")
def where(call: NkiCall) -> TensorView:
    out = call.out(
        call.condition.shape, (call.x if isinstance(call.x, TensorView) else call.y).dtype
    )
    out.assign(call.y)
    x = call.x
    if of_number(x):
        x = call.trace.tile(out.shape, out.dtype)
        call.trace.emit("memset", out=x, value=float(call.x))
    return call.emit("copy_predicated", out, a=x, predicate=call.condition)


# -- instances ----------------------------------------------------------------------------------
@LANGUAGE.add("axis")
def program_id(call: NkiCall) -> int:
    at = whole(call.axis)
    return call.trace.program[at] if at < len(call.trace.program) else 0


@LANGUAGE.add("axes=0")
def num_programs(call: NkiCall) -> int:
    return call.trace.programs[int(call.axes)] if call.trace.programs else 1


@LANGUAGE.add("")
def program_ndim(call: NkiCall) -> int:
    return len(call.trace.programs)
