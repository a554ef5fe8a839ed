"""Layout changes: the same tensor in another physical order, e.g. NCHW to NCHW16c and back.

    y in layout `dst` = x in layout `src`

Logically nothing happens. How it is done, tiles transposed in registers, is `relayout`'s business.
Elements that pad a blocked axis to a multiple of its factor are not written.
"""

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.operator_parts.relayout import Relayout, RelayoutTemplate
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Parameter, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("layout_transform")
class LayoutTransform(RelayoutTemplate):
    """See the module's docstring."""

    operator = "layout_transform"
    summary = "the same tensor in another physical layout"
    parameters = (
        Parameter.shape("shape", "logical, e.g. 1x64x56x56"),
        Parameter("src", "layout of the input, e.g. NCHW", text=True),
        Parameter("dst", "layout of the output, e.g. NCHW16c", text=True),
    )
    examples = (
        "layout_transform shape=1x32x4x8 src=NCHW dst=NCHW16c",
        "layout_transform shape=2x19x5x7 src=NCHW dst=NCHW16c",
        "layout_transform shape=2x19x5x7 src=NCHW16c dst=NCHW",
        "layout_transform shape=1x3x7x5 src=NCHW dst=NHWC",
        "layout_transform shape=1x37x3x5 src=NHWC dst=NCHW8c",
        "layout_transform shape=2x40x3x5 src=NCHW16c dst=NCHW8c",
        "layout_transform shape=2x20x3x5 src=NCHW16c dst=NHWC dtype=int64",
        "layout_transform shape=1x1x1x1 src=NCHW dst=NCHW4c",
        "layout_transform shape=1x6x4x8 src=NHWC dst=NHW2h2wC",
        "layout_transform shape=1x3x8x8 src=NCHW dst=NHW4h4wC dtype=int8",
    )
    varying = (
        "layout_transform shape=[b]x19x5x7 src=NCHW dst=NCHW16c",
        "layout_transform shape=[b]x32x[h]x[w] src=NCHW16c dst=NCHW",
        "layout_transform shape=1x3x[h]x[w] src=NCHW dst=NHWC",
    )

    def check(self, workload: Workload) -> None:
        super().check(workload)
        shape = workload.shape("shape")
        if len(shape) != 4:
            raise WorkloadError(
                f"operator 'layout_transform': shape={workload['shape']} has {len(shape)} axes; "
                "four are expected, N, C, H and W"
            )
        self._layouts(workload)

    def _layouts(self, workload: Workload) -> tuple[Layout, Layout]:
        return Layout.parse(workload.text("src")), Layout.parse(workload.text("dst"))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        return inputs["x"]

    def layouts(self, workload: Workload, config: Config) -> tuple[str, str]:
        return workload.text("src"), workload.text("dst")

    def relayout(self, workload: Workload) -> Relayout:
        return Relayout.of(workload.extents("shape"), *self._layouts(workload))
