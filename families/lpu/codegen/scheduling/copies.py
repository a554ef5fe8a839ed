"""Rows copied to other slices, where a chain needs two tensors in the same cycles that lie on one.

Places are chosen so that it hardly happens (`board.Board.partners`); where it does, a chain of its
own copies the rows, and the chain that could not be placed reads (or writes) the copy.
"""

from dataclasses import replace

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import Chain, ChainBuilder, Ints, Read, Rows, Write
from tilesmith.families.lpu.codegen.scheduling.resources.board import Board
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import groups_of
from tilesmith.search_space.support.errors import CodegenError

COPY = ".copy."
"""Stands in the name of a copy, between its tensor's and the chain's number."""

MOST_COPIES = 3
"""Copies of copies that are tried before a chain is given up."""

FEW_WORDS = 1024
"""Rows of a block of a large copy: hardly a bank is empty by then, as one of its size wants."""


class ClashError(CodegenError):
    """A chain's step needs a slice that the chain needs for something else, whenever it starts."""

    def __init__(self, chain: str, tensor: str, step: int, written: bool) -> None:
        super().__init__(
            f"chain '{chain}': tensor '{tensor}' lies on a slice that the chain needs for another "
            "one in the same cycles"
        )
        self.tensor, self.step, self.written = tensor, step, written


def with_copy(board: Board, chain: Chain, clash: ClashError, turn: int) -> tuple[Chain, Chain, str]:
    """The chain that copies the rows a step reads or has written, the chain that reads or writes
    the copy, and its name.

    Raises:
        ClashError: what clashes has no step of its own, or is a copy of copies already.
    """
    step, name = chain.steps[clash.step], f"{clash.tensor}{COPY}{turn}"
    touched = isinstance(step, Write) if clash.written else isinstance(step, Read)
    if not touched or not isinstance(step, Read | Write) or step.rows.tensor != clash.tensor:
        raise clash
    layout = old = board.layouts[clash.tensor]
    if clash.written and layout.tensor.parts > 1:  # other chips write other rows
        raise clash
    if clash.tensor.count(COPY) >= MOST_COPIES:  # moving it from slice to slice leads nowhere
        raise clash
    rows: Ints = step.rows.numbers
    if not clash.written:
        rows = groups_of(layout.tensor, np.unique(rows[rows >= 0]))
    tensor = replace(layout.tensor, name=name, role="temporary")  # read as often at once
    if tensor.rows <= board.chip.bank_words:  # one block, which is in nobody's way but others'
        layout = replace(layout, block=tensor.rows, stripes=1)
    elif layout.stripes == 1 and layout.block > FEW_WORDS:
        layout = replace(layout, block=FEW_WORDS)
    board.layouts[name] = replace(layout, tensor=tensor, multiplied=False)
    for table in (board.ready, board.read_until):
        table[name] = np.zeros(tensor.rows, np.int64)
    for block in range(old.blocks):
        near = {*board.partners.get((clash.tensor, block), ()), (clash.tensor, block)}
        last = min((block + 1) * old.block, tensor.rows) - 1
        for number in range(block * old.block // layout.block, last // layout.block + 1):
            board.partners.setdefault((name, number), set()).update(near)
            for other in near:
                board.partners.setdefault(other, set()).add((name, number))
    builder = ChainBuilder(f"copy of {clash.tensor}", len(rows))
    here, there = (name, clash.tensor) if clash.written else (clash.tensor, name)
    builder.write(builder.read(Rows(here, rows)), Rows(there, rows))
    steps = list(chain.steps)
    steps[clash.step] = replace(step, rows=Rows(name, step.rows.numbers))
    return builder.chain(), replace(chain, steps=tuple(steps)), name
