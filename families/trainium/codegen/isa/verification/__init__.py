"""Laws of instruction streams, a group of them a file; each broken one is an error that names
instruction and limit.

    verify_operands           places, shapes, products, tiles: what each instruction may name
    verify_dataflow           nothing is read, summed into or left behind that nothing wrote
    verify_together           the collectives of several cores' streams meet
    verify_synchronisation    semaphores and ports: the same result on any timing of the machine
"""

from tilesmith.families.trainium.codegen.isa.verification.collectives import verify_together
from tilesmith.families.trainium.codegen.isa.verification.dataflow import (
    ByteSpan,
    Promised,
    verify_dataflow,
)
from tilesmith.families.trainium.codegen.isa.verification.operands import verify_operands
from tilesmith.families.trainium.codegen.isa.verification.synchronisation import (
    verify_synchronisation,
)

__all__ = [
    "ByteSpan",
    "Promised",
    "verify_dataflow",
    "verify_operands",
    "verify_synchronisation",
    "verify_together",
]
