"""The passes of families that multiply bytes: quantised products become their kernels."""

from __future__ import annotations

from tilesmith.compiler.passes.constant_folding import FoldConstants
from tilesmith.compiler.passes.integer_products import FoldIntegerProducts
from tilesmith.compiler.passes.moved_bytes import MoveBytes
from tilesmith.compiler.passes.quantised_spellings import SpellQuantised
from tilesmith.compiler.passes.unsigned_bytes import UnsignBytes
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.search_space.hardware.target import Target


def integer_products(target: Target) -> tuple[Pass, ...]:
    """In their order, before constants are folded (`Pipeline.before_folding`)."""
    return (
        FoldConstants(leaving="DequantizeLinear"),
        SpellQuantised(),
        MoveBytes(),
        UnsignBytes(),
        FoldIntegerProducts(target),
    )
