"""Windows over images on LPU-like machines: pooling and depthwise convolution, pixel by pixel.

A row of lanes is a pixel with its channels (`NHWC`); a window is several rows, and VXM combines
them lane by lane. Border pixels are rows of what changes nothing.

    for `rows` rows of the image:  window over its cells; the rest of the expression
"""

from dataclasses import replace

from tilesmith.families.lpu.schedules.algorithms.pool_blocks import forms
from tilesmith.families.lpu.schedules.building_blocks.common import (
    FEW,
    LpuScheduler,
    at_a_time,
    prepared,
    result_stage,
    with_numbers,
)
from tilesmith.families.lpu.schedules.building_blocks.functions import not_computed
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES, has_slices
from tilesmith.search_space.expressions.dtypes import size_of, widened
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import Load, Scalar, rewrite, substitute
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import Operand, compute_of, template_of
from tilesmith.search_space.workloads.workload import Workload

FIXED = (("algorithm", "windows"), ("input_layout", "NHWC"), ("output_layout", "NHWC"))

HOMES = 4
"""Places of an image whose pixels many windows read at once."""

MOST = 0.7
"""Of MEM's banks that an image in its places and the result may take: sums need the others. (Of
176, pools that took 108 had a schedule, and those that took 128 had none.)"""

PIXELS = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""Orders of tensors with channels second, by rank."""


def inlined(compute: ComputeDefinition, name: str) -> ComputeDefinition:
    """A stage put where it is read: the frame of an image."""
    stage = next((s for s in compute.stages if s.name == name), None)
    if stage is None:
        return compute

    def access(load: Load) -> Scalar:
        if load.buffer != name:
            return load
        places = {a.name: i for a, i in zip(stage.axes, load.indices, strict=True)}
        return substitute(stage.value, places)

    stages = tuple(
        replace(s, value=rewrite(s.value, lambda index: index, access))
        for s in compute.stages
        if s is not stage
    )
    return replace(compute, stages=stages)


class _WindowSpace:
    """Space and schedule of a window computation.

    Args:
        compute: one reduction over (image, channel, row, column), then pointwise stages.
    """

    def __init__(self, compute: ComputeDefinition, image: str) -> None:
        self.compute, self.image = compute, image
        self.window = next(s for s in compute.stages if s.reduce_axes and len(s.axes) == 4)

    @property
    def height(self) -> int:
        return self.compute.output.axes[2].extent.constant or 1

    @property
    def rows(self) -> list[int]:
        """Rows of results at a time: all of them in a few equal parts."""
        return sorted({-(-self.height // parts) for parts in (1, 2, 3, 4, 8, 16)})

    def space(self) -> SearchSpace:
        return SearchSpace((Subspace(FIXED, (tile("rows", self.rows),)),))

    def default(self) -> Config:
        width = self.compute.output.axes[3].extent.constant or 1
        return Config.of({**dict(FIXED), "rows": at_a_time(self.rows, width, FEW)})

    def schedule(self, structure: Config) -> Schedule:
        """See the module's docstring; `rows` stays a symbol."""
        schedule = prepared(Schedule(self.compute))
        last, window = self.compute.output, self.window
        n, c, y, x = (a.name for a in last.axes)
        schedule = schedule.split(last.name, y, var("rows"), "yo", "yi")
        schedule = schedule.reorder(last.name, (n, "yo", "yi", x, c)).unroll(last.name, "yo")
        ours = (window.axes[i].name for i in (0, 2, 3, 1))
        over = (a.name for a in window.reduce_axes)
        schedule = schedule.reorder(window.name, (*over, *ours))
        for name in (window.name, *self._between()):
            schedule = schedule.compute_at(name, last.name, "yo", "stream")
            schedule = schedule.set_layout(name, Layout.permuted(PIXELS[4]))
        for tensor in self.compute.inputs:
            if len(tensor.extents) > 2 and tensor.name != "weight":
                layout = Layout.permuted(PIXELS[len(tensor.extents)])
                schedule = schedule.set_layout(tensor.name, layout)
        return schedule.set_layout(last.name, Layout.permuted(PIXELS[4]))

    def _between(self) -> list[str]:
        """Stages between the window and the result."""
        names = [s.name for s in self.compute.stages if len(s.axes) == 4]
        return [n for n in names if n not in (self.window.name, self.compute.output.name)]


class WindowsOnLpu(LpuScheduler):
    """A scheduler of windows."""

    def compute(self, workload: Workload) -> ComputeDefinition:
        return inlined(compute_of(workload), "padded")

    def refusal(self, workload: Workload, target: Target) -> str | None:
        return super().refusal(workload, target) or not_computed(self.compute(workload), target)

    def prepare(self, workload: Workload, target: Target) -> _WindowSpace:
        compute = result_stage(with_summands(self.compute(workload)), workload)
        return _WindowSpace(with_numbers(compute, across=1), compute.inputs[0].name)


def with_summands(compute: ComputeDefinition) -> ComputeDefinition:
    """Sums of narrow values in what they are read as until they are stored."""
    stages = tuple(
        replace(s, dtype=widened(s.dtype)) if s.reducer == "sum" else s for s in compute.stages
    )
    return replace(compute, stages=stages)


class PoolSpace(_WindowSpace):
    """Pixels, or blocks of pixels where a step of the window is a block (`pool_blocks`)."""

    def __init__(self, compute: ComputeDefinition, workload: Workload) -> None:
        super().__init__(compute, compute.inputs[0].name)
        self.forms = {form.block.layout: form for form in forms(workload)}

    def space(self) -> SearchSpace:
        (pixels,) = super().space().subspaces
        blocks = (
            Subspace((*FIXED[:1], ("input_layout", layout), FIXED[2]), pixels.knobs)
            for layout in self.forms
        )
        return SearchSpace((pixels, *blocks))

    def schedule(self, structure: Config) -> Schedule:
        form = self.forms.get(structure.text("input_layout"))
        return super().schedule(structure) if form is None else form.schedule()


@schedules("pool2d", on="lpu")
class PoolOnLpu(WindowsOnLpu):
    """Pools of images that leave MEM room for sums; the host runs larger ones."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        return super().refusal(workload, target) or _without_room(workload, target)

    def prepare(self, workload: Workload, target: Target) -> PoolSpace:
        compute = result_stage(with_summands(self.compute(workload)), workload)
        return PoolSpace(with_numbers(compute, across=1), workload)


def _without_room(workload: Workload, target: Target) -> str | None:
    """Why MEM holds no such image and result beside the sums of windows; None if it does."""
    if not has_slices(target):
        return None
    template, every = template_of(workload.operator), 4 * target.integer("mem.slices")
    (image, *_), result = template.inputs(workload), template.output(workload)
    taken = HOMES * _banks(image, target) + _banks(result, target)
    if taken <= MOST * every:
        return None
    return (
        f"operator '{workload.operator}' takes {taken} banks of MEM for its image, which windows "
        f"read from {HOMES} places at once, and its result; target '{target.name}' has {every}, "
        f"of which {int(MOST * every)} are allowed beside sums: pool the image in parts"
    )


def _banks(pixels: Operand, target: Target) -> int:
    """Whole banks that the pixels of a tensor take, a byte plane each its own."""
    images, channels, height, width = pixels.shape
    rows = images * height * width * -(-channels // LANES)
    return -(-2 * rows // target.integer("mem.words")) * size_of(pixels.dtype)


@schedules("depthwise_conv2d", on="lpu")
class DepthwiseOnLpu(WindowsOnLpu):
    """The weights of a tap are a row of lanes, laid out so at compile time."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        if not workload.is_constant("weight"):
            return (
                f"{target.name} lays out the weights of convolutions at compile time; give "
                "const=weight"
            )
        return super().refusal(workload, target)

    def compute(self, workload: Workload) -> ComputeDefinition:
        compute = super().compute(workload)
        weight = next(t for t in compute.inputs if t.name == "weight")
        conv = next(s for s in compute.stages if s.name == "conv")
        r, s = conv.reduce_axes
        c = conv.axes[1]
        axes = tuple(replace(a, name=f"taps.{a.name}") for a in (r, s, c))
        tap = Load("weight", (axes[2].var, axes[0].var * 0, axes[0].var, axes[1].var))
        taps = Stage("taps", axes, tap, dtype=weight.dtype)

        def access(load: Load) -> Scalar:
            return Load("taps", (r.var, s.var, c.var)) if load.buffer == "weight" else load

        stages = tuple(
            replace(stage, value=rewrite(stage.value, lambda index: index, access))
            for stage in compute.stages
        )
        return replace(compute, stages=(taps, *stages))
