"""The machine of family "lpu": one memory of rows of lanes, and units that streams flow through.

A buffer in memory is rows of at most 320 lanes: its last physical dimension lies across the lanes,
in several rows where it is longer; all others count rows. Everything is resident: `global`,
`packed` and `mem` are the same memory (MEM), seen as operands, prepared weights and temporaries.
What flows from one unit to the next without being written is in two scopes of its own:

    sums     what products have added up so far: passes of MXM, one after another
    stream   vectors on their way from one statement to the next

Neither is memory: a schedule puts a stage there to have it fused into the pipeline of its reader,
and every vector is read in the order in which it was made.

Instructions as specifications (lanes last; one instruction goes over as many rows as a loop has):

    mxm.product   sums[m, n] += moving[m, k] * weights[n, k]    a pass; weights as [out, in], and
                                                                border rows of zeros or a frame
    mxm.clear     sums[m, n] = 0                                the first pass adds to nothing
    vxm           out[r, l] = f(operands)                       any expression, lane by lane
    sxm.reduce    out[r] = max over lanes of source             rotations and VXM

Sources: Abts et al., "Think Fast: A Tensor Streaming Processor", ISCA 2020; "A Software-defined
Tensor Streaming Multiprocessor", ISCA 2022. The targets carry the numbers.
"""

from collections.abc import Callable

from tilesmith.search_space.expressions.expression import element, var
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, Select, call, load
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.family import Family, families
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec, computes
from tilesmith.search_space.support.errors import TargetError

LANES = 320
"""Lanes of a vector: 20 superlanes of 16."""

SUPERLANE = 16
"""Lanes of a superlane."""

WIDE = "float32"
"""What VXM computes floating numbers in."""

DTYPES = (WIDE, "float16", "int32", "int8", "uint8", "bool")
"""Element types in memory and on streams; VXM computes in float32 and int32."""

MULTIPLIED = ("float16", "int8", "uint8")
"""Those that MXM multiplies: float16 summed in float32, bytes in int32."""

MEMORY = ("global", "packed", "mem")
"""Scopes that are rows in MEM."""

FLOWING = ("sums", "stream")
"""Scopes of what is not written."""

_ANYWHERE = (*MEMORY, *FLOWING)
_M, _N, _K, _R, _L = var("m"), var("n"), var("k"), var("r"), var("l")
_ROWS = 16
"""Any number: of what is picked from."""

_PRODUCT_SCOPES = {
    "out": ("sums",), "moving": (*MEMORY, "stream"), "weights": MEMORY, "frame": MEMORY,
}  # fmt: skip


def _product(name: str, widen: Callable[[Scalar], Scalar], moving: Scalar) -> IntrinsicSpec:
    return IntrinsicSpec(
        name,
        computes(
            call("multiply", widen(moving), widen(load("weights", _N, _K))), _M, _N, reducer="sum"
        ),
        _PRODUCT_SCOPES,
        ("mxm",),
        {"k": "lanes", "n": "lanes"},
    )


_MOVING, _INSIDE = load("moving", _M, _K), (_M - 2, 5 - _M)
"""What moves; a condition on its rows: any."""

_ROWS_OF: dict[str, Scalar] = {
    "": _MOVING,
    ".zeros": Select(_INSIDE, _MOVING, Const(0.0)),
    ".framed": Select(_INSIDE, _MOVING, load("frame", _K)),
}
"""Moving rows: of one tensor, but for rows of zeros or of another (a border, or what is chosen by
position)."""

PRODUCTS = tuple(
    _product(f"mxm.product{kind}{form}", widen, moving)
    for kind, widen in (("", lambda x: x), (".bytes", lambda x: call("to_int32", x)))
    for form, moving in (
        *_ROWS_OF.items(),
        *((f"{form}.either", Select(_INSIDE, rows, rows)) for form, rows in _ROWS_OF.items()),
    )
)

INTRINSICS = (
    *PRODUCTS,
    IntrinsicSpec(
        "mxm.clear", computes(Const(0.0), _M, _N), {"out": ("sums",)}, ("mxm",), {"n": "lanes"}
    ),
    IntrinsicSpec(
        "gather",
        computes(load("source", element("index", _R, _ROWS), _L), _R, _L),
        {"out": _ANYWHERE, "source": MEMORY},
        ("mem",),
    ),
    IntrinsicSpec(
        "vxm",
        computes(load("source", _R, _L), _R, _L),
        {"out": _ANYWHERE, "source": _ANYWHERE},
        ("vxm",),
        pointwise=True,
    ),
    IntrinsicSpec(
        "sxm.reduce",
        computes(Load("source", (_R, _L)), _R, reducer="max"),
        {"out": FLOWING, "source": _ANYWHERE},
        ("sxm",),
        pointwise=True,
        reducers=("sum", "min"),
    ),
)  # fmt: skip
"""Tried in this order."""


def has_slices(target: Target) -> bool:
    """Whether a target is described well enough to schedule for, not as a roofline alone."""
    return all(name != "peak.tflops_fp8" for name, _ in target.facts)


def check_slices(target: Target) -> None:
    """Raise `TargetError` for a target that is known as a roofline only."""
    if not has_slices(target):
        raise TargetError(
            f"target '{target.name}' is known as a roofline only: nothing is placed on it or tuned "
            "for it; simulate operators or models with --fidelity roofline, or choose a target "
            "with slices (lpu1)"
        )


LPU = families.register("lpu")(
    Family(
        "lpu",
        scopes=_ANYWHERE,
        engines=("mem", "mxm", "vxm", "sxm"),
        intrinsics=INTRINSICS,
        limits=lambda _: {"lanes": LANES},
    )
)
