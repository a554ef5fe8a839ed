"""Matrix registers of CPU targets and what multiplies them, as instruction sets list them."""

from tilesmith.search_space.hardware.instruction_set import (
    DotProduct,
    Tiles,
    has_features,
    instruction_set_of,
)
from tilesmith.search_space.hardware.target import Target


def tiles_of(target: Target) -> Tiles | None:
    """The matrix registers that a CPU target has."""
    tiles = instruction_set_of(target).tiles
    return tiles if tiles is not None and has_features(target, tiles.features) else None


def tile_product(target: Target, left: str, right: str) -> DotProduct | None:
    """The instruction of a CPU target that multiplies matrices of two dtypes, in this order."""
    if tiles_of(target) is None:
        return None
    for product in instruction_set_of(target).tile_products:
        if product.inputs == (left, right) and has_features(target, product.features):
            return product
    return None
