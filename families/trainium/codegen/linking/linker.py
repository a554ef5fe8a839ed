"""The linker: kernels that run one after another become one program for the core.

    kernels (streams) ─ concatenate ─► draft ─ keep on chip ─ drop repeats ─ place ─ order ─► stream

One program is faster than its kernels one by one: weights are loaded as far ahead as there is room
for them, tensors that fit stay in SBUF instead of going to HBM and back, and no engine waits for
the others except for data: instructions of a kernel and of those after it take turns. Semaphores,
verification and the grant order are made anew for the whole, so a linked program is held to every
rule a kernel is.

A kernel's inputs that no kernel before it writes are given; outputs that others read afterwards are
wanted, whatever residency makes of those in between. The program is verified against both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Ints
from tilesmith.families.trainium.codegen.isa.verification import (
    ByteSpan,
    verify_dataflow,
    verify_operands,
    verify_synchronisation,
)
from tilesmith.families.trainium.codegen.isa.verification.dataflow import writes_hbm
from tilesmith.families.trainium.codegen.linking.addresses import Resident, place_tiles
from tilesmith.families.trainium.codegen.linking.draft import (
    Draft,
    KernelDraft,
    Range,
    concatenate,
    homes,
)
from tilesmith.families.trainium.codegen.linking.repeats import without_repeats
from tilesmith.families.trainium.codegen.linking.residency import (
    Policy,
    drop_resident_transfers,
    keep_on_chip,
)
from tilesmith.families.trainium.codegen.timing.dependences import with_semaphores
from tilesmith.families.trainium.codegen.timing.ordering import in_grant_order
from tilesmith.families.trainium.codegen.timing.scheduling import RULES, Rule, schedules
from tilesmith.search_space.support.errors import CodegenError


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


@dataclass(frozen=True, eq=False)
class Linked:
    """A linked program.

    Attributes:
        stream: its instructions; tensors in HBM are `ranges` of the device's memory, in order.
        parts: names of the kernels.
        owners: the kernel each row is of, shape (n,).
        residents: tensors that stay on chip between kernels.
    """

    stream: InstructionStream
    ranges: tuple[Range, ...]
    parts: tuple[str, ...]
    owners: Ints
    residents: tuple[Resident, ...] = ()

    @property
    def saved_bytes(self) -> int:
        """HBM traffic that residents save."""
        return sum(resident.saved for resident in self.residents)


def links(
    name: str,
    parts: Sequence[KernelDraft],
    core: Core,
    external: Sequence[Range] = (),
    policy: Policy | None = None,
    rules: Sequence[Rule] = RULES[:1],
    checked: bool = True,
) -> list[Linked]:
    """Link kernels into one program, once for each rule.

    Args:
        external: what is read when the program has ended, by the caller or the host.
        policy: how far tensors stay on chip; None: none does. Where tiles and residents do not fit
            together, fewer stay.
        rules: how instructions are ordered.
        checked: whether to verify the programs; where only their time is asked for, not.

    Raises:
        VerificationError: the program breaks a rule; an error of ours, not of the caller.
    """
    shared = any(part.stream.allocations for part in parts)  # collectives alone have no tiles
    while True:
        draft = concatenate(name, parts, core)
        residents = keep_on_chip(draft, external, policy) if policy is not None else ()
        if shared:
            without_repeats(draft, residents)
        try:
            place_tiles(draft, residents, shared)
        except CodegenError:
            if not shared:
                if policy is None:
                    raise
                policy = policy.less()
            shared = False
            continue
        spans = (
            given_spans(parts, draft.ranges),
            wanted_spans(parts, draft.ranges, external),
        )
        whole = draft.stream()
        if checked:
            verify_operands(whole)
        return [
            _finish(draft, residents, stream, spans if checked else None)
            for stream in schedules(whole, rules)
        ]


def link(
    name: str,
    parts: Sequence[KernelDraft],
    core: Core,
    external: Sequence[Range] = (),
    policy: Policy | None = None,
) -> Linked:
    """As `links`, by the usual rule."""
    return links(name, parts, core, external, policy)[0]


def among_neighbours(part: KernelDraft, core: Core) -> InstructionStream:
    """A kernel without the transfers that residency would spare it, for timing only.

    Its neighbours are taken to keep every activation on chip that keeps its rows where they are.
    """
    draft = concatenate(part.name, [part], core)
    constant = {place for place in part.places if place is not None and place.region == "constant"}
    activations = [
        number
        for number, place in enumerate(draft.ranges)
        if not any(place.meets(other) for other in constant)
    ]
    drop_resident_transfers(draft, activations)
    return in_grant_order(with_semaphores(draft.stream()))


def _finish(
    draft: Draft,
    residents: tuple[Resident, ...],
    stream: InstructionStream,
    spans: tuple[list[ByteSpan], list[ByteSpan]] | None,
) -> Linked:
    """Verification and grant order for a draft in some order; `spans` are what is given and wanted
    in memory, None: do not verify."""
    if spans is not None:
        verify_dataflow(stream, *spans)
        verify_synchronisation(stream)
    stream = in_grant_order(stream)
    owners = draft.owners[stream.rows["position"]]
    return Linked(stream, tuple(draft.ranges), draft.parts, owners, residents)
