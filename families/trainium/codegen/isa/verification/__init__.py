"""Laws of instruction streams, a group of them a file; each broken one is an error that names
instruction and limit.

    verify_operands           places, shapes, products, tiles: what each instruction may name
    verify_dataflow           nothing is read, summed into or left behind that nothing wrote
    verify_together           the collectives of several cores' streams meet
    verify_synchronisation    semaphores and ports: the same result on any timing of the machine
"""

from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.verification.collectives import (
    collectives,
    verify_together,
)
from tilesmith.families.trainium.codegen.isa.verification.dataflow import (
    ByteSpan,
    Promised,
    verify_dataflow,
)
from tilesmith.families.trainium.codegen.isa.verification.places import places
from tilesmith.families.trainium.codegen.isa.verification.products import products
from tilesmith.families.trainium.codegen.isa.verification.report import hold
from tilesmith.families.trainium.codegen.isa.verification.results import results
from tilesmith.families.trainium.codegen.isa.verification.shapes import shapes
from tilesmith.families.trainium.codegen.isa.verification.synchronisation import (
    verify_synchronisation,
)
from tilesmith.families.trainium.codegen.isa.verification.tiles import tiles

__all__ = [
    "ByteSpan",
    "Promised",
    "verify_dataflow",
    "verify_operands",
    "verify_synchronisation",
    "verify_together",
]


def verify_operands(stream: InstructionStream) -> None:
    """Check operands against memories, engines, limits and each other, in the order in which the
    kernel was written.

    Raises:
        VerificationError: naming the instruction, the limit and the value that breaks it.
    """
    for laws in (products, places, shapes, collectives, tiles, results):
        hold(stream, laws(stream))
