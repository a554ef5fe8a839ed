"""The machine of family "cpu": caches behind one address space, a thread's workspace, registers;
where the processor has them, registers that hold matrices."""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, call, load
from tilesmith.search_space.hardware.matrix_registers import tiles_of
from tilesmith.search_space.hardware.memory import Memory
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.family import Family, families
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec, computes

TRANSPOSE = IntrinsicSpec(
    "transpose", computes(load("source", var("n"), var("m")), var("m"), var("n"))
)
"""A tile turned in vector registers; where it cannot be, it is copied element by element."""

SELECT = IntrinsicSpec("select", computes(load("key", var("i")), var("j"), reducer="max"))
"""The largest of a row of distinct keys, in their order: out[j] is the key that j others exceed.
Its body counts, for each j anew; code keeps the best so far in a heap."""

DOT_PRODUCT = IntrinsicSpec(
    "dot_product",
    computes(
        call("multiply", load("group", var("p")), load("vectors", var("j"), var("p"))),
        var("j"),
        reducer="sum",
    ),
)
"""Neighbours multiplied and added in each lane, the factors widened before they are multiplied:

    unroll p: vector j: out[j] += to_int32(group[p]) * to_int32(vectors[j, p])

`group` stands still along j, `vectors` holds a group for each lane, side by side, and `out` is in
registers. As many products as `dot_products.group_of` says; fewer at the end of a reduction."""

INTERLEAVE = IntrinsicSpec(
    "interleave", computes(load("rows", var("p"), var("j")), var("j"), var("p"))
)
"""Rows put side by side lane by lane, as `dot_product` reads them (`unroll p: vector j:`); what is
missing of the last group is filled with zeros, for which the buffer has room."""

TILES = "amx"
"""The scope of matrix registers: [.., rows, columns], each of the matrices in front in one."""

_ELEMENTS = (Load("a", ()), Load("b", ()))
_TILE = (var("u"), var("v"), var("i"), var("j"))
_MEMORY = ("global", "packed", "local")
_LIMITS = {"i": "tile.rows", "j": "tile.columns"}


def _tile_product(name: str, *factors: Scalar) -> IntrinsicSpec:
    return IntrinsicSpec(
        name,
        computes(call("multiply", *factors), *_TILE, reducer="sum"),
        {"out": (TILES,), "a": _MEMORY, "b": _MEMORY},
        limits=_LIMITS,
    )


TILE_INTRINSICS = (
    IntrinsicSpec("tile_zero", computes(Const(0.0), *_TILE), {"out": (TILES,)}),
    _tile_product("tile_multiply", *_ELEMENTS),
    _tile_product("tile_multiply_whole", *(call("to_int32", x) for x in _ELEMENTS)),
    IntrinsicSpec(
        "tile_store",
        computes(Load("tile", ()), *_TILE),
        {"out": ("local",), "tile": (TILES,)},
        limits=_LIMITS,
    ),
)
"""Matrices in registers: made zero, added to by products of matrices in memory, stored.

    i in rows: j in columns: q in groups: p in products:
      out[u, v, i, j] += a[i, q*products + p] * b[q, j, p]"""


def memories(target: Target) -> dict[str, Memory]:
    """Return the memory of matrix registers for sums; two registers stay free for operands."""
    tiles = tiles_of(target)
    if tiles is None:
        return {TILES: Memory(0, 0, stacked=True)}
    size = tiles.rows * tiles.row_bytes
    return {TILES: Memory(0, (tiles.count - 2) * size, granule=size, stacked=True)}


def limits(target: Target) -> dict[str, int]:
    """Rows and 4-byte columns of a matrix register."""
    tiles = tiles_of(target)
    return {} if tiles is None else {"tile.rows": tiles.rows, "tile.columns": tiles.row_bytes // 4}


CPU = families.register("cpu")(
    Family(
        "cpu",
        scopes=("global", "packed", "local", "register", TILES),
        intrinsics=(TRANSPOSE, SELECT, DOT_PRODUCT, INTERLEAVE, *TILE_INTRINSICS),
        memories=memories,
        limits=limits,
    )
)
