"""Reductions along a row: many lanes and accumulators first, one horizontal step last.

A reduction over a contiguous axis is latency-bound if it has one accumulator: an addition takes
four cycles and two could start in each. `reduce_row` turns it into three stages:

    s[r] = sum_k x[r, k]
    -->  s.wide[r, v] = sum_t x[r, t*(a*lanes) + v]      v in a*lanes: `a` vectors in registers
         s.lanes[r, w] = sum_i s.wide[r, i*lanes + w]    the vectors added up
         s[r] = sum_w s.lanes[r, w]                      across the lanes

Works for every reducer; a tail reads the reducer's identity.
"""

from collections.abc import Sequence

from tilesmith.search_space.expressions.expression import ExprLike, var
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.knobs import Constraint, Knob, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace

UNROLLED_VECTORS = 64
"""Vectors: rows times row length up to which everything is unrolled (code size)."""


def reduce_row(
    schedule: Schedule,
    stage: str,
    axis: str,
    accumulators: ExprLike,
    lanes: int,
    at: tuple[str, str],
    rows: Sequence[str] = (),
) -> Schedule:
    """Schedule `stage`, which reduces over `axis` alone, as above.

    Args:
        accumulators: vectors of partial results, a number or a symbol.
        at: (stage, loop) that the partial results are attached to; they live in registers.
        rows: spatial axes of `stage`, unrolled in the partial stages.
    """
    wide, short = f"{stage}.wide", f"{stage}.lanes"
    schedule = schedule.rfactor(stage, axis, accumulators * lanes, wide)
    schedule = schedule.rfactor(stage, f"{axis}.lane", lanes, short)
    schedule = schedule.split(wide, f"{axis}.lane", lanes, "part", "lane")
    schedule = schedule.reorder(wide, (f"{axis}.step", *rows, "part", "lane"))
    schedule = schedule.unroll(wide, *rows, "part").vectorize(wide, "lane")
    step, lane = f"{axis}.lane.step", f"{axis}.lane.lane"
    schedule = schedule.reorder(short, (step, *rows, lane))
    schedule = schedule.unroll(short, *rows, step).vectorize(short, lane)
    schedule = schedule.vectorize(stage, lane)
    for partial in (wide, short):
        schedule = schedule.compute_at(partial, *at, scope="register")
    return schedule


def accumulator_counts(extent: int, lanes: int, most: int = 8) -> list[int]:
    """Sensible numbers of accumulators for a row: powers of two that the row can fill."""
    vectors = -(-extent // lanes)
    return [a for a in (1, 2, 4, 8, 16) if a <= min(vectors, most)] or [1]


def row_space(
    rows: int, length: int, lanes: int, algorithm: str, fixed: dict[str, str], *knobs: Knob
) -> SearchSpace:
    """Work on a few rows at a time: in loops, or unrolled where rows are short.

    Args:
        algorithm: name of the form with loops; the other is called "registers".
        fixed: what is fixed in that one besides.
        knobs: further ones of the form with loops, the first.
    """
    vectors = -(-length // lanes)
    several = tile("rows", [t for t in (1, 2, 4) if t <= rows])
    accumulators = tile("accumulators", accumulator_counts(length, lanes))
    unroll = tile("unroll", [u for u in (1, 2, 4, 8) if u <= vectors])
    loops = Subspace((("algorithm", algorithm),), (*knobs, several, accumulators, unroll))
    if vectors > UNROLLED_VECTORS // 2:
        return SearchSpace((loops,))
    limit = Constraint(
        var("rows") * vectors,
        UNROLLED_VECTORS,
        "vectors of unrolled code (rows times the vectors of a row)",
        "choose fewer rows",
    )
    unrolled = (("algorithm", "registers"), *fixed.items())
    return SearchSpace((loops, Subspace(unrolled, (several, accumulators), (limit,))))
