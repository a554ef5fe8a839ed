"""From settled starts to bursts: rows of the program's table, and the units they belong to.

The scheduler decides when each step of a chain starts and which slices, streams and planes it has
(`settling`). This module decides nothing: it writes down what follows from that, burst by burst.
"""

from dataclasses import dataclass, field

from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, Region, StreamGroup, Unit, depths
from tilesmith.families.lpu.codegen.scheduling.readiness import SettledStart, StartRequest, issue
from tilesmith.families.lpu.codegen.scheduling.requests import UNIT_KINDS, ChainRequest, LoadRequest
from tilesmith.families.lpu.codegen.scheduling.resources.board import Board, Homes
from tilesmith.families.lpu.codegen.scheduling.rigid import Rigid, RowAccess, StreamFlow

Row = tuple[int, ...]
"""As `isa.bursts.BURST`."""


NO_ROW = (-1, 0, 0, 0)
"""What is named by instructions outside MEM."""


@dataclass
class BurstEmitter:
    """Rows (`isa.bursts.BURST`) and units so far; `chain` numbers the one being emitted, `tensors`
    those that were named."""

    board: Board
    rows: list[Row] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    chain: int = 0
    tensors: dict[str, int] = field(default_factory=dict)

    def unit(self, unit: Unit) -> int:
        self.units.append(unit)
        return len(self.units) - 1

    def burst(
        self, op: BurstOp, queue: int, cycle: int, pace: tuple[int, int], unit: int, step: int = 0
    ) -> None:
        """A burst of a unit; `pace`: count and interval."""
        self.rows.append((op, queue, cycle, *pace, self.chain, 0, 0, step, 0, 0, 0, unit, *NO_ROW))

    def accesses(
        self, request: StartRequest, settled: SettledStart, lasts: dict[RowAccess, bool]
    ) -> None:
        """Reads, writes and gathers."""
        start = settled.start
        for access in request.accesses:
            flow = access.flow
            tensor = self.tensors.setdefault(access.tensor, len(self.tensors))
            layout = self.board.layouts[access.tensor]
            for piece in request.cut[access] if access.index is None else ():
                first = piece.block * layout.block + piece.word * layout.stripes + piece.stripe
                homes = settled.homes[access, piece.block][piece.stripe]
                for byte, words in enumerate(homes):
                    cycle = start + issue(self.board, access, words.slice)
                    self.rows.append((
                        BurstOp.WRITE if access.write else BurstOp.READ,
                        words.slice,
                        cycle + piece.first * request.interval,
                        piece.length,
                        request.interval * piece.every,
                        self.chain,
                        words.bank,
                        words.address + piece.word,
                        piece.step,
                        flow.streams[access.offset + byte],
                        flow.east,
                        lasts.get(access, False),
                        -1,
                        tensor,
                        first,
                        piece.step * layout.stripes,
                        byte,
                    ))  # fmt: skip
            if access.index is not None:
                self.gather(request, access, settled)

    def gather(self, request: StartRequest, access: RowAccess, settled: SettledStart) -> None:
        """A gather's bursts: each byte plane by the same numbers."""
        start = settled.start
        assert access.index is not None, "the caller looked"
        piece, index, places = request.cut[access][0], access.index, self.board.chip.places
        homes = settled.homes[access, piece.block][0]
        ahead = 1 if index.east else -1
        far = max(places[words.slice] * ahead for words in homes)
        group = {
            last: StreamGroup(index.east, tuple(index.streams), "int32", last)
            for last in (False, True)
        }
        for byte, words in enumerate(homes):
            place = places[words.slice]
            last = place * ahead == far
            unit = self.unit(Unit(place, inputs=(group[last],), k=len(access.rows)))
            cycle = start + issue(self.board, access, words.slice)
            stream = access.flow.streams[access.offset + byte]
            self.rows.append((
                BurstOp.GATHER, words.slice, cycle, request.count, request.interval, self.chain,
                words.bank, words.address + piece.word, 1, stream, access.flow.east, 0, unit,
                self.tensors[access.tensor], int(access.rows[0]), 1, byte,
            ))  # fmt: skip

    def load(self, request: LoadRequest, settled: SettledStart, k: int, install: int) -> None:
        """LW and IW of one product's weights."""
        flow, chip = request.flow, self.board.chip
        assert flow is not None, "a load has a flow"
        self.accesses(request, settled, {})
        size = dataflow.DTYPES[flow.dtype]
        groups = tuple(
            StreamGroup(flow.east, tuple(flow.streams[n : n + size]), flow.dtype, True)
            for n in range(0, len(flow.streams), size)
        )
        unit = self.unit(
            Unit(flow.stops[0], inputs=groups, plane=request.plane, k=k, dtype=flow.dtype)
        )
        queue = chip.mxm_queue(request.plane, "load")
        self.burst(BurstOp.LOAD, queue, settled.start, (request.count, 1), unit, request.rows)
        queue = chip.mxm_queue(request.plane, "install")
        self.burst(BurstOp.INSTALL, queue, install, (1, 1), unit)

    def emit(self, plan: Rigid, request: ChainRequest, settled: SettledStart) -> None:
        """All of a chain but its weights."""
        start = settled.start
        ends = {flow: _ends(self.board, request, settled, flow) for flow in request.flows}
        lasts = {a: ends[a.flow][1] is a or ends[a.flow][1] == "all" for a in request.accesses}
        self.accesses(request, settled, lasts)
        labels: dict[int, list[tuple[int, int]]] = {}
        for label, number in zip(request.labels, settled.chosen, strict=True):
            labels.setdefault(label.step, []).append((label.operation, number))
        for number, step in enumerate(plan.chain.steps):
            if plan.times[number] is None:
                continue
            groups = tuple(
                self.operand(plan, number, operand, ends)
                for operand in range(len(dataflow.inputs_of(step)))
            )
            outs = tuple(
                StreamGroup(flow.east, tuple(flow.streams), flow.dtype)
                for output in range(dataflow.outputs_of(step))
                for flow in plan.outs.get((number, output), ())
            )
            self.step(plan, number, (groups, outs), (start, labels.get(number, [])))

    def operand(
        self, plan: Rigid, number: int, operand: int, ends: dict[StreamFlow, tuple[int, object]]
    ) -> StreamGroup:
        flow, place = plan.feeds[number, operand], plan.places[number]
        last = ends[flow][1] == "unit" and ends[flow][0] == place
        return StreamGroup(flow.east, tuple(flow.streams), flow.dtype, last)

    def step(
        self,
        plan: Rigid,
        number: int,
        groups: tuple[tuple[StreamGroup, ...], tuple[StreamGroup, ...]],
        chosen: tuple[int, list[tuple[int, int]]],
    ) -> None:
        """The bursts of one unit."""
        step, chip = plan.chain.steps[number], self.board.chip
        (ins, outs), (start, lines) = groups, chosen
        place, cycle = plan.places[number] or 0, start + (plan.times[number] or 0)
        pace = (plan.chain.count, plan.interval)
        match step:
            case dataflow.Product(first=first, k=k):
                plane, dtype = plan.choice.planes[number], ins[0].dtype
                unit = self.unit(Unit(place, ins[:1], plane=plane, k=k, dtype=dtype, first=first))
                self.burst(BurstOp.MOVE, chip.mxm_queue(plane, "move"), cycle, pace, unit)
                unit = self.unit(Unit(place, ins[1:], outs, plane=plane, k=k, dtype=dtype))
                queue = chip.mxm_queue(plane, "accumulate")
                self.burst(BurstOp.ACCUMULATE, queue, cycle + chip.delay("product"), pace, unit)
            case dataflow.Compute():
                operations = plan.operations[number]
                unit = self.unit(
                    Unit(0, ins, outs, operations=operations, results=plan.results[number])
                )
                level = depths(len(ins), operations)
                for at, line in lines:
                    when = cycle + level[at] * chip.delay("alu")
                    self.burst(BurstOp.ALU, chip.vxm_queue + line, when, pace, unit, at)
            case dataflow.Shuffle(kind=kind, lanes=lanes):
                unit = self.unit(Unit(place, ins, outs, lanes=lanes, kind=kind))
                queue = chip.sxm_queue(place > 0, UNIT_KINDS[kind]) + lines[0][1]
                self.burst(BurstOp.SHUFFLE, queue, cycle, pace, unit)
            case dataflow.Transpose():
                wanted = tuple(o for o in range(16) if plan.outs.get((number, o)))
                unit = self.unit(Unit(place, ins, outs, results=wanted))
                for byte, (_, line) in enumerate(lines):
                    queue = chip.sxm_queue(place > 0, "transposer") + line
                    self.burst(BurstOp.TRANSPOSE, queue, cycle, pace, unit, byte)
            case dataflow.Send(link=link) | dataflow.Receive(link=link):
                op = BurstOp.SEND if isinstance(step, dataflow.Send) else BurstOp.RECEIVE
                unit = self.unit(Unit(place, ins, outs, link=link))
                self.burst(op, chip.link_queue(link), cycle, pace, unit)
            case _:
                pass


def _ends(
    board: Board, request: StartRequest, settled: SettledStart, flow: StreamFlow
) -> tuple[int, object]:
    """Who takes a flow's tokens last, and where: "unit", "all" (each of its writes), one access, or
    nobody, so that what is left of it travels to the end."""
    ahead = 1 if flow.east else -1
    writes = {
        access: [
            board.chip.places[words.slice] * ahead
            for piece in request.cut[access]
            for words in settled.homes[access, piece.block][piece.stripe]
        ]
        for access in request.accesses
        if access.write and access.flow is flow
    }
    stops = [stop * ahead for stop in flow.stops]
    if not writes:
        return (max(stops) * ahead if stops else 0), "unit"
    if not stops and len(writes) == 1:
        return 0, "all"
    if stops and max(stops) >= max(max(places) for places in writes.values()):
        return max(stops) * ahead, "unit"
    farthest = max(writes, key=lambda access: min(writes[access]))
    others = [p for access, places in writes.items() if access is not farthest for p in places]
    if min(writes[farthest]) >= max([*others, *stops]):
        return 0, farthest
    return 0, None


def region(board: Board, name: str, block: int, homes: Homes) -> Region:
    """Where a block of a tensor lies, for the program."""
    layout = board.layouts[name]
    return Region(
        name, block * layout.block, layout.rows_of(block),
        tuple(tuple((w.slice, w.bank, w.address) for w in stripe) for stripe in homes),
        layout.tensor.zeros,
    )  # fmt: skip
