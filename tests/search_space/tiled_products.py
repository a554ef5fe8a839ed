"""Products in tiles of any size: what passes over loops are tried on."""

from __future__ import annotations

from hypothesis import strategies as st

from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule


def tiled_product(draw: st.DrawFn, m: Expr, n: Expr, k: Expr) -> Schedule:
    """a @ b - 1 with two or three levels of tiles, registers and an epilogue."""
    i, j, r = axis("i", m), axis("j", n), axis("k", k)
    value = call("multiply", load("a", i.var, r.var), load("b", r.var, j.var))
    c = Stage("c", (i, j), value, (r,), "sum")
    out = Stage("out", (i, j), call("subtract", load("c", i.var, j.var), 1.0))
    compute = ComputeDefinition("product", (Tensor("a", (m, k)), Tensor("b", (k, n))), (c, out))
    size = st.integers(1, 6)
    schedule = Schedule(compute).split("c", "i", draw(size), "it", "ii")
    schedule = schedule.split("c", "j", draw(size), "jt", "ji")
    schedule = schedule.split("c", "jt", draw(size), "jo", "jm")
    schedule = schedule.split("c", "k", draw(size), "kt", "ki")
    outer = draw(st.permutations(("it", "jo", "kt")))
    schedule = schedule.reorder("c", (*outer, "jm", "ki", "ii", "ji")).unroll("c", "ii")
    if draw(st.booleans()):
        schedule = schedule.unroll("c", "ki")
    schedule = schedule.vectorize("c", "ji").cache_write("c", "register", "jm")
    if draw(st.booleans()):
        schedule = schedule.reverse_compute_at("out", "c", "jm")
    if draw(st.booleans()) and outer[0] != "kt":
        schedule = schedule.parallel("c", outer[0])
    return schedule
