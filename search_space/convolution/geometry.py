"""Shapes of a convolution, and the stages every algorithm starts from.

Logical layouts: data NCHW, weight OIHW (I per group), output NCHW. Pads are (top, left, bottom,
right), as in ONNX.
"""

from dataclasses import dataclass, replace
from typing import Any

from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, Select, load
from tilesmith.search_space.operator_parts.window_parameters import pair_of, sides_of
from tilesmith.search_space.scheduling.compute import Stage, axis
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.workload import Workload

ZERO = Const(0.0)


@dataclass(frozen=True)
class Geometry:
    """Every number of a 2-D convolution; pairs are (vertical, horizontal).

    Of a symbolic workload, batch, height and width may be formulas over sizes, and so is what comes
    of them: they add, multiply and divide as numbers do, which schedules rely on. Spaces and
    defaults see numbers.
    """

    batch: int
    channels: int
    height: int
    width: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    @classmethod
    def of(cls, workload: Workload) -> "Geometry":
        """Read a `conv2d` or `depthwise_conv2d` workload.

        Raises:
            WorkloadError: channels that the groups do not divide, or an empty output.
        """
        number = workload.integer
        extent: Any = workload.extent
        depthwise = workload.operator == "depthwise_conv2d"
        channels = number("c")
        geometry = cls(
            extent("n"),
            channels,
            extent("h"),
            extent("w"),
            channels if depthwise else number("oc"),
            (number("kh"), number("kw")),
            pair_of(workload, "stride"),
            sides_of(workload),
            pair_of(workload, "dilation"),
            channels if depthwise else number("groups"),
        )
        if geometry.channels % geometry.groups or geometry.out_channels % geometry.groups:
            raise WorkloadError(
                f"'{workload.operator}': groups={geometry.groups} must divide "
                f"c={geometry.channels} and oc={geometry.out_channels}"
            )
        if any(isinstance(e, int) and e < 1 for e in (geometry.out_height, geometry.out_width)):
            raise WorkloadError(
                f"'{workload.operator}': a {geometry.kernel[0]}x{geometry.kernel[1]} kernel does "
                f"not fit the padded {geometry.padded_height}x{geometry.padded_width} input"
            )
        return geometry

    @property
    def padded_height(self) -> int:
        return self.height + self.pads[0] + self.pads[2]

    @property
    def padded_width(self) -> int:
        return self.width + self.pads[1] + self.pads[3]

    @property
    def out_height(self) -> int:
        reach = self.dilation[0] * (self.kernel[0] - 1) + 1
        return (self.padded_height - reach) // self.stride[0] + 1

    @property
    def out_width(self) -> int:
        reach = self.dilation[1] * (self.kernel[1] - 1) + 1
        return (self.padded_width - reach) // self.stride[1] + 1

    @property
    def pointwise(self) -> bool:
        """1x1, stride 1, no padding: a matrix product over flattened space."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and not any(self.pads)

    @property
    def winograd(self) -> bool:
        """Whether F(m x m, 3 x 3) applies."""
        return (
            self.kernel == (3, 3)
            and self.stride == (1, 1)
            and self.dilation == (1, 1)
            and self.groups == 1
        )

    def view(self) -> "Geometry":
        """The geometry that is scheduled, over the same memory.

        Groups become part of the batch (each is a convolution of its own channels); a pointwise
        convolution becomes 1 x (h*w) pixels.
        """
        g = self
        if g.groups > 1:
            g = replace(
                g,
                batch=g.batch * g.groups,
                channels=g.channels // g.groups,
                out_channels=g.out_channels // g.groups,
            )
        return g.flat() if g.pointwise else g

    def blocks(self, lanes: int) -> bool:
        """Whether channel-blocked layouts fit: with groups, each must be whole vectors."""
        return self.groups == 1 or (self.channels % lanes == 0 and self.out_channels % lanes == 0)

    def flat(self) -> "Geometry":
        """A pointwise convolution seen as 1 x (h*w) pixels."""
        assert self.pointwise
        return replace(self, height=1, width=self.height * self.width)

    def flops(self) -> int:
        """Operations of the direct form; a multiply-add counts two."""
        outputs = self.batch * self.out_channels * self.out_height * self.out_width
        return 2 * outputs * self.channels // self.groups * self.taps()

    def taps(self) -> int:
        """Kernel positions."""
        return self.kernel[0] * self.kernel[1]

    def padding_stage(
        self, height: int, width: int, dtype: str = "float32", frame: Scalar = ZERO
    ) -> Stage:
        """`padded`: the input in a frame, `height` x `width` from its top left corner."""
        n, c = axis("pn", self.batch), axis("pc", self.channels)
        y, x = axis("py", height), axis("px", width)
        row, column = y.var - self.pads[0], x.var - self.pads[1]
        inside = (row, column, self.height - 1 - row, self.width - 1 - column)
        value = Select(inside, load("data", n.var, c.var, row, column), frame)
        return Stage("padded", (n, c, y, x), value, dtype=dtype)


def has_pad_value(workload: Workload) -> bool:
    """Whether the frame is an operand, `pad_value`: that of whole numbers, whose zero is a zero
    point, is."""
    return not is_floating(workload.dtype) and any(sides_of(workload))


def layout_names(lanes: int) -> tuple[str, str]:
    """Names of the plain layout and of the one blocked by the vector width."""
    return "NCHW", f"NCHW{lanes}c"


def layout_of(name: str) -> Layout:
    """A four-dimensional activation layout by name."""
    return Layout.parse(name)


def point(stage: Stage) -> Load:
    """A stage's own element."""
    return Load(stage.name, tuple(a.var for a in stage.axes))
