"""Matrix registers of CPU targets and what multiplies them, as instruction sets list them."""

from __future__ import annotations

from tilesmith.search_space.hardware.instruction_set import (
    DotProduct,
    Tiles,
    has_features,
    instruction_set_of,
)
from tilesmith.search_space.hardware.target import Target


def tiles_of(target: Target) -> Tiles | None:
    """The matrix registers that a CPU target has."""
    found = instruction_set_of(target).tiles
    return found if found is not None and has_features(target, found.features) else None


def tile_product(target: Target, left: str, right: str) -> DotProduct | None:
    """The instruction of a CPU target that multiplies matrices of two dtypes, in this order."""
    if tiles_of(target) is None:
        return None
    for found in instruction_set_of(target).tile_products:
        if found.inputs == (left, right) and has_features(target, found.features):
            return found
    return None
