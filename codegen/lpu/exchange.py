"""Chips that are linked each to each other, and what they send each other: collectives as chains.

All chips of a node run one program. So that they can, everything is counted from the chip itself:
its way `e` is the link to the chip `e` further on (modulo the number of chips), and part `e` of a
tensor is that of the chip `e` further on. Which part of the whole that is, differs from chip to
chip, and is the host's to know when it lays tensors out.

    chip i, way e   <──────►   chip i + e, way p - e

    all_gather       own part ──► every way;  way e ──► part e
    all_to_all       part e ──► way e;        way e ──► from.e
    reduce_scatter   as all_to_all; part 0 + from.1 + from.2 + ... ──► sum
    all_reduce       as reduce_scatter, the sum of each row on every way as soon as it is made

Nothing waits: a vector is received in the very cycle in which it comes, `flight` cycles after it
was sent, which `scheduling.together` sees to. Every way has an instruction queue of its own: one of
the two links that a queue serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tilesmith.codegen.lpu.chip import LINKS_A_QUEUE, Chip
from tilesmith.codegen.lpu.dataflow import (
    Chain,
    ChainBuilder,
    Operation,
    Receive,
    Role,
    Rows,
    Send,
    Tensor,
)
from tilesmith.search_space.errors import TargetError

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

WEST = 4
"""Ways that leave in the west: as many as links of half the chip's."""

BLOCKS = 4
"""Into so many blocks received rows are cut: a bank is not read while it is written."""


def link_of(way: int) -> int:
    """The link to the chip so many further on."""
    return LINKS_A_QUEUE * (way - 1)


def way_of(link: int) -> int:
    """How many chips further on a link leads."""
    return link // LINKS_A_QUEUE + 1


def aligned(flight: int, chip: Chip) -> int:
    """Cycles from a send to its receive that links are aligned to: so many, or one more where
    vectors of two bytes and more an element would be sent and received in the same cycles."""
    return flight + (flight % (2 * chip.link_cycles) == 0)


def check_links(chips: int, chip: Chip) -> None:
    """Raise `TargetError` where a chip has not a way to every other."""
    most = chip.links // LINKS_A_QUEUE + 1
    if not 2 <= chips <= most:
        raise TargetError(
            f"{chips} chips of target '{chip.target.name}' are not linked each to each other with "
            f"{chip.links} links a chip; 2 to {most} are"
        )


@dataclass(frozen=True)
class Part:
    """Rows of a tensor: `count` from `first` on."""

    tensor: Tensor
    first: int
    count: int

    def rows(self) -> Rows:
        return Rows.of(self.tensor.name, self.first, (self.count, 1))


@dataclass(frozen=True, eq=False)
class Exchange:
    """What a collective adds to a program.

    Attributes:
        results: by chips further on, whose part it holds (0: the own, or what all of a sum is).
    """

    tensors: tuple[Tensor, ...]
    chains: tuple[Chain, ...]
    results: tuple[Part, ...]


def exchange(kind: Kind, name: str, parts: Sequence[Part], chips: int, flight: int) -> Exchange:
    """A collective over all chips of a node.

    Args:
        flight: cycles from a send to its receive.
        name: what its tensors' and chains' names begin with.
        parts: of an all_gather and a send the own one; of others, that for each chip, counted from
            the own one on. All equally long, of type float16 or float32 where they are summed.
    """
    own, node = parts[0], _Node(name, chips, flight)
    match kind:
        case "all_gather":
            sends = node.to_all(own)
            found, takes = node.received(own, range(1, chips), _senders(sends))
            return Exchange(found, (*sends, *takes), (own, *_of(found)))
        case "send":
            sends = [node.sent(own, 1)]
            found, takes = node.received(own, [chips - 1], _senders(sends))
            return Exchange(found, (*sends, *takes), _of(found))
    sends = [node.sent(part, far) for far, part in enumerate(parts) if far]
    role: Role = "output" if kind == "all_to_all" else "temporary"
    found, takes = node.received(own, range(1, chips), _senders(sends), role)
    if kind == "all_to_all":
        return Exchange(found, (*sends, *takes), (own, *_of(found)))
    total = Tensor(f"{name}.sum", own.count, own.tensor.dtype, "output", _block(own.count))
    whole = (Part(total, 0, own.count),)
    adds = node.added(own, _of(found), total, chips if kind == "all_reduce" else 0)
    if kind == "reduce_scatter":
        return Exchange((*found, total), (*sends, *takes, adds), whole)
    last = replace(node, name=f"{name}.all")
    more, ends = last.received(own, range(1, chips), _senders([adds]))
    chains = (*sends, *takes, adds, *ends)
    return Exchange((*found, total, *more), chains, (*whole, *_of(more)))


def _senders(chains: Sequence[Chain]) -> dict[int, str]:
    """The chain that sends, by link."""
    return {step.link: c.name for c in chains for step in c.steps if isinstance(step, Send)}


def _block(rows: int) -> int:
    return -(-rows // BLOCKS)


def _of(tensors: Sequence[Tensor]) -> tuple[Part, ...]:
    return tuple(Part(tensor, 0, tensor.rows) for tensor in tensors)


@dataclass(frozen=True)
class _Node:
    """Chains of one collective.

    Attributes:
        name: what names begin with.
    """

    name: str
    chips: int
    flight: int

    def sent(self, part: Part, far: int) -> Chain:
        b = ChainBuilder(f"{self.name}: to {far}", part.count)
        b.send(b.read(part.rows()), link_of(far))
        return b.chain()

    def to_all(self, part: Part) -> list[Chain]:
        """A chain for each side of the chip: a token travels in one direction."""
        found = []
        for side in (range(1, min(self.chips, WEST + 1)), range(WEST + 1, self.chips)):
            if side:
                b = ChainBuilder(f"{self.name}: to {side[0]} to {side[-1]}", part.count)
                value = b.read(part.rows())
                for far in side:
                    b.send(value, link_of(far))
                found.append(b.chain())
        return found

    def received(
        self, like: Part, fars: Iterable[int], senders: Mapping[int, str], role: Role = "output"
    ) -> tuple[tuple[Tensor, ...], list[Chain]]:
        """What comes from chips so far on, in tensors of their own."""
        tensors, chains = [], []
        for far in fars:
            dtype, back = like.tensor.dtype, link_of(self.chips - far)
            name = f"{self.name}.{far}"
            tensors.append(Tensor(name, like.count, dtype, role, _block(like.count)))
            b = ChainBuilder(f"{self.name}: from {far}", like.count)
            value = b.add(Receive(dtype, link_of(far), senders[back], back, self.flight))
            b.write(value, Part(tensors[-1], 0, like.count).rows())
            chains.append(b.chain())
        return tuple(tensors), chains

    def added(self, own: Part, others: Sequence[Part], total: Tensor, chips: int) -> Chain:
        """Own and received rows added in float32, one after the other, and sent to all of so many
        chips."""
        b = ChainBuilder(f"{self.name}: sum", own.count)
        values = [b.read(part.rows()) for part in (own, *others)]
        operations = [
            Operation("add", (len(values) + n - 1 if n else 0, n + 1), "float32")
            for n in range(len(others))
        ]
        if total.dtype != "float32":
            last = len(values) + len(operations) - 1
            operations.append(Operation("convert", (last,), total.dtype))
        made = b.compute(values, *operations)
        b.write(made, Part(total, 0, own.count).rows())
        for far in range(1, chips):
            b.send(made, link_of(far))
        return b.chain()
