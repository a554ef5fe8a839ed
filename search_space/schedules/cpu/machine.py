"""The machine of family "cpu": caches behind one address space, a thread's workspace, registers."""

from __future__ import annotations

from tilesmith.search_space.ir.expression import var
from tilesmith.search_space.ir.family import Family, families
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec, computes
from tilesmith.search_space.ir.scalar import call, load

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

CPU = families.register("cpu")(
    Family(
        "cpu",
        scopes=("global", "packed", "local", "register"),
        intrinsics=(TRANSPOSE, SELECT, DOT_PRODUCT, INTERLEAVE),
    )
)
