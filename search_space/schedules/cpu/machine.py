"""The machine of family "cpu": caches behind one address space, a thread's workspace, registers."""

from __future__ import annotations

from tilesmith.search_space.ir.expression import var
from tilesmith.search_space.ir.family import Family, families
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec, computes
from tilesmith.search_space.ir.scalar import load

TRANSPOSE = IntrinsicSpec(
    "transpose", computes(load("source", var("n"), var("m")), var("m"), var("n"))
)
"""A tile turned in vector registers; where it cannot be, it is copied element by element."""

SELECT = IntrinsicSpec("select", computes(load("key", var("i")), var("j"), reducer="max"))
"""The largest of a row of distinct keys, in their order: out[j] is the key that j others exceed.
Its body counts, for each j anew; code keeps the best so far in a heap."""

CPU = families.register("cpu")(
    Family("cpu", scopes=("global", "packed", "local", "register"), intrinsics=(TRANSPOSE, SELECT))
)
