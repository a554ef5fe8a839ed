"""2-D convolution on CPUs: every algorithm in one space.

The algorithm is a knob: direct over output channels, direct over width (`conv_direct`), im2col
(`conv_im2col`), and Winograd F(2x2, 3x3) and F(4x4, 3x3) (`conv_winograd`). So are the layouts of
data and output, NCHW or blocked by the vector width. Where the target adds up several products of
the element types in a lane, there is that (`conv_dot`), and matrix registers where it has those
(`conv_tiles`): beside the others for floating types, which are widened there, in their place for
whole numbers.
"""

from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.expressions.dtypes import is_floating, is_narrow
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.algorithms import (
    conv_direct,
    conv_dot,
    conv_im2col,
    conv_tiles,
    conv_winograd,
)
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload

FEWEST_TRANSFORMED = 24
"""Channels, in and out, from which on transforms cost less than they save."""
SMALLEST_TRANSFORMED, SMALL_TRANSFORMED = 7, 14
"""Output rows and columns from which on; and up to which tiles of 2 waste less than those of 4."""


@schedules("conv2d", on="cpu")
class CpuConv2d(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        g = Geometry.of(workload).view()
        subspaces = [conv_tiles.subspace(g, target)] if conv_tiles.applies(workload, target) else []
        if (products := conv_dot.products_of(workload, target)) > 1:
            subspaces.append(conv_dot.space(g, target, products))
            if not is_floating(workload.dtype):
                return SearchSpace(tuple(subspaces))
        subspaces += [conv_direct.channels_space(g, target), conv_direct.width_space(g, target)]
        if conv_direct.has_few_framed(workload, g, target):
            subspaces.append(conv_direct.frameless_space(g, target))
        if not g.pointwise:
            subspaces.append(conv_im2col.space(g, target))
        if g.winograd and is_floating(workload.dtype):  # its transforms need fractions
            subspaces += [conv_winograd.space(g, target, m) for m in conv_winograd.SIZES]
        return SearchSpace(tuple(subspaces))

    def default(self, workload: Workload, target: Target) -> Config:
        if conv_tiles.preferred(workload, target):
            return conv_tiles.default(Geometry.of(workload).view(), target)
        return _without_tiles(workload, target)

    def alternatives(self, workload: Workload, target: Target) -> tuple[Config, ...]:
        """In the default's layouts: vectors of pixels where channels fill none, and Winograd
        convolutions, whose error is bounded (`conv_winograd`), of single precision and wider: what
        narrower formats lose in transforms has not been bounded."""
        g, space = Geometry.of(workload).view(), self.space(workload, target)
        others = () if g.blocks(vector_width(target)) else conv_direct.width_configs(g, target)
        if g.winograd and is_floating(workload.dtype) and not is_narrow(workload.dtype):
            others += tuple(conv_winograd.default(g, target, m) for m in conv_winograd.SIZES)
        return tuple(config for config in others if config in space)

    def canonical(self, workload: Workload, target: Target) -> Config:
        """A Winograd convolution where the simulators of all instruction sets put one clearly
        before the direct form, whatever the batch and the caches."""
        g = Geometry.of(workload).view()
        least = min(g.out_height, g.out_width)
        if min(g.channels, g.out_channels) < FEWEST_TRANSFORMED or least < SMALLEST_TRANSFORMED:
            return self.default(workload, target.uncalibrated)
        name = f"winograd{4 if least > SMALL_TRANSFORMED else 2}"
        configs = self.alternatives(workload, target)
        chosen = [config for config in configs if config.text("algorithm") == name]
        return chosen[0] if chosen else self.default(workload, target.uncalibrated)

    def varying(
        self, workload: Workload, usual: Workload, largest: Workload, target: Target, config: Config
    ) -> Config:
        """Whole tiles are of sizes that are known; other forms read and write the same layouts."""
        if config.text("algorithm") != conv_tiles.ALGORITHM:
            return config
        layouts = {name: config.text(name) for name in ("input_layout", "output_layout")}
        return Config.of({**dict(_without_tiles(usual, target).items()), **layouts})

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        g = Geometry.of(workload).view()
        match structure.text("algorithm"):
            case conv_tiles.ALGORITHM:
                return conv_tiles.schedule(workload, target, g, structure)
            case "dot":
                return conv_dot.schedule(workload, target, g, structure)
            case "channels" | "frameless":
                return conv_direct.channels_schedule(workload, target, g, structure)
            case "winograd2" | "winograd4" as name:
                return conv_winograd.schedule(workload, target, g, structure, int(name[-1]))
            case "im2col":
                return conv_im2col.schedule(workload, target, g, structure)
            case _:
                return conv_direct.width_schedule(workload, target, g, structure)


def _without_tiles(workload: Workload, target: Target) -> Config:
    """The default of processors without matrix registers."""
    g = Geometry.of(workload).view()
    if conv_dot.preferred(workload, target):
        return conv_dot.default(g, target, conv_dot.products_of(workload, target))
    return conv_direct.channels_default(g, target)
