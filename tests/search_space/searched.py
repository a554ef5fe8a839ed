"""Small search spaces whose every configuration can be listed."""

from __future__ import annotations

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.spaces.knobs import Constraint, choice, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def space() -> SearchSpace:
    """About 12,000 configurations in two algorithms, with a limit that couples knobs."""
    limit = Constraint(var("x") * var("y"), 64, "product of x and y")
    direct = Subspace(
        (("algorithm", "direct"),),
        (
            tile("x", SIZES),
            tile("y", SIZES),
            tile("z", SIZES),
            choice("order", ("xyz", "yxz", "zxy")),
            choice("pack", ("yes", "no")),
            tile("unroll", (1, 2, 4, 8)),
        ),
        (limit,),
    )
    other = Subspace((("algorithm", "other"),), (tile("x", SIZES), tile("w", SIZES)))
    return SearchSpace((direct, other))


def engines() -> SearchSpace:
    """Two fixed choices spread over four algorithms; one of them has a knob more."""
    x = tile("x", (1, 2, 4, 8))
    return SearchSpace(
        tuple(
            Subspace(
                (("engine", engine), ("copies", copies)),
                (x, tile("y", (1, 3))) if copies == 2 else (x,),
                (Constraint(var("x") * copies, 8, "x for each copy"),),
            )
            for engine in ("a", "b")
            for copies in (1, 2)
        )
    )
