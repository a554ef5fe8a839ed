"""Windows over images on Trainium-like cores: pooling and depthwise convolution.

128 channels at a time stand on partitions; a block of output rows and the input rows it needs,
padded, are in SBUF. A pooling window is one reduction over a strided view; a depthwise convolution
multiplies the image, seen through each tap's window, by a column of weights and accumulates on the
vector engine.

    for images, 128 channels, blocks of rows:  load rows; window; epilogue; store   (1 or 2 copies)
"""

from dataclasses import replace

from tilesmith.families.trainium.schedules.building_blocks.common import CoreScheduler, with_store
from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.search_space.expressions.expression import Expr, const, minimum, var
from tilesmith.search_space.expressions.ranges import upper
from tilesmith.search_space.expressions.scalar import Const, Load, Select
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload

CHANNELS = 128
"""Channels of a block: one for each partition."""

ROW_TILES = 6
"""Tiles as large as the output block that stages and temporaries take beside the input."""


class _WindowSpace:
    """Space and schedule of a window computation.

    Args:
        compute: one reduction over (image, channel, row, column), perhaps after a stage `padded`,
            perhaps followed by pointwise stages of the same axes. A reduction that tests for the
            border itself is given a padded input.
        image: name of the input image; dtype: of image and result.
    """

    def __init__(self, compute: ComputeDefinition, image: str, dtype: str, target: Target) -> None:
        compute, self.frame = _framed(compute, image, dtype)
        compute = replace(compute, stages=tuple(map(_summed, compute.stages)))
        self.compute = with_store(compute, dtype)
        self.image = image
        self.window = next(s for s in compute.stages if s.reduce_axes and len(s.axes) == 4)
        self.capacity = memories(target)["sbuf"].bytes
        names = {s.name for s in compute.stages}
        self.input = "padded" if "padded" in names else f"{image}.rows"

    @property
    def refusal(self) -> str | None:
        """See `Scheduler.refusal`."""
        for stage in self.compute.stages:
            if stage.name != self.input and len(stage.axes) != 4:
                return (
                    f"stage '{stage.name}' of '{self.compute.name}' is not over image, channel, "
                    "row and column: this target divides a mean by the same number everywhere; "
                    "give count_include_pad=1, pad=0 or sizes that ceil=1 does not round up"
                )
        return None

    def space(self) -> SearchSpace:
        """Rows of a block and copies of the tiles."""
        height = self.compute.output.axes[2].extent.constant or 1
        rows = sorted({r for r in (1, 2, 4, 7, 8, 14, 16, 28, 32, 56, height) if r <= height})
        spaces = []
        for copies in (1, 2):
            limit = Constraint(
                self.bytes(copies), self.capacity, "bytes of SBUF a partition that the tiles take"
            )
            fixed = (("algorithm", "windows"), ("copies", copies))
            spaces.append(Subspace(fixed, (tile("rows", rows),), (limit,)))
        kept = tuple(s for s in spaces if s.size)
        return SearchSpace(kept or (spaces[0],))

    def bytes(self, copies: int) -> Expr:
        """Bytes a partition, fp32."""
        out = self.compute.output.axes
        height, width = (axis.extent for axis in out[2:])
        block = minimum(var("rows"), height)
        tall, wide = self.frame
        need = minimum(const(tall), block * (tall // (height.constant or 1) + 1) + 8)
        return need * (wide * 4 * copies) + block * width * (4 * (copies + ROW_TILES))

    def default(self) -> Config:
        """As many rows as fit, double-buffered."""
        space = self.space()
        configs = list(space)
        if not configs:
            space.validate(space.subspaces[0].config(space.subspaces[0].rows(0, 1)[0]))
        return max(configs, key=lambda c: (c.integer("copies"), c.integer("rows")))

    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration; `rows` stays a symbol."""
        schedule = Schedule(self.compute)
        n, c, y, x = (a.name for a in self.compute.output.axes)
        schedule = schedule.split("result", c, CHANNELS, "co", "ci")
        schedule = schedule.split("result", y, var("rows"), "yo", "yi")
        schedule = schedule.reorder("result", (n, "co", "yo", "ci", "yi", x))
        if self.input != "padded":
            schedule = schedule.cache_read(self.image, self.window.name, self.input, "sbuf")
        over = tuple(a.name for a in self.window.reduce_axes)
        axes = tuple(a.name for a in self.window.axes)
        schedule = schedule.reorder(self.window.name, (*over, *axes))
        if any(tensor.name == "weight" for tensor in self.compute.inputs):
            schedule = schedule.cache_read("weight", self.window.name, "weight.rows", "sbuf")
            schedule = schedule.compute_at("weight.rows", "result", "co", "sbuf")
        names = [s.name for s in self.compute.stages[:-1]]
        for name in dict.fromkeys((self.input, *names)):
            rank = 3 if name == self.input and len(self.window.reduce_axes) == 1 else 4
            schedule = schedule.compute_at(name, "result", "yo", "sbuf")
            order = (1, 0, *range(2, rank))
            schedule = schedule.set_layout(name, Layout(tuple(map(LayoutDimension, order))))
        return schedule.pipeline("result", "yo", structure.integer("copies")).pipeline(
            "result", "co", 2
        )


@schedules("pool2d", "depthwise_conv2d", on="trainium")
class WindowsOnCore(CoreScheduler):
    """See the module's docstring."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        return super().refusal(workload, target) or self.prepare(workload, target).refusal

    def prepare(self, workload: Workload, target: Target) -> _WindowSpace:
        compute = compute_of(workload)
        return _WindowSpace(compute, compute.inputs[0].name, workload.dtype, target)


def _summed(stage: Stage) -> Stage:
    """Sums stay in fp32 until they are scaled; a maximum is one of the elements."""
    return replace(stage, dtype="float32") if stage.reducer == "sum" else stage


def _framed(
    compute: ComputeDefinition, image: str, dtype: str
) -> tuple[ComputeDefinition, tuple[int, int]]:
    """The computation with border tests moved into a stage `padded`, and its input's extents."""
    stages = list(compute.stages)
    for position, stage in enumerate(stages):
        if stage.name == "padded":
            stages[position] = replace(stage, dtype=dtype)
            tall, wide = (a.extent.constant or 1 for a in stage.axes[2:])
            return replace(compute, stages=tuple(stages)), (tall, wide)
    shape = next(t.shape for t in compute.inputs if t.name == image)
    place = next(i for i, s in enumerate(stages) if s.reduce_axes and len(s.axes) == 4)
    window = stages[place]
    if not isinstance(window.value, Select):
        return compute, (shape[2], shape[3] if len(shape) > 3 else 1)
    element, outside = window.value.then, window.value.otherwise
    assert isinstance(element, Load) and isinstance(outside, Const)
    first = [index.offset for index in element.indices[2:]]
    bounds = {a.name: a.extent - 1 for a in (*window.axes, *window.reduce_axes)}
    extents = [
        (upper(index, bounds).constant or 0) - low + 1
        for index, low in zip(element.indices[2:], first, strict=True)
    ]
    axes = (
        axis("pn", shape[0]), axis("pc", shape[1]), axis("py", extents[0]), axis("px", extents[1]),
    )  # fmt: skip
    row, column = axes[2].var + first[0], axes[3].var + first[1]
    inside = (row, column, const(shape[2] - 1) - row, const(shape[3] - 1) - column)
    source = Load(element.buffer, (axes[0].var, axes[1].var, row, column))
    padded = Stage("padded", axes, Select(inside, source, outside), dtype=dtype)
    moved = tuple(index - low for index, low in zip(element.indices[2:], first, strict=True))
    value = Load("padded", (*element.indices[:2], *moved))
    stages[place : place + 1] = [padded, replace(window, value=value)]
    return replace(compute, stages=tuple(stages)), (extents[0], extents[1])
