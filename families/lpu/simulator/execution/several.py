"""Several LPU-like chips that run one program: values over links, collectives by their schedule.

Every chip plays its own bursts (`functional.Player`), burst by burst with all others, a send before
the receive that it is for. That it comes in the very cycle is proved before (`check_together`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import DTYPES, LANES, Dataflow, VectorTensor
from tilesmith.families.lpu.codegen.exchange import Kind, RowRange, exchange
from tilesmith.families.lpu.codegen.fabric import ChipFabric, aligned, link_of, way_of
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp
from tilesmith.families.lpu.codegen.scheduling.together import together
from tilesmith.families.lpu.codegen.verification.together import (
    Together,
    check_together,
    on_chip,
    sends_of,
)
from tilesmith.families.lpu.codegen.verification.tokens import Matching
from tilesmith.families.lpu.simulator.execution.functional import Arrays, ChipPlayer, ChipRun
from tilesmith.families.lpu.simulator.execution.memory_words import MemoryWords
from tilesmith.search_space.meshes.mesh import CollectiveKind, Mesh
from tilesmith.search_space.support.errors import CodegenError, TargetError, VerificationError

Links = list[dict[int, dict[int, Arrays]]]
"""What came over links so far: by chip, link and turn."""

DTYPE = "float16"
"""What collectives are asked for in bytes for: the type that MXM multiplies."""


def execute_together(program: Together, contents: Sequence[Mapping[str, Arrays]]) -> list[ChipRun]:
    """Run all chips.

    Args:
        contents: of each chip, as `functional.execute` takes them.

    Raises:
        InputError, VerificationError: as `execute`, and as `check_together`.
    """
    proved = check_together(program)
    links: Links = [defaultdict(dict) for _ in contents]
    players = [
        _player(program, number, proved[number], given, links[number])
        for number, given in enumerate(contents)
    ]
    sends = sends_of(program)
    waiting = [player.begin(sends)[::-1] for player in players]
    while any(waiting):
        before = sum(map(len, waiting))
        for number, player in enumerate(players):
            _advance(program, number, player, waiting[number], links)
        if sum(map(len, waiting)) == before:
            raise VerificationError(f"'{program.schedule.name}': chips wait for each other")
    return [player.played() for player in players]


def _player(
    program: Together,
    number: int,
    matching: Matching,
    given: Mapping[str, Arrays],
    received: Mapping[int, Mapping[int, Arrays]],
) -> ChipPlayer:
    schedule = on_chip(program, number)
    return ChipPlayer(schedule, matching, MemoryWords(schedule, given), received)


def _advance(
    program: Together, number: int, player: ChipPlayer, rows: list[int], links: Links
) -> None:
    """Play what a chip has left (the last row first) up to a vector that is not there yet."""
    table, units = player.schedule.table, player.schedule.units
    while rows:
        row = rows[-1]
        op, link = table["op"][row], units[int(table["unit"][row])].link
        if op == BurstOp.RECEIVE and player.turn(row) not in links[number][link]:
            return
        player.step(rows.pop())
        if op == BurstOp.SEND:
            way = way_of(link)
            there = links[program.fabric.there(number, way)][link_of(program.fabric.back(way))]
            there[player.turn(row)] = player.sent[link][-1]


def node_of(mesh: Mesh, chips: int) -> tuple[Chip, int]:
    """The chip of a mesh whose chips are all linked to each other, and a hop's cycles.

    Raises:
        TargetError: so many chips of it are not.
    """
    level = mesh.levels[0]
    if level.topology != "all_to_all" or chips > level.members or mesh.cores_per_chip != 1:
        raise TargetError(
            f"collectives over {chips} chips of mesh '{mesh.name}' are scheduled where each is "
            f"linked to each other: up to {level.members if level.topology == 'all_to_all' else 1}"
        )
    chip = Chip.of(mesh.target)
    return chip, aligned(max(1, round(level.hop_us * 1e3 * chip.ghz)), chip)


@lru_cache(maxsize=64)
def collective(mesh: Mesh, kind: CollectiveKind, size: int, chips: int) -> Together:
    """A collective alone, scheduled and proved.

    Args:
        size: bytes of the whole tensor on one chip, as `collective_cost` counts them.

    Raises:
        TargetError: chips of this mesh are not linked each to each other.
        CodegenError: it cannot be placed; what is sent does not fit into MEM, for instance.
    """
    chip, flight = node_of(mesh, chips)
    flow = collective_flow(kind, -(-size // (LANES * DTYPES[DTYPE])), chips, flight)
    program = together(flow, chip, ChipFabric((chips,)), flight)
    check_together(program)
    return program


def collective_flow(kind: Kind, rows: int, chips: int, flight: int, dtype: str = DTYPE) -> Dataflow:
    """The chains of a collective alone; parts are "x.0" (the own one) and so on."""
    each = rows if kind == "send" else -(-rows // chips)
    count = 1 if kind in ("all_gather", "send") else chips
    homes = 2 if kind == "all_gather" else 1  # sent to both sides at once
    names = [f"x.{far}" for far in range(count)]
    tensors = [VectorTensor(name, each, dtype, "input", copies=homes) for name in names]
    group = ChipFabric((chips,)).group()
    moved = exchange(kind, kind, [RowRange(tensor, 0, each) for tensor in tensors], group, flight)
    return Dataflow(kind, {t.name: t for t in (*tensors, *moved.tensors)}, moved.chains)


def scheduled_s(
    mesh: Mesh, kind: CollectiveKind, size: int, group: tuple[int, ...]
) -> float | None:
    """Seconds of a collective by its schedule; None where there is none.

    Chips of a node are alike, so that only how many they are counts.
    """
    inner = mesh.levels[0]
    if len(group) < 2 or len({core // inner.cores for core in group}) > 1:
        return None
    try:
        return collective(mesh, kind, size, len(group)).schedule.seconds
    except (TargetError, CodegenError):
        return None
