"""What a linked program finds in memory when it starts, and what it has to leave there.

A kernel's inputs that no kernel before it writes are given; outputs that others read afterwards are
wanted, whatever residency makes of those in between. The program is verified against both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream
from tilesmith.families.trainium.codegen.isa.verification import ByteSpan
from tilesmith.families.trainium.codegen.isa.verification.dataflow import writes_hbm
from tilesmith.families.trainium.codegen.linking.draft import KernelDraft, Range, homes


def given_spans(parts: Sequence[KernelDraft], ranges: Sequence[Range]) -> list[ByteSpan]:
    """Bytes that kernels read and none before them writes; tensors are numbers of `ranges`."""
    written: list[ByteSpan] = []
    spans: list[ByteSpan] = []
    for part in parts:
        touched = _spans(part, ranges)
        for local, span in touched.items():
            if part.stream.tensors[local].role == "input":
                spans += _without(span, written)
        written += [s for n, s in touched.items() if part.stream.tensors[n].role != "input"]
    return spans


def wanted_spans(
    parts: Sequence[KernelDraft], ranges: Sequence[Range], external: Sequence[Range]
) -> list[ByteSpan]:
    """Outputs that `external` reads, but those that their kernel leaves in part (padding)."""
    return [
        span
        for part in parts
        for local, span in _spans(part, ranges).items()
        if part.stream.tensors[local].role == "output"
        and any(place.meets(other) for other in external if (place := part.places[local]))
        and _stored(part.stream, local) >= part.stream.tensors[local].elements
    ]


def _spans(part: KernelDraft, ranges: Sequence[Range]) -> dict[int, ByteSpan]:
    """Where each tensor of a part lies."""
    spans = {}
    for local, home in homes(part, ranges).items():
        place = part.places[local]
        assert place is not None
        first = place.offset - ranges[home].offset
        spans[local] = ByteSpan(home, first, first + place.nbytes)
    return spans


def _without(span: ByteSpan, others: Sequence[ByteSpan]) -> list[ByteSpan]:
    """The parts of a span that no other covers."""
    left = [span]
    for other in others:
        if other.tensor == span.tensor:
            sides = [
                side
                for s in left
                for side in (
                    ByteSpan(s.tensor, s.first, min(s.stop, other.first)),
                    ByteSpan(s.tensor, max(s.first, other.stop), s.stop),
                )
            ]
            left = [side for side in sides if side.first < side.stop]
    return left


def _stored(stream: InstructionStream, tensor: int) -> int:
    """Elements that a stream stores into a tensor, if each is stored through one access."""
    out = np.unique(stream.rows["out"][writes_hbm(stream)])
    mine = out[stream.accesses["tensor"][out] == tensor]
    return int(stream.accesses["count"][mine].prod(axis=1).sum())
