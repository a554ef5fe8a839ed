"""The earliest start of a chain at which nothing is taken twice.

Everything about a chain but its start is known (`rigid.Rigid`): a candidate start is tried against
every unit, port and stream; whatever is taken says when it is free, and the search goes on from
there. Blocks that no chain has touched before are given slices whose ports are free then.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from tilesmith.families.lpu.codegen.scheduling.copies import ClashError
from tilesmith.families.lpu.codegen.scheduling.readiness import (
    SettledStart,
    Spans,
    StartRequest,
    Taken,
    issue,
    mark,
    spans_of,
)
from tilesmith.families.lpu.codegen.scheduling.resources.board import Block, Board, Homes
from tilesmith.families.lpu.codegen.scheduling.resources.calendars import STRETCHES, any_of
from tilesmith.families.lpu.codegen.scheduling.resources.memory import Words
from tilesmith.families.lpu.codegen.scheduling.rigid import RowAccess, StreamFlow
from tilesmith.search_space.support.errors import CodegenError, NoRoomError

RESIDENT = ("input", "constant", "state")
"""Roles of tensors that lie in MEM before the first cycle."""

PROBES = 64
MOST_TRIES = 10_000


def settle(board: Board, request: StartRequest, start: int) -> SettledStart:
    """Find the earliest start from a cycle on. Streams of flows are filled in.

    Raises:
        NoRoomError: words do not suffice at any time.
        CodegenError: slices that can be used at once do not.
    """
    wishes: Wishes = {}
    for _ in range(MOST_TRIES):
        later = _units(request, start)
        if later == start:
            chosen, later = _pools(request, start)
        if later == start:
            attempt = _Attempt(board, request, start, wishes)
            later = attempt.access()
            if later == start:
                later = _streams(board, request, start, attempt)
                if later == start:
                    return SettledStart(
                        start, chosen, attempt.taken, attempt.placed, attempt.chosen
                    )
        start = later
    raise CodegenError(f"chain '{request.name}' found no time at which everything it takes is free")


def probe(board: Board, request: StartRequest, start: int) -> int:
    """About when a request can be met: when its units, and the ports of what is placed already, are
    free."""
    for _ in range(PROBES):
        later = _units(request, start)
        if later == start:
            _, later = _pools(request, start)
        if later == start:
            later = _Attempt(board, request, start, {}).placed_already()
        if later == start:
            break
        start = later
    return start


def _units(request: StartRequest, start: int) -> int:
    for line, begin, length in request.units:
        start += line.next_free(start + begin, length) - (start + begin)
    return start


def _pools(request: StartRequest, start: int) -> tuple[list[int], int]:
    chosen: list[int] = []
    taken: dict[int, set[int]] = {}
    for lines, begin, length in request.pools:
        without = taken.setdefault(id(lines), set())
        if len(without) == len(lines):
            raise CodegenError(
                f"chain '{request.name}' takes more units of one kind than the {len(lines)} there "
                "are; cut it in two"
            )
        free_lines, free = any_of(lines, start + begin, length, 1, without)
        if not free_lines:
            return [], start + free - (start + begin)
        without.add(free_lines[0])
        chosen.append(free_lines[0])
    return chosen, start


FEW_ROWS, WORTH_A_HOME, MOST_HOMES = 16, 16, 4
"""Constants of few rows that chains side by side all read (a bias) get another home rather than
be waited for so many cycles, and so many homes at most."""

OUTERMOST = 12
"""Slices that row numbers of gathers lie on, and no tables."""

WEIGHTS_TWICE = 0.5
"""Of MEM, up to which weights that are waited for get another home too."""


Wishes = dict[tuple[RowAccess, int], tuple[list[int], set[int]]]
"""Of blocks without a home, whatever the start: the slices that they may lie on, best first, and
those that chains need at once with theirs."""


class _Attempt:
    """Ports of all accesses for one start."""

    def __init__(self, board: Board, request: StartRequest, start: int, wishes: Wishes) -> None:
        self.board, self.request, self.start = board, request, start
        self.wishes = wishes
        self.taken: list[Taken] = []
        self.by_slice: dict[int, list[Taken]] = defaultdict(list)
        self.placed: dict[tuple[str, int, bool], list[Homes]] = {}
        self.chosen: dict[tuple[RowAccess, int], Homes] = {}

    def access(self) -> int:
        """Take ports of everything; the start, or a later one to try."""
        waiting = []
        for access in self.request.accesses:
            for block, spans in spans_of(self.board, self.request, access):
                ports, later = self.use_one(access, block, spans)
                if later > 0:
                    return self.start + later
                if not ports:
                    waiting.append((access, block, spans))
        for access, block, spans in waiting:
            ports, later = self.use_one(access, block, spans)
            if not ports and later <= 0:
                homes, later = self.place(access, block, spans)
                if homes is None:
                    return self.start + later
                self.placed.setdefault((access.tensor, block, access.side), []).append(homes)
                ports, later = self.use_one(access, block, spans)
            if not ports:
                return self.start + max(later, 1)
        return self.start

    def use_one(self, access: RowAccess, block: int, spans: Spans) -> tuple[bool, int]:
        """Take the ports of a block, in whichever of its homes; or how much later to try, 0 if it
        needs another home."""
        options = self.homes(access, block)
        outcomes = []
        for homes in options:
            outcome = self.use(access, homes, spans)
            if not outcome:
                self.chosen[access, block] = homes
                return True, 0
            outcomes.append(outcome)
        later = [outcome for outcome in outcomes if outcome > 0]
        layout = self.board.layouts[access.tensor]
        most = MOST_HOMES if self.spare(access) else layout.tensor.copies // 2
        more = layout.tensor.role in RESIDENT[:2] and len(options) < most
        if later and not (more and min(later) >= WORTH_A_HOME):
            return False, min(later)
        if options and (access.tensor in self.board.ready or layout.tensor.role == "state"):
            raise ClashError(self.request.name, access.tensor, access.step, access.write)
        return False, 0

    def spare(self, access: RowAccess) -> bool:
        """Whether rows may well have several homes."""
        layout, chip = self.board.layouts[access.tensor], self.board.chip
        if layout.loaded:
            taken = sum(self.board.memory.words)
            return taken < WEIGHTS_TWICE * chip.slices * 2 * chip.bank_words
        return layout.tensor.role in ("input", "constant") and layout.tensor.rows <= FEW_ROWS

    def placed_already(self) -> int:
        """Ports of blocks that are placed: the start, or a later one to try."""
        memory = self.board.memory
        for access in self.request.accesses:
            if access.scattered:
                continue
            for block, spans in spans_of(self.board, self.request, access):
                options = self.homes(access, block)
                if len(options) != 1 or self.spare(access):
                    continue
                for words, parts in ((w, p) for s, p in spans.items() for w in options[0][s]):
                    cycles = self.cycles(access, words.slice, parts)
                    wait = memory.wait(words, access.write, cycles)
                    if wait:
                        return self.start + wait
        return self.start

    def homes(self, access: RowAccess, block: int) -> list[Homes]:
        """All homes of a block on the access's side; of a write its own."""
        key = (access.tensor, block, access.side)
        homes = [*self.board.homes.get(key, ()), *self.placed.get(key, ())]
        return homes[access.home : access.home + 1] if access.write else homes

    def interval(self, access: RowAccess, number: int, span: tuple[int, int]) -> tuple[int, int]:
        """Cycle and cycles of an access on a slice."""
        begin = issue(self.board, access, number) + self.start
        step = self.request.interval
        return begin + span[0] * step, (span[1] - span[0]) * step

    def cycles(
        self, access: RowAccess, number: int, parts: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """The same of several stretches of vectors."""
        begin, step = issue(self.board, access, number) + self.start, self.request.interval
        return [(begin + first * step, (end - first) * step) for first, end in parts]

    def use(self, access: RowAccess, homes: Homes, spans: Spans) -> int:
        """Take the ports of a block; 0, how much later to try, or -1 if never."""
        memory, mine = self.board.memory, list[Taken]()
        for stripe, span in ((n, part) for n, parts in spans.items() for part in parts):
            for words in homes[stripe]:
                begin, length = self.interval(access, words.slice, span)
                floor = max(self.request.floor, words.since if access.write else 0)
                if begin < floor:
                    return floor - begin
                free = memory.next_free(words, access.write, begin, length)
                if free != begin:
                    return free - begin
                if self.clash(words, access.write, begin, length) & (1 << words.bank):
                    return -1
                mine.append(Taken(words, access.write, begin, length))
        for taken in mine:
            self.taken.append(taken)
            self.by_slice[taken.words.slice].append(taken)
        return 0

    def clash(self, words: Words, write: bool, begin: int, length: int) -> int:
        """Bits of banks of a slice that this chain has taken in an interval."""
        bits = 0
        for other, wrote, start, cycles in self.by_slice[words.slice]:
            if start < begin + length and begin < start + cycles:
                bits |= 3 if wrote == write else 1 << other.bank
        return bits

    def place(self, access: RowAccess, block: int, spans: Spans) -> tuple[Homes | None, int]:
        """Choose slices for a block."""
        layout = self.board.layouts[access.tensor]
        width, words = layout.tensor.bytes_an_element, -(-layout.rows_of(block) // layout.stripes)
        whole = (min(p[0][0] for p in spans.values()), max(p[-1][1] for p in spans.values()))
        mine: dict[int, int] = defaultdict(int)  # banks, whose free words are not taken yet
        for several in self.placed.values():
            for words_of in (words for homes in several for stripe in homes for words in stripe):
                mine[words_of.slice] |= 1 << words_of.bank
        wish = self.wishes.get((access, block))
        if wish is None:
            wish = self.wishes[access, block] = self.wish(access, block)
        order, others = wish
        early: list[int] = []

        def when(group: int, number: int) -> list[tuple[int, int]]:
            return self.cycles(access, number, spans.get(group // width, [whole]))

        def used(number: int) -> int:
            begin, length = self.interval(access, number, whole)
            if begin < self.request.floor:
                early.append(number)
                return 3
            return mine[number] | self.clash(Words(number, 0, 0, 0), access.write, begin, length)

        later = 0
        for avoided in (others, set[int]()):
            apart = {*avoided, *mine} if avoided is others else avoided
            candidates = [n for n in order if n not in apart]
            chosen, wait = self.board.memory.choose(
                candidates, layout.stripes * width, words, access.write, when, used,
                layout.tensor.zeros or layout.tensor.role in RESIDENT,
            )  # fmt: skip
            if chosen:
                groups = range(0, len(chosen), width)
                return tuple(tuple(chosen[g : g + width]) for g in groups), 0
            later = wait
            if later:
                break
        if early or self.start < self.request.floor + 64:
            later = later or 16
        if not later:
            raise NoRoomError(
                f"MEM is full: no {layout.stripes * width} slices have {words} words for a block "
                f"of tensor '{access.tensor}' (chain '{self.request.name}'); compute it in parts "
                "or on several chips (--chips)"
            )
        return None, later

    def wish(self, access: RowAccess, block: int) -> tuple[list[int], set[int]]:
        """Slices for a block, best first, and those of blocks that some chain uses together with
        it."""
        others = self.slices(self.board.partners.get((access.tensor, block), ()))
        blocks = range(self.board.layouts[access.tensor].blocks)
        beside = self.slices((access.tensor, other) for other in blocks)
        order = self.order(access)
        return sorted(order, key=lambda number: (number in others, number in beside)), others

    def slices(self, blocks: Iterable[Block]) -> set[int]:
        """Slices that blocks lie on."""
        homes, slices = self.board.homes, set[int]()
        for other, number in blocks:
            for side in (False, True):
                for several in homes.get((other, number, side), ()):
                    slices |= {words.slice for stripe in several for words in stripe}
        return slices

    def order(self, access: RowAccess) -> list[int]:
        """Slices of a hemisphere, best first."""
        half, layout = self.board.chip.half, self.board.layouts[access.tensor]
        first = half * access.side
        if layout.index:
            return list(range(first + half - 1, first + half - 1 - OUTERMOST, -1))
        if layout.outer:
            sums, live = self.board.memory.sums, self.board.memory.live
            return sorted(range(first + half - 1, first - 1, -1), key=lambda n: (sums[n], live[n]))
        if layout.inner:
            return list(range(first, first + half - OUTERMOST))
        turn = self.board.memory.turn % half
        return [*range(first + turn, first + half), *range(first, first + turn)]


def _streams(board: Board, request: StartRequest, start: int, attempt: _Attempt) -> int:
    """Find streams for every flow."""
    places, edge = board.chip.places, board.chip.mxm_place
    taken: tuple[set[int], set[int]] = (set(), set())
    length = request.count * request.interval
    ends: dict[StreamFlow, list[int]] = {}
    takers = {flow: len(flow.stops) for flow in request.flows}
    for flow in request.flows:
        ends[flow] = [*flow.stops] if flow.origin is None else [flow.origin, *flow.stops]
    for access in request.accesses:
        at = [places[w.slice] for w in _words(attempt, access)]
        ends[access.flow] += at
        takers[access.flow] += access.write
        if access.index is not None:
            ends[access.index] += at
    for flow in request.flows:
        reach = ends[flow]
        if flow.origin is not None and takers[flow] != 1:  # some may have no last taker
            reach.append(edge if flow.east else -edge)
        way = board.streams.stretches(min(reach), max(reach))
        streams, tau = board.streams.find(
            flow.east, way, start + flow.tau, length, flow.width, taken[flow.east]
        )
        if not streams:
            return start + tau - (start + flow.tau)
        flow.streams = streams
        taken[flow.east].update(s * STRETCHES + stretch for s in streams for stretch in way)
        flow.way = way
    return start


def _words(attempt: _Attempt, access: RowAccess) -> Iterator[Words]:
    for block, spans in spans_of(attempt.board, attempt.request, access):
        for stripe in spans:
            yield from attempt.chosen[access, block][stripe]


def commit(board: Board, request: StartRequest, settled: SettledStart) -> None:
    """Take everything a request was given."""
    start, length = settled.start, request.count * request.interval
    for line, begin, cycles in request.units:
        line.add(start + begin, start + begin + cycles)
    for (lines, begin, cycles), number in zip(request.pools, settled.chosen, strict=True):
        lines[number].add(start + begin, start + begin + cycles)
    for (tensor, _, _), several in settled.placed.items():
        for homes in several:
            stripes = (words for stripe in homes for words in stripe)
            board.memory.take(stripes, board.layouts[tensor].outer)
    for words, write, begin, cycles in settled.taken:
        board.memory.access(words, write, begin, cycles)
    for (tensor, block, side), several in settled.placed.items():
        homes = several[0]
        board.homes.setdefault((tensor, block, side), []).extend(several)
        board.sides[board.side_key(tensor, block * board.layouts[tensor].block)] = side
        if board.layouts[tensor].tensor.role == "temporary":
            board.homes_held[side] += sum(len(stripe) for one in several for stripe in one)
        if not (board.layouts[tensor].outer or board.layouts[tensor].inner):
            board.memory.turn += len(homes) * len(homes[0])
    for flow in request.flows:
        for stream in flow.streams:
            board.streams.add(flow.east, stream, flow.way, start + flow.tau, length)
    for access in request.accesses:
        mark(board, request, access, start)
