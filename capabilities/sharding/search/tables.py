"""A problem as tables over variables, as `elimination` takes it.

A tensor of one reader is one table between two items. One of several readers, which share its
moves, has a variable for the spec it is written in and one for what each reader wants; of very many
readers each wanted spec has a variable that says whether it is made. Invariant: for every choice of
options the cheapest values of the other variables cost what `ShardingProblem.cost` says.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.sharding.layouts.specs import Spec
from tilesmith.capabilities.sharding.search.elimination import CostNetwork
from tilesmith.capabilities.sharding.search.problem import ItemOption, ShardingProblem, Version

_TOGETHER = 1 << 20
"""Entries up to which all readers of a tensor are one table."""


@dataclass
class Tables:
    """The network of a problem; variable n is item n's choice."""

    problem: ShardingProblem
    network: CostNetwork = field(default_factory=CostNetwork)

    def __post_init__(self) -> None:
        for item in self.problem.items:
            self.network.variable([option.cost for option in item.options])
        readers: dict[Version, list[tuple[int, int]]] = {}
        for number, item in enumerate(self.problem.items):
            for place, version in enumerate(item.reads):
                readers.setdefault(version, []).append((number, place))
        writers = self.problem.writers()
        for version, ends in readers.items():
            self._version(version, writers[version], ends)

    def priced(self, price: float) -> CostNetwork:
        """The network with a price in ns for each byte of weights on a core."""
        network = CostNetwork(list(self.network.sizes), list(self.network.tables))
        for number, item in enumerate(self.problem.items):
            if price and any(option.held for option in item.options):
                held = [float(paid(option, price)) for option in item.options]
                network.add((number,), np.array(held, np.float64))
        return network

    def _version(
        self, version: Version, writer: tuple[int, int], readers: Sequence[tuple[int, int]]
    ) -> None:
        """What moving a tensor from its writer to its readers costs."""
        items = self.problem.items
        written = [option.writes[writer[1]] for option in items[writer[0]].options]
        wanted = [[option.reads[place] for option in items[r].options] for r, place in readers]
        if len(readers) == 1 and readers[0][0] != writer[0]:
            costs = self._moves(version, written, wanted[0])
            self.network.add((writer[0], readers[0][0]), costs)
            return
        source = self._spec_variable(writer[0], written)
        sources = list(dict.fromkeys(written))
        ends = [self._spec_variable(r, w) for (r, _), w in zip(readers, wanted, strict=True)]
        specs = [list(dict.fromkeys(w)) for w in wanted]
        if np.prod([len(s) for s in (sources, *specs)], dtype=np.float64) <= _TOGETHER:
            self.network.add((source, *ends), self._shared(version, sources, specs))
        else:
            self._one_by_one(version, (source, sources), list(zip(ends, specs, strict=True)))

    def _spec_variable(self, item: int, specs: Sequence[Spec]) -> int:
        """A variable for which spec an item's options have, and what ties it to them."""
        distinct = list(dict.fromkeys(specs))
        variable = self.network.variable([0.0] * len(distinct))
        tie = np.full((len(specs), len(distinct)), np.inf)
        for number, spec in enumerate(specs):
            tie[number, distinct.index(spec)] = 0.0
        self.network.add((item, variable), tie)
        return variable

    def _moves(
        self, version: Version, written: Sequence[Spec], wanted: Sequence[Spec]
    ) -> NDArray[np.float64]:
        move = self.problem.move
        return np.array([[move(version, s, w) for w in wanted] for s in written], np.float64)

    def _shared(
        self, version: Version, sources: Sequence[Spec], specs: Sequence[Sequence[Spec]]
    ) -> NDArray[np.float64]:
        """What the distinct specs that readers want cost together."""
        every = list(dict.fromkeys(itertools.chain(*specs)))
        costs = self._moves(version, sources, every)
        numbers = [np.array([every.index(s) for s in own]) for own in specs]
        shape = [len(own) for own in specs]
        total = np.zeros((len(sources), *shape))
        for reader, own in enumerate(numbers):
            part = costs[:, own]
            paid = np.zeros((1,) * len(shape), np.bool_)
            for before in range(reader):  # paid already where a reader before wants the same
                same = numbers[before][:, None] == own[None, :]
                paid = paid | _axes(same, (before, reader), len(shape))
            long = (len(own) if n == reader else 1 for n in range(len(shape)))
            total += np.where(paid[None], 0.0, part.reshape(len(sources), *long))
        return total

    def _one_by_one(
        self,
        version: Version,
        source: tuple[int, Sequence[Spec]],
        ends: Sequence[tuple[int, Sequence[Spec]]],
    ) -> None:
        """A variable for each spec that some reader wants: whether it is made."""
        for want in dict.fromkeys(spec for _, specs in ends for spec in specs):
            variable = self.network.variable([0.0, 0.0])
            costs = self._moves(version, source[1], [want])
            self.network.add((source[0], variable), np.hstack([np.zeros_like(costs), costs]))
            for end, specs in ends:
                if want in specs:
                    tie = np.zeros((len(specs), 2))
                    tie[list(specs).index(want), 0] = np.inf
                    self.network.add((end, variable), tie)


def paid(option: ItemOption, price: float) -> int:
    """ns that an option's weights cost at a price a byte."""
    return round(price * option.held)


def _axes(matrix: NDArray[np.bool_], axes: tuple[int, int], rank: int) -> NDArray[np.bool_]:
    """A matrix whose axes are these two of more, in order."""
    shape = [1] * rank
    shape[axes[0]], shape[axes[1]] = matrix.shape
    return matrix.reshape(shape)
