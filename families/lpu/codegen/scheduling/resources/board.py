"""The board: everything that is taken so far, and what the whole program says about its tensors.

Invariants: only `settling.commit` takes things; blocks once placed stay where they are until their
last reader has been scheduled.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.chip import SXM_KINDS, Chip
from tilesmith.families.lpu.codegen.scheduling.resources.calendars import BusyIntervals, Streams
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import read_parts
from tilesmith.families.lpu.codegen.scheduling.resources.memory import ChipMemory, Words
from tilesmith.search_space.support.errors import NoRoomError

Block = tuple[str, int]
"""A block of a tensor, by number."""

Homes = tuple[tuple[Words, ...], ...]
"""Where a copy of a block lies: by stripe and byte plane."""


@dataclass(frozen=True)
class _Layout:
    """How a tensor is cut.

    Attributes:
        multiplied: only products use it (or make it, `_shared_blocks`), so that each block may lie
            in either hemisphere.
        outer: rather near MXM than near VXM: partial sums, and row numbers of gathers.
        east: gathers and their row numbers lie in the east.
        index: row numbers of gathers, which lie outside all tables: both flow inward.
        loaded: constants that are loaded into MXM: a few cycles at a time, of many slices at once.
    """

    tensor: dataflow.VectorTensor
    block: int
    stripes: int
    multiplied: bool
    outer: bool
    inner: bool
    loaded: bool = False
    index: bool = False

    @property
    def blocks(self) -> int:
        return -(-self.tensor.rows // self.block)

    def rows_of(self, block: int) -> int:
        """Rows of a block; the last may have fewer."""
        return min(self.block, self.tensor.rows - block * self.block)


@dataclass
class Plane:
    """An MXM plane: when its array and its load buffer are free again, and what is installed."""

    free: int = 0
    buffer_free: int = 0
    installed: tuple[object, ...] = ()


@dataclass
class Board:
    """See the module's docstring.

    Attributes:
        homes_held: slices that blocks of temporaries lie on, in the west and in the east, each as
            often as it holds one: what VXM makes goes where fewer are, since ports run short sooner
            than words do.
    """

    chip: Chip
    layouts: dict[str, _Layout]
    memory: ChipMemory
    streams: Streams
    partners: dict[Block, set[Block]]
    planes: list[Plane] = field(default_factory=lambda: [Plane() for _ in range(4)])
    alus: list[BusyIntervals] = field(default_factory=list)
    sxm: dict[tuple[bool, str], list[BusyIntervals]] = field(default_factory=dict)
    links: dict[tuple[int, bool], BusyIntervals] = field(
        default_factory=lambda: defaultdict(BusyIntervals)
    )
    homes: dict[tuple[str, int, bool], list[Homes]] = field(default_factory=dict)
    homes_held: list[int] = field(default_factory=lambda: [0, 0])
    sides: dict[Block, bool] = field(default_factory=dict)
    ready: dict[str, dataflow.Ints] = field(default_factory=dict)
    read_until: dict[str, dataflow.Ints] = field(default_factory=dict)

    @classmethod
    def of(cls, flow: dataflow.Dataflow, chip: Chip) -> "Board":
        """An empty board for a program.

        Raises:
            NoRoomError: a block is larger than a bank.
        """
        layouts = layouts_of(flow, chip)
        board = cls(chip, layouts, ChipMemory(chip), Streams(chip.streams, chip.mxm_place), {})
        board.alus = [BusyIntervals() for _ in range(chip.alus)]
        for east in (False, True):
            for kind, count in zip(SXM_KINDS, chip.sxm, strict=True):
                board.sxm[east, kind] = [BusyIntervals() for _ in range(count)]
        board.partners = _partners(flow, layouts)
        for name in _written(flow):
            board.ready[name] = np.zeros(layouts[name].tensor.rows, np.int64)
            board.read_until[name] = np.zeros(layouts[name].tensor.rows, np.int64)
        return board

    def side_key(self, tensor: str, row: int) -> Block:
        """What the side of a tensor's row is known by: its block, or the whole tensor."""
        layout = self.layouts[tensor]
        return (tensor, row // layout.block if layout.multiplied else -1)

    def side(self, tensor: str, row: int, wanted: bool | None) -> tuple[bool, ...]:
        """The hemispheres that hold a row, or are to hold it (`rigid.Sides`), once a home."""
        layout = self.layouts[tensor]
        copies = layout.tensor.copies
        if copies > 1 and tensor not in self.ready:
            return (False, True) * (copies // 2)
        return self._side(tensor, row, wanted) * copies

    def _side(self, tensor: str, row: int, wanted: bool | None) -> tuple[bool, ...]:
        layout = self.layouts[tensor]
        if layout.inner:
            return (True,)
        known = self.sides.get(self.side_key(tensor, row))
        if known is not None:
            return (known,)
        if layout.outer and wanted is None:
            return (True,)
        words, half = self.memory.words, self.chip.half
        taken = (sum(words[:half]), sum(words[half:]))
        if wanted is None and layout.tensor.role == "temporary":
            wanted = self.homes_held[0] > self.homes_held[1]
        full = taken[bool(wanted)] > FULL * half * 2 * self.chip.bank_words
        if wanted is None or (full and layout.tensor.rows > FEW_ROWS):
            return (taken[0] > taken[1],)
        return (wanted,)


def layouts_of(flow: dataflow.Dataflow, chip: Chip) -> dict[str, _Layout]:
    """How every tensor of a program is cut."""
    weights, moving, sums, indices, tables, others, written = _uses(flow)
    homes = dict.fromkeys(_kept_twice(flow, chip, moving - weights - indices - tables - written), 2)
    homes |= dict.fromkeys(_read_often(flow, chip) - weights - indices - tables, OFTEN_HOMES)
    touched = _touched(flow, weights & written)
    layouts = {}
    for name, given in flow.tensors.items():
        tensor = replace(given, copies=max(given.copies, homes.get(name, 1)))
        stripes = tensor.stripes
        if name in weights and stripes == 1 and tensor.parts == 1:
            stripes = max(1, chip.load_streams // tensor.bytes_an_element)
        most = chip.bank_words * stripes
        block = tensor.block or min(cut_for_chasing(tensor, stripes), most)
        if tensor.parts > 1:  # rows that stand for each other lie in one block
            block = min(block + -block % tensor.parts, most - most % tensor.parts)
        if block > most:
            raise NoRoomError(
                f"tensor '{name}': a block of {block} rows does not fit a bank of "
                f"{chip.bank_words} words; cut it into smaller blocks"
            )
        multiplied = name not in others | indices | tables | written or (
            name in touched and _shared_blocks(touched[name], block)
        )
        layouts[name] = _Layout(
            tensor, block, stripes, multiplied, name in sums | indices, name in tables,
            name in weights and tensor.role == "constant", name in indices,
        )  # fmt: skip
    return layouts


def _kept_twice(flow: dataflow.Dataflow, chip: Chip, moving: set[str]) -> set[str]:
    """Inputs and constants that flow past weights are kept in both hemispheres, so that MXM's
    planes on both sides have the same rows at once; where MEM has the room."""
    words = {name: tensor.rows * tensor.bytes_an_element for name, tensor in flow.tensors.items()}
    resident = {name for name, tensor in flow.tensors.items() if tensor.role != "temporary"}
    moving = {name for name in moving if flow.tensors[name].role in ("input", "constant")}
    taken = sum(words[name] for name in resident) + sum(words[name] for name in moving)
    return moving if taken <= TWICE_SHARE * chip.slices * 2 * chip.bank_words else set()


def _read_often(flow: dataflow.Dataflow, chip: Chip) -> set[str]:
    """Temporaries of bytes whose rows several chains read are kept in several homes, so that these
    chains do not wait for each other's ports; where they are few beside what is resident."""
    resident = sum(
        t.rows * t.bytes_an_element for t in flow.tensors.values() if t.role != "temporary"
    )
    room = chip.slices * 2 * chip.bank_words
    if resident > OFTEN_SHARE * room:
        return set()
    reads: dict[str, int] = defaultdict(int)
    for chain in flow.chains:
        for step in chain.steps:
            for name, rows, _ in read_parts(step) if isinstance(step, dataflow.Read) else ():
                reads[name] += len(rows)
    temporaries = (flow.tensors[name] for name in reads if flow.tensors[name].role == "temporary")
    return {
        t.name
        for t in temporaries
        if t.bytes_an_element == 1
        and reads[t.name] > OFTEN * t.rows
        and OFTEN_HOMES * t.rows < TEMPORARY_SHARE * room
    }


OFTEN, OFTEN_HOMES = 1.5, 4
"""Reads of a row beyond which a temporary has so many homes."""

OFTEN_SHARE, TEMPORARY_SHARE = 0.5, 0.02
"""Of MEM: what may be resident at most for that, and what one such temporary may take."""

FULL, FEW_ROWS = 0.6, 1024
"""Of a hemisphere's words, beyond which what is new goes into the emptier one, but for few rows."""

TWICE_SHARE = 0.7
"""Of MEM, for what is there at the start or the end, copies included."""

LEAST_ROWS, SLICES_A_TENSOR, MOST_CUTS = 32, 8, 4
"""Temporaries are cut into blocks of so many rows at least, on so many slices at most."""


def cut_for_chasing(tensor: dataflow.VectorTensor, stripes: int) -> int:
    """Rows a block of a tensor that says nothing of it: a bank is not read while it is written, so
    that who reads a temporary follows its writer by one block."""
    if tensor.role != "temporary" or stripes > 1:
        return tensor.rows
    cuts = min(MOST_CUTS, max(1, SLICES_A_TENSOR // tensor.bytes_an_element))
    return min(tensor.rows, max(LEAST_ROWS, -(-tensor.rows // cuts)))


def _uses(flow: dataflow.Dataflow) -> tuple[set[str], ...]:
    """Names of tensors: weights, what moves past them, added sums, row numbers, tables, what is
    used otherwise, what is written."""
    weights, past, sums, indices, tables, others, written = (set[str]() for _ in range(7))
    for chain in flow.chains:
        readers: dict[int, set[str]] = defaultdict(set)
        for step in chain.steps:
            match step:
                case dataflow.Product(moving=moving, weights=rows, add=add):
                    weights.add(rows.tensor)
                    readers[moving.step].add("moving")
                    if add is not None:
                        readers[add.step].add("add")
                case dataflow.Gather(table=table, index=index):
                    tables.add(table)
                    readers[index.step].add("index")
                case dataflow.Write(rows=rows):
                    written.add(rows.tensor)
                case _:
                    from_steps = getattr(step, "inputs", ()) or (getattr(step, "value", None),)
                    for value in from_steps:
                        if value is not None:
                            readers[value.step].add("other")
        for number, step in enumerate(chain.steps):
            if isinstance(step, dataflow.Read):
                ways = readers[number]
                if "moving" in ways:
                    past.add(step.rows.tensor)
                if "add" in ways:
                    sums.add(step.rows.tensor)
                if "index" in ways:
                    indices.add(step.rows.tensor)
                if "other" in ways:
                    others.add(step.rows.tensor)
    return weights, past, sums, indices, tables, others, written


def _touched(
    flow: dataflow.Dataflow, names: set[str]
) -> dict[str, list[tuple[dataflow.Ints, bool]]]:
    """The rows that chains touch of some tensors, and whether they write them (`accessed`)."""
    touched: dict[str, list[tuple[dataflow.Ints, bool]]] = {name: [] for name in names}
    for chain in flow.chains if names else ():
        for tensor, rows, write in accessed(chain):
            if tensor in touched:
                touched[tensor].append((rows, write))
    return touched


def _shared_blocks(touched: Iterable[tuple[dataflow.Ints, bool]], block: int) -> bool:
    """Whether a tensor is read as weights alone, and written by chains that each stay in one block
    but share it: blocks of both hemispheres keep more such chains apart than those of one."""
    writers: dict[int, int] = defaultdict(int)
    for rows, write in touched:
        if not write or len(np.unique(rows // block)) > 1:
            return False
        writers[int(rows[0]) // block] += 1
    return max(writers.values(), default=0) > 1


def _written(flow: dataflow.Dataflow) -> set[str]:
    return {s.rows.tensor for c in flow.chains for s in c.steps if isinstance(s, dataflow.Write)}


def accessed(chain: dataflow.Chain) -> list[tuple[str, dataflow.Ints, bool]]:
    """(tensor, rows, written) of all that a chain touches at its own pace: not its weights."""
    accesses = []
    for step in chain.steps:
        match step:
            case dataflow.Read():
                accesses += [(tensor, rows, False) for tensor, rows, _ in read_parts(step)]
            case dataflow.Write(rows=rows):
                accesses.append((rows.tensor, rows.numbers, True))
            case dataflow.Gather(table=table, first=first, rows=count):
                accesses.append((table, dataflow.Rows.of(table, first, (count, 1)).numbers, False))
            case _:
                pass
    return accesses


def _partners(flow: dataflow.Dataflow, layouts: dict[str, _Layout]) -> dict[Block, set[Block]]:
    """Blocks that one chain reads or writes at once: they want slices of their own."""
    partners: dict[Block, set[Block]] = defaultdict(set)
    for chain in flow.chains:
        blocks: set[Block] = set()
        for tensor, rows, _ in accessed(chain):
            size = layouts[tensor].block
            if int(rows[0]) // size == int(rows[-1]) // size and layouts[tensor].blocks == 1:
                blocks.add((tensor, 0))
            else:
                blocks |= {(tensor, int(b)) for b in np.unique(rows // size)}
        for block in blocks:
            partners[block] |= blocks
    return partners
