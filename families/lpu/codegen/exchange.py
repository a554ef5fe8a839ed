"""What chips that are linked each to each other send each other: collectives as chains.

All chips of a node run one program, in which ways and parts are counted from the chip itself
(`fabric`): part `e` of a tensor is that of member `e` of its group, counted so. Which part of the
whole that is, differs from chip to chip. Either the host knows, when it lays tensors out; or parts
lie where they belong on every chip, row by row side by side (`VectorTensor.parts`), and chains
that are `turned` copy them out and in, beginning on each chip with another.

    all_gather       own part ──► every way;  way e ──► part e
    all_to_all       part e ──► way e;        way e ──► from.e
    reduce_scatter   as all_to_all; part 0 + from.1 + from.2 + ... ──► sum
    all_reduce       as reduce_scatter, the sum of each row on every way as soon as it is made

Of two, both add what the other has, and nobody sends sums: a sum of two is the same either way.
Nothing waits: a vector is received in the very cycle in which it comes, `flight` cycles after it
was sent, which `scheduling.together` sees to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tilesmith.families.lpu.codegen.dataflow import (
    Chain,
    ChainBuilder,
    Operation,
    Receive,
    Role,
    Rows,
    Send,
    VectorTensor,
)
from tilesmith.families.lpu.codegen.fabric import ChipGroup, link_of

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

WEST = 4
"""Ways that leave in the west: as many as links of half the chip's."""

BLOCKS = 4
"""Into so many blocks received rows are cut: a bank is not read while it is written."""


@dataclass(frozen=True)
class RowRange:
    """Rows of a tensor: `count` from `first` on, every `step`-th."""

    tensor: VectorTensor
    first: int
    count: int
    step: int = 1

    def rows(self) -> Rows:
        return Rows.of(self.tensor.name, self.first, (self.count, self.step))


@dataclass(frozen=True, eq=False)
class ChipExchange:
    """What a collective adds to a program.

    Attributes:
        results: by members counted from the chip itself, whose part it holds (0: the own, or what
            all of a sum is).
    """

    tensors: tuple[VectorTensor, ...]
    chains: tuple[Chain, ...]
    results: tuple[RowRange, ...]


def exchange(
    kind: Kind,
    name: str,
    parts: Sequence[RowRange],
    group: ChipGroup,
    flight: int,
    role: Role = "output",
) -> ChipExchange:
    """A collective over groups of chips of a node.

    Args:
        name: what its tensors' and chains' names begin with.
        parts: of an all_gather and a send the own one; of others, that for each member, counted
            from the own one on. All equally long, of type float16 or float32 where they are summed.
        flight: cycles from a send to its receive.
        role: of the tensors of results.
    """
    own, node = parts[0], _Node(name, group, flight, role)
    match kind:
        case "all_gather":
            sends = node.to_all(own)
            received, takes, tensors = node.received(own, _senders(sends))
            return ChipExchange(tensors, (*sends, *takes), (own, *received))
        case "send":
            sends = [node.sent(own, 1)]
            received, takes, tensors = node.received(own, _senders(sends))
            return ChipExchange(tensors, (*sends, *takes), received)
    sends = [node.sent(part, far) for far, part in enumerate(parts) if far]
    if kind == "all_to_all":
        received, takes, tensors = node.received(own, _senders(sends))
        return ChipExchange(tensors, (*sends, *takes), (own, *received))
    received, takes, tensors = replace(node, role="temporary").received(own, _senders(sends))
    whole = node.tensor(own, "sum")
    adds = node.added(own, received, _all_of(whole), kind == "all_reduce")
    if kind == "reduce_scatter":
        return ChipExchange((*tensors, whole), (*sends, *takes, adds), (_all_of(whole),))
    last = replace(node, name=f"{name}.all")
    ends, taken, more = last.received(own, _senders([adds]))
    return ChipExchange(
        (*tensors, whole, *more), (*sends, *takes, adds, *taken), (_all_of(whole), *ends)
    )


def added_by_both(
    name: str, own: RowRange, group: ChipGroup, flight: int, total: RowRange
) -> ChipExchange:
    """An all-reduce over two: each adds what the other has to what it has itself.

    Args:
        own: all rows; total: where the sum goes, as many.
    """
    node = _Node(name, group, flight, "temporary")
    sends = [node.sent(own, 1)]
    received, takes, tensors = node.received(own, _senders(sends))
    adds = node.added(own, received, total, False)
    return ChipExchange(tensors, (*sends, *takes, adds), (total,))


def copied(name: str, given: RowRange, into: RowRange, group: ChipGroup) -> Chain:
    """Rows copied: out of a tensor in parts, or into one, those counted from the chip itself."""
    b = ChainBuilder(f"{name}: copy", given.count)
    b.write(b.read(given.rows()), into.rows())
    turns = given.tensor.parts > 1 or into.tensor.parts > 1
    return replace(b.chain(), turned=group.axes if turns else ())


def _all_of(tensor: VectorTensor) -> RowRange:
    return RowRange(tensor, 0, tensor.rows)


def _senders(chains: Sequence[Chain]) -> dict[int, str]:
    """The chain that sends, by link."""
    return {step.link: c.name for c in chains for step in c.steps if isinstance(step, Send)}


@dataclass(frozen=True)
class _Node:
    """Chains of one collective.

    Attributes:
        name: what names begin with.
        role: of tensors of results.
    """

    name: str
    group: ChipGroup
    flight: int
    role: Role

    def tensor(self, like: RowRange, what: str) -> VectorTensor:
        """A tensor for a result."""
        block = -(-like.count // BLOCKS)
        return VectorTensor(f"{self.name}.{what}", like.count, like.tensor.dtype, self.role, block)

    def sent(self, part: RowRange, far: int) -> Chain:
        b = ChainBuilder(f"{self.name}: to {far}", part.count)
        b.send(b.read(part.rows()), link_of(self.group.ways[far - 1]))
        return b.chain()

    def to_all(self, part: RowRange) -> list[Chain]:
        """A chain for each side of the chip: a token travels in one direction."""
        chains = []
        for west in (True, False):
            side = [way for way in self.group.ways if (way <= WEST) == west]
            if side:
                b = ChainBuilder(f"{self.name}: by {min(side)} to {max(side)}", part.count)
                value = b.read(part.rows())
                for way in side:
                    b.send(value, link_of(way))
                chains.append(b.chain())
        return chains

    def received(
        self, like: RowRange, senders: Mapping[int, str]
    ) -> tuple[tuple[RowRange, ...], list[Chain], tuple[VectorTensor, ...]]:
        """What comes from members: the parts, the chains, and the tensors made for it."""
        parts, chains, tensors = list[RowRange](), list[Chain](), list[VectorTensor]()
        for far, (way, back) in enumerate(zip(self.group.ways, self.group.backs, strict=True), 1):
            if link_of(back) not in senders:
                continue  # of a send, all but one
            tensors.append(self.tensor(like, str(far)))
            parts.append(_all_of(tensors[-1]))
            b = ChainBuilder(f"{self.name}: from {far}", like.count)
            sender = senders[link_of(back)]
            dtype = like.tensor.dtype
            value = b.add(Receive(dtype, link_of(way), sender, link_of(back), self.flight))
            b.write(value, parts[-1].rows())
            chains.append(b.chain())
        return tuple(parts), chains, tuple(tensors)

    def added(
        self, own: RowRange, others: Sequence[RowRange], total: RowRange, to_all: bool
    ) -> Chain:
        """Own and received rows added in float32, one after the other, and sent to all."""
        b = ChainBuilder(f"{self.name}: sum", own.count)
        values = [b.read(part.rows()) for part in (own, *others)]
        operations = [
            Operation("add", (len(values) + n - 1 if n else 0, n + 1), "float32")
            for n in range(len(others))
        ]
        if total.tensor.dtype != "float32":
            last = len(values) + len(operations) - 1
            operations.append(Operation("convert", (last,), total.tensor.dtype))
        total_sum = b.compute(values, *operations)
        b.write(total_sum, total.rows())
        for way in self.group.ways if to_all else ():
            b.send(total_sum, link_of(way))
        return b.chain()
