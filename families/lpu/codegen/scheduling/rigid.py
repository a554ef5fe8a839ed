"""What is rigid in a chain: streams do not wait, so once it is known which units a chain goes
through, all its times are known but for one.

`rigid` takes a chain and the units of its products and shuffles (a `Choice`), and gives the cycle
of each unit and the tau of each stream relative to the chain's start. What is still open: the
start, the slices of blocks not placed yet, which streams and which of several ALUs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import (
    DTYPES,
    Chain,
    ChainValue,
    Compute,
    Gather,
    Ints,
    Operation,
    Product,
    Read,
    Receive,
    Rows,
    Send,
    Shuffle,
    Step,
    Transpose,
    Write,
    inputs_of,
)
from tilesmith.families.lpu.codegen.isa.bursts import depths
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import read_parts
from tilesmith.search_space.support.errors import CodegenError

Sides = Callable[[str, int, bool | None], tuple[bool, ...]]
"""Which hemispheres (True: east) hold a tensor's row, each as often as it does; the last argument
is the one wanted."""


@dataclass(frozen=True)
class Choice:
    """Units of a chain: the first plane of each product, by step, and the side of its SXM."""

    planes: dict[int, int]
    east: bool


@dataclass(eq=False)
class StreamFlow:
    """A value on streams in one direction.

    Attributes:
        tau: of vector 0, relative to the chain's start.
        origin: the position it comes from; None for reads, which have several.
        stops: positions of units that take it.
        streams, way: once found, and the stretches they are taken on.
    """

    value: ChainValue
    east: bool
    tau: int
    width: int
    dtype: str
    origin: int | None = None
    stops: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    way: range = range(0)

    def cell(self, place: int) -> int:
        """When vector 0 is at a position, relative to the chain's start."""
        return self.tau + (place if self.east else -place)


@dataclass(eq=False)
class RowAccess:
    """Rows of one copy of a tensor, read, written or gathered by a chain.

    Attributes:
        vectors: when each row's turn is, in vectors of the chain; None: in order.
        offset: the first of the flow's streams that is this access's.
        index: of a gather, the flow of its row numbers.
        scattered: few vectors here and there: it takes its slice only then.
        home: of a write, which of the homes of its side.
    """

    step: int
    flow: StreamFlow
    tensor: str
    rows: Ints
    write: bool
    side: bool
    vectors: Ints | None = None
    offset: int = 0
    index: StreamFlow | None = None
    scattered: bool = False
    home: int = 0


@dataclass(eq=False)
class Rigid:
    """A chain with its times, relative to its start; see the module's docstring.

    Attributes:
        times, places: of steps that are units; None for accesses of MEM.
        feeds: the flow of operand n of a step.
        outs: flows of output n of a step.
        operations: of VXM steps, with doubles of those whose result goes both ways.
        results: the operation behind each of the step's flows, in the order of `outs`.
    """

    chain: Chain
    choice: Choice
    chip: Chip
    interval: int
    times: list[int | None]
    places: list[int | None]
    flows: list[StreamFlow] = field(default_factory=list)
    accesses: list[RowAccess] = field(default_factory=list)
    feeds: dict[tuple[int, int], StreamFlow] = field(default_factory=dict)
    outs: dict[tuple[int, int], list[StreamFlow]] = field(default_factory=dict)
    operations: dict[int, tuple[Operation, ...]] = field(default_factory=dict)
    results: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def span(self) -> int:
        """Cycles that `count` vectors take at any place."""
        return self.chain.count * self.interval


class UnfitError(CodegenError):
    """A choice of units under which operands do not meet."""


def interval_of(chain: Chain, types: dict[ChainValue, str], chip: Chip) -> int:
    """Cycles between vectors: what the slowest of a chain's units takes."""
    slowest = 1
    for step in chain.steps:
        match step:
            case Product(moving=moving) if types[moving] == "float16":
                slowest = max(slowest, chip.cycles_of_lanes(step.first, step.k))
            case Send(value=value):
                slowest = max(slowest, DTYPES[types[value]] * chip.link_cycles)
            case Receive(dtype=dtype):
                slowest = max(slowest, DTYPES[dtype] * chip.link_cycles)
            case _:
                pass
    return slowest


def delay_of(step: Step, output: int, chip: Chip) -> int:
    """Cycles from a unit's operands to one of its outputs."""
    match step:
        case Product():
            return chip.delay("product") + chip.delay("accumulate")
        case Compute(inputs, operations, outputs):
            level = depths(len(inputs), operations)[outputs[output] - len(inputs)]
            return (level + 1) * chip.delay("alu")
        case Shuffle():
            return chip.delay("shuffle")
        case Transpose():
            return chip.delay("transpose")
        case _:
            return 0


def wait_of(step: Step, operand: int, chip: Chip) -> int:
    """Cycles that an operand is needed after a unit's first one."""
    return chip.delay("product") if isinstance(step, Product) and operand == 1 else 0


def place_of(step: Step, number: int, choice: Choice, chip: Chip) -> int | None:
    """The position of a unit; None for accesses of MEM."""
    match step:
        case Product():
            return chip.mxm_place * (1 if choice.planes[number] >= 2 else -1)
        case Compute():
            return 0
        case Shuffle() | Transpose():
            return chip.sxm_place * (1 if choice.east else -1)
        case Send(link=link) | Receive(link=link):
            return chip.mxm_place * (1 if link >= chip.links // 2 else -1)
        case _:
            return None


def rigid(
    chain: Chain, types: dict[ChainValue, str], chip: Chip, choice: Choice, sides: Sides
) -> Rigid:
    """Fix a chain's times.

    Raises:
        UnfitError: operands of a step do not meet, or a result would have to turn round.
    """
    places = [place_of(step, n, choice, chip) for n, step in enumerate(chain.steps)]
    times = _times(chain, chip, places)
    plan = Rigid(chain, choice, chip, interval_of(chain, types, chip), times, places)
    for number, step in enumerate(chain.steps):
        match step:
            case Read():
                _read(plan, number, read_parts(step), types, sides)
            case Gather():
                _gather(plan, number, step, types, chip, sides)
            case Write():
                pass
            case _:
                _outputs(plan, number, types, chip, sides)
    return plan


def _times(chain: Chain, chip: Chip, places: list[int | None]) -> list[int | None]:
    """The cycle of each unit, its chain's first unit beginning at 0."""
    times: list[int | None] = [None] * len(chain.steps)
    links: list[list[tuple[int, int]]] = [[] for _ in chain.steps]
    for number, step in enumerate(chain.steps):
        for operand, value in enumerate(inputs_of(step)):
            here, there = places[number], places[value.step]
            if here is None or there is None:
                continue
            lag = delay_of(chain.steps[value.step], value.output, chip) + abs(here - there)
            lag -= wait_of(step, operand, chip)
            links[value.step].append((number, lag))
            links[number].append((value.step, -lag))
    for first, place in enumerate(places):
        if place is None or times[first] is not None:
            continue
        times[first], waiting = 0, [first]
        while waiting:
            step_number = waiting.pop()
            for other, lag in links[step_number]:
                time = (times[step_number] or 0) + lag
                if times[other] is None:
                    times[other] = time
                    waiting.append(other)
                elif times[other] != time:
                    raise UnfitError(
                        f"chain '{chain.name}': the operands of step {max(other, step_number)} "
                        "come by paths of different lengths; let one of them be read apart"
                    )
    return times


def _consumers(plan: Rigid, value: ChainValue) -> list[tuple[int, int]]:
    """(step, operand) pairs that take a value."""
    return [
        (number, operand)
        for number, step in enumerate(plan.chain.steps)
        for operand, taken in enumerate(inputs_of(step))
        if taken == value
    ]


def _read(
    plan: Rigid,
    number: int,
    parts: list[tuple[str, Ints, Ints | None]],
    types: dict[ChainValue, str],
    sides: Sides,
) -> None:
    """Flows of a read: one for each direction and tau that it is needed at."""
    (tensor, rows, _), value = parts[0], ChainValue(number)
    flows: dict[tuple[bool, int], StreamFlow] = {}
    for step, operand in _consumers(plan, value):
        place = plan.places[step]
        if place is None:  # the index of a gather, which asks for it itself
            continue
        time = (plan.times[step] or 0) + wait_of(plan.chain.steps[step], operand, plan.chip)
        held = sides(tensor, int(rows[0]), place > 0 if place else None)
        busy = [access.side for access in plan.accesses if access.tensor == tensor]
        side = min(held, key=lambda east: (place != 0 and east != (place > 0), busy.count(east)))
        if isinstance(plan.chain.steps[step], Transpose) and side != (place > 0):
            raise UnfitError(f"chain '{plan.chain.name}': rows are turned on the side they lie on")
        flow = _flow_to(flows, plan, value, (place, time, side), types)
        flow.stops.append(place)
        plan.feeds[step, operand] = flow
        if any(access.flow is flow for access in plan.accesses):
            continue
        for turn, (name, numbers, vectors) in enumerate(parts):
            plan.accesses.append(
                RowAccess(number, flow, name, numbers, False, side, vectors, scattered=turn > 0)
            )


def _flow_to(
    flows: dict[tuple[bool, int], StreamFlow],
    plan: Rigid,
    value: ChainValue,
    to: tuple[int, int, bool],
    types: dict[ChainValue, str],
) -> StreamFlow:
    """The flow that brings a value from MEM of a side to a place at a time."""
    place, time, side = to
    east = place > 0 if place else not side
    tau = time - place if east else time + place
    if (east, tau) not in flows:
        dtype = types[value]
        flow = flows[east, tau] = StreamFlow(value, east, tau, DTYPES[dtype], dtype)
        plan.flows.append(flow)
    return flows[east, tau]


def _gather(
    plan: Rigid, number: int, step: Gather, types: dict[ChainValue, str], chip: Chip, sides: Sides
) -> None:
    """A gather flows as a read does; its index goes the same way, so much earlier."""
    index = plan.chain.steps[step.index.step]
    if not isinstance(index, Read):
        raise UnfitError(f"chain '{plan.chain.name}': the index of a gather is read from MEM")
    table = Rows.of(step.table, step.first, (step.rows, 1))
    before = len(plan.accesses)
    _read(plan, number, [(step.table, table.numbers, None)], types, sides)
    for access in plan.accesses[before:]:
        flow = access.flow
        ahead = StreamFlow(step.index, flow.east, flow.tau - chip.delay("gather"), 4, "int32")
        plan.flows.append(ahead)
        access.index = ahead
        held = sides(index.rows.tensor, int(index.rows.numbers[0]), access.side)
        side = access.side if access.side in held else held[0]
        plan.accesses.append(
            RowAccess(step.index.step, ahead, index.rows.tensor, index.rows.numbers, False, side)
        )


def _outputs(
    plan: Rigid, number: int, types: dict[ChainValue, str], chip: Chip, sides: Sides
) -> None:
    """Flows of a unit's results, each way they are wanted."""
    step, here = plan.chain.steps[number], plan.places[number]
    assert here is not None, "units have places"
    outputs = sorted({v.output for s in plan.chain.steps for v in inputs_of(s) if v.step == number})
    for output in outputs:
        value = ChainValue(number, output)
        time = (plan.times[number] or 0) + delay_of(step, output, chip)
        ways: dict[bool, StreamFlow] = {}
        for taker, operand in _consumers(plan, value):
            write = plan.chain.steps[taker]
            if isinstance(write, Write):
                first = int(write.rows.numbers[0])
                held = sides(write.rows.tensor, first, here > 0 if here else _aside(plan, step))
                for turn, side in enumerate(held):
                    flow = _way(ways, plan, value, (here, time, (1 if side else -1)), types)
                    rows, home = write.rows, held[:turn].count(side)
                    plan.accesses.append(
                        RowAccess(taker, flow, rows.tensor, rows.numbers, True, side, home=home)
                    )
                continue
            place = plan.places[taker]
            assert place is not None, "all other takers are units"
            flow = _way(ways, plan, value, (here, time, place), types)
            flow.stops.append(place)
            plan.feeds[taker, operand] = flow
        plan.outs[number, output] = list(ways.values())
    if isinstance(step, Compute):
        _doubles(plan, number, step, outputs)
    elif any(len(flows) > 1 for (n, _), flows in plan.outs.items() if n == number):
        raise UnfitError(f"chain '{plan.chain.name}': what step {number} gives would go both ways")


def _aside(plan: Rigid, step: Step) -> bool | None:
    """The side that VXM's results have to go to: a transpose takes every stream into the other."""
    turns = any(isinstance(plan.chain.steps[v.step], Transpose) for v in inputs_of(step))
    return not plan.choice.east if turns else None


def _way(
    ways: dict[bool, StreamFlow],
    plan: Rigid,
    value: ChainValue,
    at: tuple[int, int, int],
    types: dict[ChainValue, str],
) -> StreamFlow:
    """The flow of a result from `here` towards a place (of MEM: any on its side)."""
    here, time, towards = at
    outermost = isinstance(plan.chain.steps[value.step], Product | Receive)
    inward = here < 0
    east = towards > here if towards != here else (inward if here else next(iter(ways), True))
    if outermost and (towards == here or east != inward):
        raise UnfitError(
            f"chain '{plan.chain.name}': what step {value.step} gives would have to turn"
        )
    if east not in ways:
        tau = time - here if east else time + here
        dtype = types[value]
        ways[east] = StreamFlow(value, east, tau, DTYPES[dtype], dtype, origin=here)
        plan.flows.append(ways[east])
    return ways[east]


def _doubles(plan: Rigid, number: int, step: Compute, outputs: list[int]) -> None:
    """Let a second ALU do what is wanted both ways; drop nothing, for a maker may count ALUs."""
    operations, results = list(step.operations), []
    for output in outputs:
        wanted = step.outputs[output]
        for turn, _ in enumerate(plan.outs[number, output]):
            if turn:
                operations.append(operations[wanted - len(step.inputs)])
                results.append(len(step.inputs) + len(operations) - 1)
            else:
                results.append(wanted)
    plan.operations[number], plan.results[number] = tuple(operations), tuple(results)
