"""2-D convolution: any kernel, stride, padding, dilation and groups, with a fused epilogue.

    out[n, o, y, x] = sum over c, r, s of weight[o, c, r, s]
                      * data[n, c, y*stride + r*dilation - pad, x*stride + s*dilation - pad]

The algorithm is a knob: direct over output channels, direct over width, im2col, and Winograd
F(2x2, 3x3) and F(4x4, 3x3); each is a file in `search_space/convolution/`. So are the layouts of
data and output, NCHW or blocked by the vector width.
"""

from __future__ import annotations

from tilesmith.search_space.convolution import direct, im2col, winograd
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.convolution.template import IMAGE, KERNEL, Convolution
from tilesmith.search_space.schedules.trainium import common as accelerator
from tilesmith.search_space.schedules.trainium.conv import ConvSpace
from tilesmith.search_space.schedules.trainium.conv_packed import PackedSpace, packs
from tilesmith.search_space.schedules.trainium.conv_parts import PartsSpace, many
from tilesmith.search_space.schedules.trainium.conv_stacked import StackedSpace
from tilesmith.search_space.schedules.trainium.conv_stacked import applies as stacks
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import Parameter, templates
from tilesmith.search_space.workload import Workload


@templates.register("conv2d")
class Conv2d(Convolution):
    """See the module's docstring."""

    operator = "conv2d"
    summary = "2-D convolution, NCHW data, OIHW weights"
    examples = (
        "conv2d c=5 h=9 w=11 oc=20 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
        "conv2d n=2 c=3 h=15 w=13 oc=7 kh=5 kw=3 stride=2 pad=2x1 dilation=2x1 const=weight",
        "conv2d c=32 h=7 w=7 oc=48 kh=1 kw=1 const=weight epilogue=bias,residual,relu",
        "conv2d n=2 c=6 h=9 w=9 oc=9 kh=3 kw=3 groups=3 pad=1x0x0x1 epilogue=bias",
    )
    parameters = (
        *IMAGE,
        Parameter("oc", "output channels"),
        *KERNEL,
        Parameter("groups", "independent groups of channels", 1),
    )

    def _on_core(self, workload: Workload, target: Target) -> dict[str, ConvSpace]:
        """The algorithms of an accelerator that apply, by name, the preferred one first."""
        g = Geometry.of(workload).view()
        compute = direct.compute(self, workload, g)
        kinds: list[type[StackedSpace]] = []
        if stacks(workload, g, target):
            kinds = [PackedSpace, StackedSpace] if packs(g, target) else [StackedSpace]
        stacked = [kind(workload, target, g, compute) for kind in kinds]
        stacked.sort(key=lambda found: found.quickest())
        usual = (ConvSpace, PartsSpace) if g.groups == 1 else (ConvSpace,)
        others = [kind(workload, target, g, compute) for kind in usual]
        return {found.algorithm: found for found in (*stacked, *others)}

    def _fitting(self, workload: Workload, target: Target) -> list[SearchSpace]:
        """The spaces of algorithms on a core whose tiles fit; sums in parts where channels are many
        or nothing else fits. If nothing at all does, the one with the smallest tiles."""
        kinds = self._on_core(workload, target)
        spaces = {name: found.space() for name, found in kinds.items()}
        found = [s for name, s in spaces.items() if s.size and name != PartsSpace.algorithm]
        parts = spaces.get(PartsSpace.algorithm)
        if parts is not None and (not found or many(Geometry.of(workload).view(), target)):
            found.append(parts)
        return found or list(spaces.values())[-1:]

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        if target.family == accelerator.FAMILY:
            return SearchSpace(
                tuple(s for k in self._fitting(workload, target) for s in k.subspaces)
            )
        g = Geometry.of(workload).view()
        found = [direct.channels_space(g, target), direct.width_space(g, target)]
        if not g.pointwise:
            found.append(im2col.space(g, target))
        if g.winograd:
            found += [winograd.space(g, target, m) for m in winograd.SIZES]
        return SearchSpace(tuple(found))

    def default(self, workload: Workload, target: Target) -> Config:
        if target.family == accelerator.FAMILY:
            first = self._fitting(workload, target)[0].subspaces[0]
            algorithm = str(dict(first.fixed)["algorithm"])
            return self._on_core(workload, target)[algorithm].default()
        return direct.channels_default(Geometry.of(workload).view(), target)

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        if target.family == accelerator.FAMILY:
            algorithm = structure.text("algorithm")
            return self._on_core(workload, target)[algorithm].schedule(structure)
        g = Geometry.of(workload).view()
        match structure.text("algorithm"):
            case "channels":
                return direct.channels_schedule(self, workload, target, g, structure)
            case "winograd2" | "winograd4" as name:
                m = int(name[-1])
                return winograd.schedule(self, workload, target, g, structure, m)
            case "im2col":
                return im2col.schedule(self, workload, target, g, structure)
            case _:
                return direct.width_schedule(self, workload, target, g, structure)
