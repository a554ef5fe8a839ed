"""Constants placed before everything else, where they take most of MEM.

Blocks are placed otherwise when the first chain that touches them is, on slices whose ports are
free then. Constants alone take words that nothing was written to before, so that where they fill
MEM, temporaries of early chains would leave them too little: they are placed first, each on the
emptiest slices of the emptier hemisphere. Where they take less, that is done only if a schedule
fails without: a place that waits for ports makes a shorter one.
"""

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Dataflow
from tilesmith.families.lpu.codegen.scheduling.resources.board import Board, Homes
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import reads_of, writes_of
from tilesmith.families.lpu.codegen.scheduling.resources.memory import Words
from tilesmith.search_space.support.errors import NoRoomError

TIGHT = 0.7
"""Of MEM's words, from which on constants are placed first."""


def check_room(flow: Dataflow, chip: Chip) -> None:
    """Refuse a program that no schedule fits: all that stays in MEM to the end, and beside it the
    rows of a temporary of which a chain reads or writes most, take more words than there are.

    Raises:
        NoRoomError: they do.
    """
    stays: dict[str, NDArray[np.bool_]] = {}
    most, where = 0, ""
    for chain in flow.chains:
        passing = 0
        for name, rows in (*reads_of(chain), *writes_of(chain)):
            if name not in flow.tensors:  # zeros
                continue
            tensor = flow.tensors[name]
            if tensor.role == "temporary":
                passing = max(passing, len(np.unique(rows)) * tensor.bytes_an_element)
            else:
                stays.setdefault(name, np.zeros(tensor.rows, np.bool_))[rows] = True
        most, where = max((most, where), (passing, chain.name))
    words = sum(
        int(rows.sum()) * flow.tensors[name].bytes_an_element for name, rows in stays.items()
    )
    room = chip.slices * 2 * chip.bank_words
    if words + most > room:
        raise NoRoomError(
            f"MEM is full: weights, inputs and outputs take {words} words, chain '{where}' {most} "
            f"more, and there are {room}; compute it in parts or on several chips (--chips)"
        )


def place_constants(board: Board, always: bool = False) -> None:
    """Place a program's constants, if they take most of MEM, or always.

    Raises:
        CodegenError: they do not fit.
    """
    constants = [
        name
        for name, layout in board.layouts.items()
        if layout.tensor.role == "constant" and not layout.inner
    ]
    words = {n: board.layouts[n].tensor.rows * board.layouts[n].tensor.bytes_an_element
             for n in constants}  # fmt: skip
    chip = board.chip
    if not always and sum(words.values()) < TIGHT * chip.slices * 2 * chip.bank_words:
        return
    for name in sorted(constants, key=lambda name: -words[name]):
        layout = board.layouts[name]
        for block in range(layout.blocks):
            first = block * layout.block
            for side in board.side(name, first, None):
                homes = _homes(board, name, block, side)
                board.homes.setdefault((name, block, side), []).append(homes)
                board.sides[board.side_key(name, first)] = side
                board.memory.take((w for stripe in homes for w in stripe), layout.outer)


def _homes(board: Board, name: str, block: int, side: bool) -> Homes:
    """The emptiest slices of a hemisphere that have the room."""
    layout, memory, half = board.layouts[name], board.memory, board.chip.half
    width, words = layout.tensor.bytes_an_element, -(-layout.rows_of(block) // layout.stripes)
    slices = sorted(range(half * side, half * (side + 1)), key=lambda n: memory.words[n])
    chosen: list[Words] = memory.choose(
        slices, layout.stripes * width, words, False, lambda *_: [(0, 0)], lambda _: 0, virgin=True
    )[0]
    if not chosen:
        raise NoRoomError(
            f"MEM is full: no {layout.stripes * width} slices have {words} words for a block of "
            f"the constant '{name}'; compute it in parts or on several chips (--chips)"
        )
    return tuple(tuple(chosen[g : g + width]) for g in range(0, len(chosen), width))
