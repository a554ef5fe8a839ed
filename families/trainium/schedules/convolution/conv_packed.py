"""Convolution of very few channels on Trainium-like cores: kernel columns on partitions, too.

Where the rows of a kernel leave most partitions empty (three channels, seven rows: 21 of 128), its
columns fill more of them, `taps` beside each other:

    stacked[(t*P + p)*C + c, Y, x] = image[c, Y*step + p*dilation - pad, x + t*dilation - pad]

That takes `taps` times the loads, of rows as long, and saves as many matmuls.
"""

from __future__ import annotations

from tilesmith.families.trainium.schedules.convolution.conv_stacked import StackedSpace
from tilesmith.families.trainium.schedules.convolution.conv_stacked_forms import StackedForm
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.hardware.target import Target

COLUMNS = (2, 3, 4)
"""Kernel columns that may stand on partitions."""


def packs(g: Geometry, target: Target) -> bool:
    """Whether several columns of the kernel fit the partitions beside all its rows (where
    `applies`)."""
    return g.kernel[1] > 2 and 2 * g.kernel[0] * g.channels <= target.integer("tensor.rows")


class PackedSpace(StackedSpace):
    """The stacked forms with several columns of the kernel on partitions, too.

    That takes a few times the loads, in rows as long, and saves as many matmuls: it pays where
    channels are so few that a kernel's rows leave most partitions empty.
    """

    algorithm = "packed"
    parts = 6

    @staticmethod
    def columns_stacked(g: Geometry) -> tuple[int, ...]:
        return tuple(taps for taps in COLUMNS if taps < g.kernel[1])

    def more(self, form: StackedForm) -> tuple[tuple[str, int], ...]:
        return (("taps", form.taps),)

    def work(self, form: StackedForm) -> float:
        """ns of the tensor engine and DMA, whichever is longer, roughly."""
        return self.time(form)
