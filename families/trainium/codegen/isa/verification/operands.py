"""Every limit that the operands of a stream must keep, in the order the kernel was written in."""

from __future__ import annotations

from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.verification.collectives import verify_collectives
from tilesmith.families.trainium.codegen.isa.verification.places import verify_places
from tilesmith.families.trainium.codegen.isa.verification.products import verify_products
from tilesmith.families.trainium.codegen.isa.verification.results import verify_results
from tilesmith.families.trainium.codegen.isa.verification.shapes import verify_shapes
from tilesmith.families.trainium.codegen.isa.verification.tiles import verify_tiles


def verify_operands(stream: InstructionStream) -> None:
    """Check operands against memories, engines, limits and each other.

    Raises:
        VerificationError: naming the instruction, the limit and the value that breaks it.
    """
    verify_products(stream)
    verify_places(stream)
    verify_shapes(stream)
    verify_collectives(stream)
    verify_tiles(stream)
    verify_results(stream)
