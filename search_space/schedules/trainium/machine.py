"""The machine of family "trainium": SBUF and PSUM over partitions, five engines, DMA.

An operand in SBUF or PSUM is indexed [partition, free]: its first physical dimension lies across
the partitions, all others within one. Several tiles may share a bank of PSUM, and a tile may take
several banks; what one matmul writes lies in one.

Sources of the limits: AWS Neuron SDK documentation, NKI architecture guide and instruction
reference; the targets carry the numbers.
"""

from __future__ import annotations

from tilesmith.search_space.family import Family, families
from tilesmith.search_space.memory import Memory
from tilesmith.search_space.target import Target

ALIGNMENT = 64
"""Bytes that places of tiles begin at a multiple of."""

DTYPES = (
    "float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "int32", "int64", "int8",
    "uint8", "bool",
)  # fmt: skip
"""Element types. Whole numbers are moved by DMA and copied; engines compute in fp32."""

FLOATS = DTYPES[:5]
"""Those that the tensor engine multiplies."""

_ON_CHIP = ("sbuf", "psum")


def memories(target: Target) -> dict[str, Memory]:
    """SBUF and PSUM."""
    found = {}
    for name in _ON_CHIP:
        partitions = target.integer(f"{name}.partitions")
        size = target.integer(f"{name}.mib") * 2**20 // partitions
        bank = size // target.integer("psum.banks") if name == "psum" else 0
        found[name] = Memory(partitions, size, bank, ALIGNMENT)
    return found


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
        memories=memories,
        limits=limits,
    )
)
