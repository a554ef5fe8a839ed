"""What unmeasured kernels cost, in closed form: enough to tell layouts apart.

    convolution   vectors that pass MXM over its planes, and an install for every matrix
    layouts       rows of the larger side, several times where lanes become rows

What it leaves out (latencies, ports) is about the same in all layouts.
"""

from math import prod

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.schedules.algorithms.pool_blocks import BlockedPool
from tilesmith.families.lpu.schedules.building_blocks.blocks import PixelBlock
from tilesmith.families.lpu.schedules.building_blocks.common import planes
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES
from tilesmith.families.lpu.schedules.conv2d import LpuConv2d
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.relayout import relayout_of
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


def loading(workload: Workload, chip: Chip) -> int:
    """Cycles to load a matrix of 320 x 320 on all the streams there are, and to install it."""
    return -(-LANES * size_of(workload.dtype) // chip.load_streams) + chip.install


def seconds(workload: Workload, target: Target, config: Config) -> float | None:
    """Of one configuration; None where nothing is known."""
    chip = Chip.of(target)
    cycles: float
    if workload.operator == "conv2d":
        scheduler = scheduler_of(workload, target)
        assert isinstance(scheduler, LpuConv2d), "it is registered so"
        form = scheduler.prepare(workload, target).form(config)
        loads = loading(workload, chip) * form.depth * form.tiles
        cycles = (form.passes + loads) / planes(workload, target)
    elif workload.operator == "pool2d" and workload.text("kind") == "max":
        cycles = _windows(workload, target, config)
    elif workload.operator == "layout_transform":
        layouts = (relayout_of(workload).source, relayout_of(workload).target)
        shape = relayout_of(workload).shape
        lanes = [layout.dimensions[-1].axis for layout in layouts]
        rows = max(prod(layout.concrete_shape(shape)[:-1]) for layout in layouts)
        cycles = rows * (1 if lanes[0] == lanes[1] else target.integer("estimate.turning"))
    else:
        return None
    return cycles / (chip.ghz * 1e9)


def _windows(workload: Workload, target: Target, config: Config) -> float:
    """Cycles of a maximum over windows: the rows it reads, a few side by side."""
    block = PixelBlock.of(config.text("input_layout"))
    template = template_of("pool2d")
    results = prod(template.output(workload).shape) // workload.integer("c")
    if block.pixels == 1:
        cells = prod(workload.integer(name) for name in ("kh", "kw"))
        if workload.integer("global"):
            cells = workload.integer("h") * workload.integer("w")
        return results * cells / target.integer("estimate.reads")
    form = BlockedPool(workload, block)
    moves = block.pixels.bit_length() - 1
    return results * (form.count(0) * form.count(1) + 2 * moves) / target.integer("estimate.reads")
