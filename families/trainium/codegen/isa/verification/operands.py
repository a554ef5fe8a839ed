"""Every limit that the operands of a stream must keep, in the order the kernel was written in."""

from __future__ import annotations

from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.verification.collectives import collectives
from tilesmith.families.trainium.codegen.isa.verification.places import places
from tilesmith.families.trainium.codegen.isa.verification.products import products
from tilesmith.families.trainium.codegen.isa.verification.report import hold
from tilesmith.families.trainium.codegen.isa.verification.results import results
from tilesmith.families.trainium.codegen.isa.verification.shapes import shapes
from tilesmith.families.trainium.codegen.isa.verification.tiles import tiles


def verify_operands(stream: InstructionStream) -> None:
    """Check operands against memories, engines, limits and each other.

    Raises:
        VerificationError: naming the instruction, the limit and the value that breaks it.
    """
    for laws in (products, places, shapes, collectives, tiles, results):
        hold(stream, laws(stream))
