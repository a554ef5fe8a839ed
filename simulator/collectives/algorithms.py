"""The steps of collectives: who sends which share of the tensor to whom, step after step.

Names and steps are those of the Neuron runtime's description of collectives within and between
nodes: `ring` (p - 1 steps, on as many cycles without a common link as there are), `mesh` (one
step, everybody to everybody, routed), `rdh` (recursive doubling and halving, log2 p steps along
the axes), `single-step mesh` (all-reduce in one step, each sending all it has to all), `kangaring`
(a ring of chips: one core of a chip adds for all of them, or sends to all). A group over several
levels takes them one after another: sums from the inside out, gathers from the outside in.

A lane is an ordered group whose members differ in one level only; all lanes of a stage go at the
same time. `share`s are fractions of the whole tensor of the collective.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilesmith.search_space.meshes.mesh import Level
from tilesmith.simulator.collectives.transfers import Lane, Lanes, Transfers, Ways


@dataclass(frozen=True)
class Step:
    """Transfers that begin together when the step before is done, `times` over.

    Args:
        level: name of the level whose links they take.
        reduces: what is received is added to what is there.
        passes: bytes that DMA engines move for each byte that is sent.
        at_source, at_target: memory accesses for each byte that is sent, at either chip.
    """

    level: str
    transfers: Transfers
    times: int = 1
    reduces: bool = False
    passes: float = 1.0
    at_source: float = 1.0
    at_target: float = 1.0


def step(level: Level, transfers: Transfers, times: int, reduces: bool) -> Step:
    """Return a step that copies, or one that adds: it reads both operands and writes once."""
    if reduces:
        return Step(level.name, transfers, times, True, passes=2.0, at_target=2.0)
    return Step(level.name, transfers, times)


Steps = tuple[Step, ...]
Algorithm = Callable[[Level, Lanes, float, bool], Steps]
"""Steps of a gather (or with True, a sum that is scattered) of a share over lanes of a level."""


def ring(level: Level, lanes: Lanes, share: float, reduces: bool) -> Steps:
    """p - 1 steps, each member sending one p-th to the next, split over the cycles there are."""
    parts = []
    for lane in lanes:
        cycles = np.array(cycles_of(level, lane))
        part = share / len(lane) / len(cycles)
        parts.append(Transfers(Ways.of(cycles, np.roll(cycles, -1, axis=1)), part))
    return (step(level, Transfers.joined(parts), len(lanes[0]) - 1, reduces),)


def mesh(level: Level, lanes: Lanes, share: float, reduces: bool) -> Steps:
    """One step: everybody sends one p-th to everybody else.

    What is summed is written where it is read p-fold, with the receiver's own part; in a chip the
    receiver reads it where it is.
    """
    p = len(lanes[0])
    transfers = Transfers(lanes.pairs, share / p)
    if not reduces:
        return (Step(level.name, transfers),)
    reads, writes = p / (p - 1), 1 / (p - 1)
    if level.shared:
        return (Step(level.name, transfers, 1, True, reads, reads, writes),)
    return (Step(level.name, transfers, 1, True, 1 + reads, 1, 1 + reads + writes),)


def recursive(level: Level, lanes: Lanes, share: float, reduces: bool) -> Steps:
    """log2 p steps along the axes: halves, quarters, ... when it sums, and back when it gathers.

    Lanes begin with different axes, so that the cores of a chip do not all take the same link.
    """
    bits = len(lanes[0]).bit_length() - 1
    cores, rows = lanes.cores, np.arange(len(lanes))[:, None]
    orders = np.array([axes_of(level, lane) for lane in lanes])
    places = np.argsort(orders, axis=1)
    turns = rows * max(1, bits // len(lanes))  # spread evenly over the axes
    steps = []
    for number in range(bits):
        flips = 1 << (number + turns) % bits
        targets = cores[rows, orders[rows, places ^ flips]]
        transfers = Transfers(Ways.of(cores, targets), share / 2 ** (number + 1))
        steps.append(step(level, transfers, 1, reduces))
    return tuple(steps if reduces else reversed(steps))


def single_step(level: Level, lanes: Lanes, share: float) -> Steps:
    """An all-reduce in one step: everybody sends all it has to everybody else, and adds."""
    (parts,) = mesh(level, lanes, share * len(lanes[0]), True)
    return (parts,)


def kangaring(level: Level, lanes: Lanes, share: float, reduces: bool) -> Steps:
    """A ring of chips all of whose cores take part: no steps inside a chip.

    Sums: a core reads what came and the parts of all cores of its chip, and sends their sum on.
    Gathers: it reads what came once, and writes it to the other cores and on. The cores of a chip
    take turns from cycle to cycle.

    Args:
        lanes: one a core of a chip, each over all chips; or several such sets beside each other.
    """
    cells: dict[int, list[Lane]] = {}
    for lane in lanes:
        cells.setdefault(lane[0] // level.inside, []).append(lane)
    parts = []
    for cell in cells.values():
        cores = np.array(cell)
        cycles = cycles_of(level, cell[0])
        place = {core: i for i, core in enumerate(cell[0])}
        around = np.array([[place[core] for core in cycle] for cycle in cycles])
        sources, targets = cores[:, around], cores[:, np.roll(around, -1, axis=1)]
        part = share / len(cell[0]) / len(cycles) / len(cell)
        parts.append(Transfers(Ways.of(sources, targets), part))
    transfers, times, members = Transfers.joined(parts), len(lanes[0]) - 1, level.inside
    if reduces:
        inputs = members + 1.0  # what came, and the part of each core
        return (Step(level.name, transfers, times, True, inputs, inputs),)
    return (Step(level.name, transfers, times, at_source=float(members)),)


ALGORITHMS: dict[str, Algorithm] = {"mesh": mesh, "rdh": recursive, "ring": ring}
SINGLE_STEP, KANGARING = "single-step mesh", "kangaring"


def applies(name: str, members: int) -> bool:
    """Whether an algorithm can run over `members` cores."""
    return name != "rdh" or members & (members - 1) == 0


def cycles_of(level: Level, lane: Lane) -> tuple[Lane, ...]:
    """Directed cycles over a lane that share no link, as far as the topology has them."""
    if len(lane) == 2 or level.topology == "switch":
        return (lane,)
    members = [level.member_of(core) for core in lane]
    place = dict(zip(members, lane, strict=True))
    cycles = [tuple(place[m] for m in snake(level.extents, members))]
    if len(level.extents) == 2 and len(lane) == level.members:
        pair = hamiltonian_pair(*level.extents)
        cycles = [tuple(place[m] for m in cycle) for cycle in pair] or cycles
    return tuple(one for cycle in cycles for one in (cycle, (cycle[0], *reversed(cycle[1:]))))


def snake(extents: tuple[int, ...], members: Sequence[int]) -> list[int]:
    """Members in an order in which neighbours are near each other: rows to and fro."""
    if len(extents) == 1:
        return sorted(members)

    def key(member: int) -> tuple[int, ...]:
        at = [int(index) for index in np.unravel_index(member, extents)]
        turned = [at[0]]
        for axis in range(1, len(extents)):
            turned.append(at[axis] if sum(at[:axis]) % 2 == 0 else -at[axis])
        return tuple(turned)

    return sorted(members, key=key)


def hamiltonian_pair(rows: int, columns: int) -> list[Lane]:
    """Two cycles over all of a torus without a common link, as far as shifted rows make them.

    The first takes every row but its last link, each beginning where the one before ended, and the
    second takes the links that are left.
    """
    first = [
        row * columns + (column - row) % columns for row in range(rows) for column in range(columns)
    ]
    if rows < 3 or columns < 3 or rows % columns:
        return []
    used = {frozenset(pair) for pair in zip(first, [*first[1:], first[0]], strict=True)}
    second, at, seen = [0], 0, {0}
    while True:
        row, column = divmod(at, columns)
        near = [
            (row + dy) % rows * columns + (column + dx) % columns
            for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0))
        ]
        ahead = [m for m in near if frozenset((at, m)) not in used and m not in seen]
        if not ahead:
            break
        at = ahead[0]
        second.append(at)
        seen.add(at)
    return [tuple(first), tuple(second)] if len(second) == rows * columns else []


def axes_of(level: Level, lane: Lane) -> list[int]:
    """Places in a lane ordered so that flipping one bit goes to a neighbour: Gray codes.

    A ring of 2^b is a cube of b dimensions whose corners are its members in the order of their
    Gray codes; of a torus the extents' bits stand beside each other.
    """
    return sorted(range(len(lane)), key=lambda i: _gray_key(level, lane[i]))


def _gray_key(level: Level, core: int) -> int:
    """Gray codes of a core's indices beside each other: neighbours on a ring differ in one bit."""
    key, indices = 0, np.unravel_index(level.member_of(core), level.extents)
    for extent, index in zip(level.extents, map(int, indices), strict=True):
        key = key << (extent - 1).bit_length() | (index ^ index >> 1)
    return key
