"""The machine of family "loom": a scratchpad between memory and one unit that works on rows.

Every instruction takes a row of at most `row.words` words that lie one behind the other.
"""

from __future__ import annotations

from importlib import resources

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import Const, Load, call, load
from tilesmith.search_space.hardware.memory import Memory
from tilesmith.search_space.hardware.target import Target, target_files
from tilesmith.search_space.ir.family import Family, families
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec, computes
from tilesmith.search_space.ir.program import Block

FAMILY = "loom"

_I, _ROW = var("i"), {"i": "row"}
_PAD, _MEMORY = ("pad",), ("global", "packed")

MACC = IntrinsicSpec(
    "macc",
    computes(call("multiply", Load("scalar", ()), load("row", _I)), _I, reducer="sum"),
    {"out": _PAD, "scalar": _PAD, "row": _PAD},
    limits=_ROW,
)
INTRINSICS = (
    IntrinsicSpec(
        "load",
        Block("", "out", (_I,), Load("source", ())),
        {"out": _PAD, "source": _MEMORY},
        limits=_ROW,
    ),
    IntrinsicSpec(
        "store",
        Block("", "out", (), load("source", _I)),
        {"out": _MEMORY, "source": _PAD},
        limits=_ROW,
    ),
    IntrinsicSpec("fill", computes(Const(0.0), var("rows"), _I), {"out": _PAD}, limits=_ROW),
    MACC,
    IntrinsicSpec(
        "map",
        computes(load("source", _I), _I),
        {"out": _PAD, "source": _PAD},
        limits=_ROW,
        pointwise=True,
    ),
)  # fmt: skip


def pad_bytes(target: Target) -> int:
    """Bytes of the scratchpad."""
    return target.integer("pad.kib") * 1024


LOOM = families.register(FAMILY)(
    Family(
        FAMILY,
        scopes=(*_MEMORY, *_PAD),
        intrinsics=INTRINSICS,
        memories=lambda target: {"pad": Memory(0, pad_bytes(target), granule=4)},
        limits=lambda target: {"row": target.integer("row.words")},
    )
)
target_files.register("loom1")(resources.files(__package__) / "loom1.toml")
