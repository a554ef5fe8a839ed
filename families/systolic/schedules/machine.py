"""The machine of family "systolic": an array of processing elements between SBUF and PSUM.

An operand in SBUF or PSUM is indexed [partition, free]: its first physical dimension lies across
the partitions, all others within one. A tile of results takes whole banks of PSUM.

Sources of the limits: AWS Neuron SDK documentation, NKI architecture guide and instruction
reference; the targets carry the numbers.
"""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import Const, Load, call, load
from tilesmith.search_space.hardware.memory import Memory
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.family import Family, families
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec, computes
from tilesmith.search_space.ir.program import Block

_K, _M, _N, _P, _F = var("k"), var("m"), var("n"), var("p"), var("f")
_ON_CHIP = ("sbuf", "psum")
_PARTITION = {"p": "partitions"}

INTRINSICS = (
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
        "dma.load",
        computes(Load("source", ()), _P, _F),
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
        computes(Const(0.0), _P, _F),
        {"out": _ON_CHIP},
        ("vector", "gpsimd"),
        _PARTITION,
    ),
    IntrinsicSpec(
        "pointwise",
        computes(load("source", _P, _F), _P, _F),
        {"out": _ON_CHIP, "source": _ON_CHIP},
        ("vector", "scalar", "gpsimd"),
        _PARTITION,
        pointwise=True,
    ),
)  # fmt: skip


def memories(target: Target) -> dict[str, Memory]:
    """SBUF and PSUM."""
    partitions = target.integer("sbuf.partitions")
    sbuf = target.integer("sbuf.mib") * 2**20 // partitions
    psum = target.integer("psum.mib") * 2**20 // partitions
    bank = psum // target.integer("psum.banks")
    return {
        "sbuf": Memory(partitions, sbuf),
        "psum": Memory(partitions, psum, bank, granule=bank, several_banks=False),
    }


def limits(target: Target) -> dict[str, int]:
    """The array, the fp32 numbers of a PSUM bank, the partitions."""
    return {
        "rows": target.integer("array.rows"),
        "columns": target.integer("array.cols"),
        "moving": memories(target)["psum"].bank // 4,
        "partitions": target.integer("sbuf.partitions"),
    }


SYSTOLIC = families.register("systolic")(
    Family(
        "systolic",
        scopes=("global", "packed", "hbm", *_ON_CHIP),
        engines=("dma", "tensor", "vector", "scalar", "gpsimd"),
        intrinsics=INTRINSICS,
        memories=memories,
        limits=limits,
    )
)
