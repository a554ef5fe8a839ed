"""What routed experts cost an engine: how many experts' weights are loaded, how many rows are
multiplied, and how fast weights come that are picked at run time.

The rules are those of NeuronX Distributed (`modules/moe/expert_mlps_v2.py`, `forward`), which
compiles one static program and so cannot know where rows go: few rows load an expert for each of
their choices, whether two choose the same or not; more rows pass through all experts; prompts are
cut into blocks of one expert each, the last block of every expert padded, and each block picks its
expert's weights anew, fetches its rows one by one and adds what comes out to theirs
(`torch_blockwise_matmul_inference`; rows of padding, too, unless `skip_dma` is asked for).
"""

from dataclasses import dataclass

from tilesmith.capabilities.planning.architecture import Experts
from tilesmith.search_space.hardware.target import Target

BLOCK = 512
"""Rows of a block (`model_utils.py`, DEFAULT_BLOCK_SIZE)."""

FETCHES = 3
"""How often a row of a block passes memory: it is read, and its sum is read and written."""

_ROW_OVERHEAD, _FLOOR = "dma.row_overhead_bytes", "dma.transfer_floor_ns"


@dataclass(frozen=True)
class ExpertWork:
    """The work on experts of one group of cores.

    Attributes:
        loaded: how often an expert's weights are streamed.
        rows: rows multiplied by an expert, over all experts.
        fetched: those of them that are picked from memory and added to it.
    """

    loaded: int
    rows: int
    fetched: int = 0


def expert_work(experts: Experts, rows: int, groups: int = 1, *, decodes: bool) -> ExpertWork:
    """The work on experts that a group of cores does in one step.

    Args:
        rows: rows of the step, each of which visits `experts.active`.
        groups: groups of cores that experts are dealt over, evenly.
        decodes: whether a step has one row of each sequence.
    """
    held, chosen = -(-experts.count // groups), rows * experts.active
    if chosen < experts.count and groups == 1:
        return ExpertWork(chosen, chosen)
    if decodes or chosen < BLOCK:
        return ExpertWork(held, held * rows)
    here = -(-chosen // groups)
    blocks = max(1, -(-(here - held + 1) // BLOCK) + held - 1)
    return ExpertWork(blocks, BLOCK * blocks, BLOCK * blocks)


def row_efficiency(target: Target, row_bytes: float) -> float:
    """The share of a stream's rate that rows of so many bytes reach.

    A dense model's weights are laid out anew when they are loaded, as its program reads them.
    Experts' are picked from one tensor of all experts at run time, by rows of what a core holds of
    a matrix, a transfer of all partitions at a time: none is known early enough to hide another's
    floor, so short rows take as long as longer ones. 1 on machines that do not say.
    """
    if _FLOOR not in target or _ROW_OVERHEAD not in target:
        return 1.0
    rate = target.number("dma.gbps_practical") * target.integer("dma.engines")
    floor = target.number(_FLOOR) * rate / target.integer("sbuf.partitions")
    return min(1.0, row_bytes / max(floor, row_bytes + target.number(_ROW_OVERHEAD)))
