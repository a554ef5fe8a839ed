"""What products and convolutions in matrix registers choose alike: how many tiles, in which order.

Rows (`m`) and columns (`n`) of the result are counted in tiles. A step holds m_tiles x n_tiles of
sums, and of the operands one tile of rows and one of columns at a time.
"""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import Tiles
from tilesmith.search_space.hardware.matrix_registers import tiles_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.knobs import Constraint, Knob, block_counts, choice, order, tile


def registers_of(target: Target) -> Tiles:
    """The matrix registers of a target that has some."""
    tiles = tiles_of(target)
    assert tiles is not None, target.name
    return tiles


def tile_knobs(down: int, across: int) -> tuple[Knob, ...]:
    """The knobs of a result of `down` x `across` tiles."""
    return (
        order("block_order", ("m", "n"), trivial=("m",) if down == 1 else ()),
        choice("tile_order", ("nm",) if down == 1 else ("mn", "nm")),
        tile("m_tiles", range(1, min(down, 4) + 1)),
        tile("n_tiles", range(1, min(across, 4) + 1)),
        tile("m_block", block_counts(down)),
        tile("n_block", block_counts(across)),
    )


def tile_limit(tiles: Tiles) -> Constraint:
    """Sums and two operands have to fit into the registers."""
    held = var("m_tiles") * var("n_tiles")
    meaning = "matrix registers (m_tiles*n_tiles + 2)"
    return Constraint(held + 2, tiles.count, meaning, "choose fewer tiles")
