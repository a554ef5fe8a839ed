"""Programs that are alike: equal but for names and the numbers they compute with.

Stages of a pipeline that hold the same layers of a transformer are: what is found for one, the
order of its chains and their units, gives the others the same schedule without a search
(`scheduler.ordered`).
"""

from collections.abc import Iterator
from dataclasses import astuple, fields, replace
from hashlib import blake2b

from tilesmith.families.lpu.codegen.dataflow import Dataflow, Operation, Rows, Step


def likeness(flow: Dataflow) -> bytes:
    """A digest of tensors and chains without their names, and of operations without immediates."""
    digest = blake2b()
    numbers = {name: number for number, name in enumerate(flow.tensors)}
    for tensor in flow.tensors.values():
        digest.update(repr(astuple(replace(tensor, name=""))).encode())
    for chain in flow.chains:
        digest.update(repr((chain.count, chain.not_before, chain.turned)).encode())
        for step in chain.steps:
            for part in _parts(step, numbers):
                digest.update(part)
    return digest.digest()


def _parts(step: Step, numbers: dict[str, int]) -> Iterator[bytes]:
    yield type(step).__name__.encode()
    for field in fields(step):
        value = getattr(step, field.name)
        match value:
            case Rows(tensor, rows):
                yield repr((numbers[tensor], len(rows))).encode()
                yield rows.tobytes()
            case (Operation(), *_):
                yield repr([(one.function, one.operands, one.dtype) for one in value]).encode()
            case str() if value in numbers:
                yield repr(numbers[value]).encode()
            case _:
                yield repr(value).encode()
