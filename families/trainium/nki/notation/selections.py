"""`nki.isa`: instructions that select and gather, and what a kernel asks of the chip.

Invariant: as of all of `nki.isa`: one call, one instruction (`dropout` with a rate of 0 copies).
"""

# mypy: disable-error-code="no-any-return"

from math import prod
from typing import Any

from tilesmith.families.trainium.nki.notation.calls import NkiCall
from tilesmith.families.trainium.nki.notation.dtypes import DType
from tilesmith.families.trainium.nki.notation.errors import NkiError
from tilesmith.families.trainium.nki.notation.isa import INSTRUCTIONS, flat, scalar
from tilesmith.families.trainium.nki.notation.operations import operation
from tilesmith.families.trainium.nki.notation.tensors import PSUM, TensorView

LEAST = -3.4028235e38
"""What `range_select` has outside of its range unless the call says another (NKI reference)."""


def _largest(call: NkiCall) -> dict[str, Any]:
    """The operand that takes the largest element of each row, if the call has one."""
    if call.given.get("reduce_res") is None:
        return {}
    if operation(call.reduce_op) != "max":
        raise NkiError(f"{call.function}: reduce_op is the maximum, which the engine has")
    return {"maxima": call.reduce_res}


@INSTRUCTIONS.add(
    "on_true_tile comp_op0 comp_op1 bound0 bound1 reduce_cmd=None reduce_res=None "
    f"reduce_op='amax' range_start=0 on_false_value={LEAST}"
)
def range_select(call: NkiCall) -> TensorView:
    tile = call.tile("on_true_tile")
    if (operation(call.comp_op0), operation(call.comp_op1)) != ("is_ge", "is_lt"):
        raise NkiError("range_select: a range is greater_equal of bound0 and less than bound1")
    return call.emit(
        "range_select", call.out(tile.shape, tile.dtype), a=tile, low=call.tile("bound0"),
        high=call.tile("bound1"), fill=float(call.on_false_value), start=int(call.range_start),
        **_largest(call),
    )  # fmt: skip


@INSTRUCTIONS.add(
    "dst predicate on_true on_false reduce_res=None reduce_cmd=None reduce_op='amax' "
    "reverse_pred=False"
)
def select_reduce(call: NkiCall) -> TensorView:
    if isinstance(call.on_false, TensorView) or call.reverse_pred:
        raise NkiError("select_reduce: 'on_false' is a number here, and reverse_pred is False")
    return call.emit(
        "select_reduce", call.tile("dst"), a=call.tile("on_true"),
        predicate=call.tile("predicate"), fill=float(call.on_false), **_largest(call),
    )  # fmt: skip


@INSTRUCTIONS.add("src_buffer index num_elem_per_idx=1 num_valid_indices=None")
def local_gather(call: NkiCall) -> TensorView:
    if int(call.num_elem_per_idx) != 1:
        raise NkiError("local_gather: num_elem_per_idx is 1 here")
    data, index = call.tile("src_buffer"), call.tile("index")
    out = call.out((data.shape[0], prod(index.shape[1:]) * 16), data.dtype)
    return call.emit("local_gather", out, a=flat(data), index=flat(index))


@INSTRUCTIONS.add("src dst shuffle_mask", new="src shuffle_mask")
def nc_stream_shuffle(call: NkiCall) -> None:
    mask = tuple(int(n) for n in call.shuffle_mask)
    call.emit("shuffle", call.tile("dst"), a=call.tile("src"), mask=mask)


@INSTRUCTIONS.add("op data")
def tensor_partition_reduce(call: NkiCall) -> TensorView:
    """A sum over partitions, by a product with ones: what the tensor engine has for it."""
    data = call.tile("data")
    if operation(call.op) != "add":
        raise NkiError("tensor_partition_reduce: sums over partitions are known, 'add'")
    count, width = data.shape[0], prod(data.shape[1:])
    column = call.trace.tile((count, 1), data.dtype)
    call.trace.emit("memset", out=column, value=1.0)
    out = call.out((1, *data.shape[1:]), data.dtype)
    for start in range(0, width, 512):
        part = slice(start, min(start + 512, width))
        place = call.trace.tile((1, part.stop - part.start), DType("float32"), PSUM)
        call.trace.emit(
            "matmul", out=place, stationary=column, moving=flat(data)[:, part], accumulate=False
        )
        call.trace.emit("copy", out=flat(out)[:, part], a=place, engine="scalar")
    return out


@INSTRUCTIONS.add("data prob")
def dropout(call: NkiCall) -> TensorView:
    if call.prob != 0:
        raise NkiError(
            f"{call.function}: a rate of {call.prob!r} needs the engine's random numbers, which "
            "nobody outside of it knows; a rate of 0 keeps everything"
        )
    data = call.tile("data")
    return call.emit("copy", call.out(data.shape, data.dtype), a=data, engine="vector")


@INSTRUCTIONS.add(
    "src op=None max_value=0.0 scale=1.0 reduce_res=None reduce_cmd=None reduce_init=0.0"
)
def exponential(call: NkiCall) -> TensorView:
    """exp(src - max_value), and the sums of its rows."""
    src = call.tile("src")
    bias = scalar(call, "max_value", 0.0)
    if isinstance(bias, TensorView):
        negative = call.trace.tile(bias.shape, bias.dtype)
        call.trace.emit("tensor_scalar", out=negative, a=bias, op0="multiply", s0=-1.0)
        bias = negative
    else:
        bias = -bias
    sums = {} if call.reduce_res is None else {"sums": call.reduce_res}
    out = call.out(src.shape, src.dtype)
    return call.emit("activation", out, function="exp", data=src, bias=bias, **sums)


@INSTRUCTIONS.add("")
def get_nc_version(call: NkiCall) -> int:
    return {"trn1": 2, "inf2": 2, "trn2": 3}.get(call.trace.core.target.name, 4)


@INSTRUCTIONS.add("data=None cores=None engine=None")
def core_barrier(call: NkiCall) -> None:
    """One core waits for itself: nothing."""
