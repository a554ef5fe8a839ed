"""Knobs: the finite choices a template offers, and the limits that tie them together.

Two families. A *tile* knob is an integer that may stay symbolic in a lowered program: thousands of
its values share one lowered structure. A *structural* knob (choice, order, layout, algorithm) picks
the structure itself. Knobs are legal by construction where they can be (divisors, capped lists);
`Constraint`s cover what only a combination decides, and name the limit they guard.
"""

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.spaces.config import KnobValue


@dataclass(frozen=True)
class Knob:
    """One choice.

    Attributes:
        name: unique in its space; a tile knob's name is also its symbol in the program.
        values: allowed values, distinct, at least one; tile values ascending.
        structural: whether the value changes the structure of the program.
        setting: whether all it changes is an engine or a number of places, which it is, as it is,
            in the schedule (`families.kit.programs.skeleton`): nothing there may depend on it.
    """

    name: str
    values: tuple[KnobValue, ...]
    structural: bool
    setting: bool = False

    def __post_init__(self) -> None:
        assert self.values, f"knob '{self.name}' has no value"
        assert len(set(self.values)) == len(self.values), f"knob '{self.name}' repeats a value"

    @property
    def ordered(self) -> bool:
        """Whether neighbouring values are alike (so mutation may step): they are numbers."""
        return all(isinstance(value, int) for value in self.values)


def tile(name: str, values: Iterable[int]) -> Knob:
    """A tile size, one of `values` (sorted, duplicates removed)."""
    return Knob(name, tuple(sorted(set(values))), structural=False)


def count(name: str, values: Iterable[int], setting: bool = False) -> Knob:
    """A number that selects the structure of the program, as of copies of a tile."""
    return Knob(name, tuple(sorted(set(values))), structural=True, setting=setting)


def choice(name: str, values: Sequence[str], setting: bool = False) -> Knob:
    """One of a few named alternatives (also: an algorithm)."""
    return Knob(name, tuple(values), structural=True, setting=setting)


def order(name: str, loops: Sequence[str], trivial: Collection[str] = ()) -> Knob:
    """A permutation of `loops`, written 'mnk'-like as names joined by commas.

    Where the `trivial` ones, which run once whatever the tiles, stand makes no difference: of the
    permutations that agree in the others only the first is offered.

    >>> order("block_order", "oyc", trivial="y").values
    ('o,y,c', 'y,c,o')
    """
    orders: dict[tuple[str, ...], str] = {}
    for permutation in itertools.permutations(loops):
        kept = tuple(loop for loop in permutation if loop not in trivial)
        orders.setdefault(kept, ",".join(permutation))
    return Knob(name, tuple(orders.values()), structural=True)


def layout(name: str, layouts: Sequence[str]) -> Knob:
    """A physical data layout by name, e.g. 'NCHW' or 'NCHW16c'."""
    return Knob(name, tuple(layouts), structural=True)


def divisors(number: int, limit: int | None = None) -> tuple[int, ...]:
    """Divisors of `number` in ascending order, none above `limit`."""
    return tuple(d for d in range(1, min(number, limit or number) + 1) if number % d == 0)


def tile_sizes(extent: int, limit: int) -> tuple[int, ...]:
    """Sensible tile sizes of an extent: its divisors and the powers of two, up to `limit`.

    Sizes that do not divide are legal: lowering makes a tail of the rest.
    """
    limit = max(1, min(limit, extent))
    powers = {1 << e for e in range(limit.bit_length()) if 1 << e <= limit}
    return tuple(sorted(powers | set(divisors(extent, limit))))


def block_counts(extent: int) -> list[int]:
    """Numbers of tiles in a cache block: powers of two, or everything."""
    return [*(1 << e for e in range(extent.bit_length()) if 1 << e < extent), extent]


def in_layout(algorithm: str, layout: str) -> tuple[tuple[str, str], ...]:
    """Fixed values of an algorithm that reads and writes one layout."""
    return (("algorithm", algorithm), ("input_layout", layout), ("output_layout", layout))


@dataclass(frozen=True)
class Constraint:
    """`value <= limit` for every legal configuration.

    Attributes:
        value: over the names of knobs whose values are numbers.
        limit: inclusive upper bound.
        meaning: noun phrase of the value with its unit, e.g. "vector registers of the tile".
        advice: what to change when it is broken.
    """

    value: Expr
    limit: int
    meaning: str
    advice: str = "choose smaller tiles"

    def explain(self, value: int) -> str:
        return f"{self.meaning}: {value} exceeds the limit of {self.limit}; {self.advice}"


UNROLLED_LIMIT = 128
"""Statements an innermost body may be unrolled to: more only costs code size and compile time (on
the processors measured, the last percent of a register tile's speed is reached below 100)."""


def register_limit(tile: Expr, operands: Expr, registers: int, formula: str) -> Constraint:
    """The limit on accumulators: with their operands they stay in registers.

    Wherever we measured the best tiles of either kind, with 16 and with 32 registers, those that
    spill lost, by up to a factor of two and a half.

    Args:
        tile: accumulators, in vectors, over tile knobs.
        operands: vectors held beside them; a broadcast takes one register more.
        registers: vector registers of the target.
        formula: the sum in words, for the message.
    """
    meaning = f"vector registers of the accumulator tile ({formula})"
    return Constraint(tile + operands + 1, registers, meaning, "choose a smaller tile")


def unrolled_limit(statements: Expr, formula: str) -> Constraint:
    """The limit on unrolled code.

    Args:
        statements: how many there are, over tile knobs.
        formula: the same in words, for the message.
    """
    meaning = f"unrolled multiply-adds of the innermost body ({formula})"
    return Constraint(statements, UNROLLED_LIMIT, meaning, "choose smaller tiles or less unrolling")
