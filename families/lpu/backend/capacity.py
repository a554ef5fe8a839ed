"""How many chips' MEM a model takes, told before any code is made of it: rows, kernel by kernel.

A tensor lies in rows of 320 lanes, so that its bytes are no measure of the room it takes. What a
kernel has in MEM follows from its program alone: its weights as they are prepared, and what it
reads and writes. Kernels go on a chip in their order until the next one's weights do not fit
beside the others'.
"""

from collections.abc import Sequence

from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.compiler.graph.graph import Graph
from tilesmith.families.lpu.codegen.selection.from_program import readers_of
from tilesmith.families.lpu.codegen.selection.layout.accesses import rows_of
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.workload import Workload

Need = tuple[int, int]
"""Bytes of MEM that a kernel takes: of weights, which stay, and of all else."""


def needs(graph: Graph, target: Target) -> list[Need]:
    """Of every kernel of a model, in order, by its default schedule."""
    known: dict[Workload, Need] = {}
    sizes = []
    for node in graph.nodes:
        if node.workload is not None:
            if node.workload not in known:
                known[node.workload] = need_of(node.workload, target)
            sizes.append(known[node.workload])
    return sizes


def need_of(workload: Workload, target: Target) -> Need:
    """Of one kernel; nothing of one that no program comes of."""
    try:
        program = lowered(workload, target, default_of(workload, target))
    except TilesmithError:
        return (0, 0)
    used, stays, passes = readers_of(program.body), 0, 0
    for buffer in program.parameters:
        nbytes = rows_of(buffer) * LANES * size_of(buffer.dtype)
        if buffer.role == "prepared" or buffer.name in workload.constants:
            stays += nbytes if buffer.name in used else 0
        elif buffer.role == "output" or buffer.name in used:
            passes += nbytes
    return (stays, passes)


def fewest_chips(kernels: Sequence[Need], room: int) -> int | None:
    """Chips that hold kernels in their order, each with all of its weights; None if one kernel
    alone is too large."""
    chips, weights, live = 1, 0, 0
    for stays, passes in kernels:
        if stays + passes > room:
            return None
        if weights + stays + max(live, passes) > room:
            chips, weights, live = chips + 1, 0, 0
        weights, live = weights + stays, max(live, passes)
    return chips
