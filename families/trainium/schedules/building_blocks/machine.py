"""The machine of family "trainium": SBUF and PSUM over partitions, five engines, DMA.

An operand in SBUF or PSUM is indexed [partition, free]: its first physical dimension lies across
the partitions, all others within one. Several tiles may share a bank of PSUM, and a tile may take
several banks; what one matmul writes lies in one.

Schedules need not tensorize: code generation selects, for every block, the first of `INTRINSICS`
that it fits (`families.trainium.codegen.selection.matching`). What is larger than one instruction
takes becomes several.

Sources of the limits: AWS Neuron SDK documentation, NKI architecture guide and instruction
reference; the targets carry the numbers.
"""

from tilesmith.search_space.expressions.expression import element, var
from tilesmith.search_space.expressions.scalar import Const, Load, Select, call, load
from tilesmith.search_space.hardware.memory import Memory
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.family import Family, families
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec, computes
from tilesmith.search_space.ir.program import Block

ALIGNMENT = 64
"""Bytes that places of tiles begin at a multiple of."""

DTYPES = (
    "float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "int32", "int64", "int8",
    "uint8", "bool",
)  # fmt: skip
"""Element types. Whole numbers are moved by DMA and copied; engines compute in fp32."""

FLOATS = DTYPES[:5]
"""Those that engines compute with."""

_ON_CHIP = ("sbuf", "psum")
_HBM = ("hbm", "global", "packed")
_ANYWHERE = (*_HBM, *_ON_CHIP)
_ELEMENTWISE = ("vector", "scalar", "gpsimd")
_PARTITION = {"p": "partitions"}
_K, _M, _N, _P, _F = var("k"), var("m"), var("n"), var("p"), var("f")
_ROWS = 16
"""Any number: of what is picked from."""

_DIAGONAL, _INSIDE = (_P - _F,), (_F - 2, 5 - _F)
"""Any affine condition; any that each depend on one loop."""

INTRINSICS = (
    IntrinsicSpec(
        "memset", computes(Const(0.0), _P, _F), {"out": _ON_CHIP}, _ELEMENTWISE, _PARTITION
    ),
    IntrinsicSpec(
        "select",
        computes(Select(_DIAGONAL, Const(1.0), Const(0.0)), _P, _F),
        {"out": ("sbuf",)},
        ("gpsimd",),
        _PARTITION,
    ),
    IntrinsicSpec(
        "tensor.matmul",
        computes(
            call("multiply", load("stationary", _K, _M), load("moving", _K, _N)),
            _M, _N, reducer="sum",
        ),
        {"out": ("psum",), "stationary": ("sbuf",), "moving": ("sbuf",)},
        ("tensor",),
        {"k": "rows", "m": "columns", "n": "moving"},
    ),
    IntrinsicSpec(
        "tensor.transpose",
        computes(load("source", _P, _F), _F, _P),
        {"out": ("psum",), "source": ("sbuf",)},
        ("tensor",),
        {"p": "rows", "f": "columns"},
    ),
    IntrinsicSpec(
        "dma.gather",
        computes(load("source", element("index", _P, _ROWS), _F), _P, _F),
        {"out": ("sbuf",), "source": _HBM},
        ("dma",),
        _PARTITION,
    ),
    IntrinsicSpec(
        "dma.load",
        computes(Load("source", ()), _P, _F),
        {"out": ("sbuf",), "source": _HBM},
        ("dma", *_ELEMENTWISE),
        _PARTITION,
    ),
    IntrinsicSpec(
        "dma.store",
        Block("", "out", (), load("source", _P, _F)),
        {"out": _HBM, "source": ("sbuf",)},
        ("dma", *_ELEMENTWISE),
        _PARTITION,
    ),
    IntrinsicSpec(
        "framed",
        computes(Select(_INSIDE, Load("source", ()), Const(0.0)), _P, _F),
        {"out": _ON_CHIP, "source": _ANYWHERE},
        ("dma", *_ELEMENTWISE),
        _PARTITION,
    ),
    IntrinsicSpec(
        "chosen",
        computes(Select(_INSIDE, Load("source", ()), Load("other", ())), _P, _F),
        {"out": _ON_CHIP, "source": _ANYWHERE, "other": _ANYWHERE},
        ("dma", *_ELEMENTWISE),
        _PARTITION,
    ),
    IntrinsicSpec(
        "pointwise",
        computes(load("source", _P, _F), _P, _F),
        {"out": _ON_CHIP, "source": _ANYWHERE},
        _ELEMENTWISE,
        _PARTITION,
        pointwise=True,
    ),
    IntrinsicSpec(
        "reduce",
        computes(load("source", _P, _F), _P, reducer="sum"),
        {"out": ("sbuf",), "source": _ANYWHERE},
        _ELEMENTWISE,
        _PARTITION,
        pointwise=True,
        reducers=("max", "min", "product"),
    ),
)  # fmt: skip
"""Tried in this order: those that compute less first. An operand of an elementwise instruction that
is in HBM is brought to SBUF first."""


def memories(target: Target) -> dict[str, Memory]:
    """SBUF and PSUM."""
    memories = {}
    for name in _ON_CHIP:
        partitions = target.integer(f"{name}.partitions")
        size = target.integer(f"{name}.mib") * 2**20 // partitions
        bank = size // target.integer("psum.banks") if name == "psum" else 0
        memories[name] = Memory(partitions, size, bank, ALIGNMENT)
    return memories


def limits(target: Target) -> dict[str, int]:
    """The tensor engine's array, the longest moving operand, the partitions."""
    return {
        "rows": target.integer("tensor.rows"),
        "columns": target.integer("tensor.cols"),
        "moving": target.integer("tensor.moving_free"),
        "partitions": target.integer("sbuf.partitions"),
    }


TRAINIUM = families.register("trainium")(
    Family(
        "trainium",
        scopes=("global", "packed", "hbm", *_ON_CHIP),
        engines=("dma", "tensor", "vector", "scalar", "gpsimd"),
        intrinsics=INTRINSICS,
        memories=memories,
        limits=limits,
    )
)
