"""2-D pooling: maximum, average, and over the whole image.

    y[n, c, i, j] = max over r, s of x[n, c, i*step + r*dilation - top, j*step + s*dilation - left]

or the mean of the same window. Cells outside the image are no candidates for a maximum; a mean
counts them only with count_include_pad=1. A window over the whole image (global=1) is a reduction
of its own. The number of cells a mean divides by factors into rows and columns.

A maximum of bytes is a byte, which may be quantised numbers of one scale. Their mean is float32, of
exact sums: with `scale,bias,quantise_uint8` behind it, a quantised mean.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import Expr, ExprLike, as_expr
from tilesmith.search_space.expressions.scalar import REDUCERS, Const, Scalar, Select, call, load
from tilesmith.search_space.operator_parts.fusion import epilogue_tensors, epilogue_value
from tilesmith.search_space.operator_parts.integer_products import BYTES
from tilesmith.search_space.operator_parts.window_parameters import pair_of, sides_of
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class Window:
    """One spatial direction: extents, window and padding, in elements.

    Of a symbolic workload the extent, and a global window, may be formulas over sizes, and so is
    what comes of them (see `Geometry`).
    """

    extent: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    ceil: bool

    @property
    def reach(self) -> int:
        """Cells from a window's first to its last, inclusive."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def out(self) -> int:
        """Windows; rounded up with `ceil`, but none may start behind the image."""
        room: Any = self.extent + self.before + self.after - self.reach
        if not isinstance(room, int):
            windows: int = self._windows(room)
            return windows
        if room < 0:
            return 0
        count: int = (room + (self.stride - 1 if self.ceil else 0)) // self.stride + 1
        while self.ceil and count > 1 and (count - 1) * self.stride >= self.extent + self.before:
            count -= 1
        return count

    def _windows(self, room: Expr) -> Any:
        """The same where the extent varies; `room` is 0 where one window is all of it."""
        if self.ceil and self.stride > 1:
            raise WorkloadError(
                "operator 'pool2d': h and w cannot vary with ceil=1; round the output down"
            )
        windows = as_expr(room // self.stride + 1)
        return windows if windows.constant is None else windows.constant

    def position(self, index: Expr, cell: Expr) -> Expr:
        """Place in the image of a cell of a window; may lie outside."""
        return index * self.stride + cell * self.dilation - self.before

    def limits(self, include_pad: bool) -> tuple[int, int]:
        """First and last place that a mean counts."""
        return (-self.before, self.extent + self.after - 1) if include_pad else (0, self.extent - 1)

    def count_varies(self, include_pad: bool) -> bool:
        """Whether a mean counts fewer cells in some windows."""
        low, high = self.limits(include_pad)
        last = (self.out - 1) * self.stride - self.before + self.reach - 1
        return -self.before < low or may_exceed(last, high)


def may_exceed(value: ExprLike, limit: ExprLike) -> bool:
    """Whether a number is more than another, or may be for some sizes."""
    difference = as_expr(value) - limit
    return difference.constant is None or difference.constant > 0


@templates.register("pool2d")
class Pool2d(Template):
    """See the module's docstring."""

    operator = "pool2d"
    fuses_epilogues = True
    summary = "2-D pooling: maximum or average, windows or the whole image"
    parameters = (
        Parameter("kind", "what is done over a window", choices=("max", "average")),
        Parameter("n", "batch", 1, varies=True),
        Parameter("c", "channels"),
        Parameter("h", "input height", varies=True),
        Parameter("w", "input width", varies=True),
        Parameter("kh", "window height", 1),
        Parameter("kw", "window width", 1),
        Parameter("stride", "step, as 2 or 2x1", "1"),
        Parameter("pad", "padding, as 1, 0x1 or TOPxLEFTxBOTTOMxRIGHT", "0"),
        Parameter("dilation", "distance of cells, as 1 or 2x1", "1"),
        Parameter("ceil", "1 rounds the output's size up", 0, minimum=0),
        Parameter("count_include_pad", "1 counts padding in an average", 0, minimum=0),
        Parameter("global", "1 makes the whole image one window", 0, minimum=0),
    )
    examples = (
        "pool2d kind=max c=19 h=9 w=11 kh=3 kw=3 stride=2 pad=1",
        "pool2d kind=max n=2 c=3 h=7 w=37 kh=2 kw=3 stride=1x2 pad=0x1x1x0 dilation=2x1 ceil=1",
        "pool2d kind=average c=16 h=7 w=5 kh=3 kw=3 pad=1 count_include_pad=1 epilogue=relu",
        "pool2d kind=average c=5 h=8 w=35 kh=3 kw=2 stride=2 pad=1 ceil=1",
        "pool2d kind=average c=33 h=1 w=1 kh=1 kw=1 epilogue=bias,residual",
        "pool2d kind=average n=2 c=21 h=7 w=7 global=1",
        "pool2d kind=max c=16 h=5 w=13 global=1 epilogue=scale",
        "pool2d kind=max c=19 h=9 w=11 kh=3 kw=3 stride=2 pad=1 dtype=uint8",
        "pool2d kind=average c=19 h=7 w=5 kh=3 kw=3 pad=1 dtype=uint8 "
        "epilogue=scale,bias,quantise_uint8",
        "pool2d kind=average n=2 c=21 h=7 w=7 global=1 dtype=int8 epilogue=scale,quantise_int8",
    )

    varying = (
        "pool2d kind=max n=[b] c=19 h=9 w=11 kh=3 kw=3 stride=2 pad=1",
        "pool2d kind=max c=3 h=[h] w=[w] kh=3 kw=3 stride=2 pad=1",
        "pool2d kind=average c=17 h=[h] w=[w] kh=3 kw=3 pad=1 epilogue=relu",
        "pool2d kind=average n=[b] c=20 h=[h] w=[w] global=1",
    )

    def windows(self, workload: Workload) -> tuple[Window, Window]:
        """Vertical and horizontal."""
        extent: Any = workload.extent
        height, width = extent("h"), extent("w")
        if workload.integer("global"):
            return Window(height, height, 1, 1, 0, 0, False), Window(
                width, width, 1, 1, 0, 0, False
            )
        top, left, bottom, right = sides_of(workload)
        stride, dilation = pair_of(workload, "stride"), pair_of(workload, "dilation")
        ceil = bool(workload.integer("ceil"))
        kernel = workload.integer("kh"), workload.integer("kw")
        return (
            Window(height, kernel[0], stride[0], dilation[0], top, bottom, ceil),
            Window(width, kernel[1], stride[1], dilation[1], left, right, ceil),
        )

    def check(self, workload: Workload) -> None:
        for window, name in zip(self.windows(workload), ("height", "width"), strict=True):
            if window.out < 1:
                raise WorkloadError(
                    f"operator 'pool2d': a window of {window.reach} does not fit the padded "
                    f"{name} of {window.extent + window.before + window.after}"
                )
            if max(window.before, window.after) >= window.reach:
                raise WorkloadError(
                    f"operator 'pool2d': pad={workload['pad']} must be smaller than the window"
                )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        shape = tuple(workload.extent(name) for name in "nchw")
        return (Operand("x", shape, workload.dtype),)

    def output(self, workload: Workload) -> Operand:
        vertical, horizontal = self.windows(workload)
        lead = workload.extent("n"), workload.integer("c")
        shape = (*lead, vertical.out, horizontal.out)
        return Operand("y", shape, self.result_dtype(workload), "output")

    def unfused_dtype(self, workload: Workload) -> str:
        return "float32" if _adds_bytes(workload) else workload.dtype

    def channel_axis(self, workload: Workload) -> int:
        return 1

    def flops(self, workload: Workload) -> int:
        vertical, horizontal = self.windows(workload)
        outputs = vertical.out * horizontal.out * workload.integer("n") * workload.integer("c")
        return outputs * vertical.kernel * horizontal.kernel

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        """A direction after the other: one numpy call for each cell of a row and of a column."""
        maximum = workload.text("kind") == "max"
        x = inputs["x"].astype(np.float32) if _adds_bytes(workload) else inputs["x"]
        counted = bool(workload.integer("count_include_pad"))
        if workload.integer("global"):
            reduced = (np.max if maximum else np.sum)(x, axis=(2, 3), keepdims=True)
            return np.asarray(reduced if maximum else reduced / (x.shape[2] * x.shape[3]))
        result, cells = x, np.ones(1)
        for position, window in zip((2, 3), self.windows(workload), strict=True):
            result = _over_windows(result, window, position, maximum)
            cells = np.multiply.outer(cells, _counts(window, counted))
        result = result if maximum else result / cells[0]
        return result.astype(x.dtype, copy=False)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """`window` reduces; `y` scales a mean and applies the epilogue (absent if neither)."""
        output = self.output(workload)
        axes = tuple(axis(a, e) for a, e in zip("ncij", output.extents, strict=True))
        reducer = "max" if workload.text("kind") == "max" else "sum"
        value, cells = self._cell(workload, axes, reducer)
        sums = "int32" if _adds_bytes(workload) else workload.dtype
        stages = [Stage("window", axes, value, cells, reducer, dtype=sums)]
        value = load("window", *(a.var for a in axes))
        if reducer == "sum":
            extra, value = self._mean(workload, value, (axes[2].var, axes[3].var))
            stages = [*extra, *stages]
        if reducer == "sum" or workload.epilogue:
            value = epilogue_value(self, workload, tuple(a.var for a in axes), value)
            stages.append(Stage("y", axes, value, dtype=self.result_dtype(workload)))
        shape = self.inputs(workload)[0].extents
        if workload.integer("global"):
            shape = (*shape[:2], shape[2] * shape[3])
        tensors = (Tensor("x", shape, workload.dtype), *epilogue_tensors(self, workload))
        return ComputeDefinition("pool2d", tensors, tuple(stages))

    def _cell(
        self, workload: Workload, axes: tuple[Axis, ...], reducer: str
    ) -> tuple[Scalar, tuple[Axis, ...]]:
        """A cell of a window and the axes over the window; a global one has a single axis."""
        n, c, i, j = (a.var for a in axes)
        if workload.integer("global"):
            k = axis("k", workload.extent("h") * workload.extent("w"))
            return _summand(workload, load("x", n, c, k.var)), (k,)
        vertical, horizontal = self.windows(workload)
        r, s = axis("r", vertical.kernel), axis("s", horizontal.kernel)
        row, column = vertical.position(i, r.var), horizontal.position(j, s.var)
        value = _summand(workload, load("x", n, c, row, column))
        tests = (*_tests(row, vertical), *_tests(column, horizontal))
        if tests:
            value = Select(tests, value, Const(REDUCERS[reducer]))
        return value, (r, s)

    def _mean(
        self, workload: Workload, value: Scalar, place: tuple[Expr, Expr]
    ) -> tuple[list[Stage], Scalar]:
        """The sum divided by its count, and the stages that count where counts differ."""
        counted = bool(workload.integer("count_include_pad"))
        stages: list[Stage] = []
        value = call("to_float32", value) if _adds_bytes(workload) else value
        fixed = 1.0
        for window, index, name in zip(self.windows(workload), place, "rc", strict=True):
            if isinstance(window.kernel, int) and not window.count_varies(counted):
                fixed /= window.kernel
                continue
            out, cell = axis(f"{name}o", window.out), axis(f"{name}k", window.kernel)
            position = window.position(out.var, cell.var)
            low, high = window.limits(counted)
            one = Select((position - low, high - position), Const(1.0), Const(0.0))
            count, share = f"{name}.count", f"{name}.share"
            stages.append(Stage(count, (out,), one, (cell,), "sum"))
            stages.append(Stage(share, (out,), call("reciprocal", load(count, out.var))))
            value = call("multiply", value, load(share, index))
        return stages, call("multiply", value, fixed) if fixed != 1.0 else value


def _adds_bytes(workload: Workload) -> bool:
    """Whether whole numbers of few bits are added up, in int32; their mean is float32."""
    return workload.text("kind") == "average" and workload.dtype in BYTES


def _summand(workload: Workload, value: Scalar) -> Scalar:
    return call("to_int32", value) if _adds_bytes(workload) else value


def _tests(place: Expr, window: Window) -> tuple[Expr, ...]:
    """What is >= 0 where a place lies in the image; only what can fail."""
    last = (window.out - 1) * window.stride - window.before + window.reach - 1
    low = (place,) if window.before else ()
    return (*low, window.extent - 1 - place) if may_exceed(last, window.extent - 1) else low


def _over_windows(x: Array, window: Window, position: int, maximum: bool) -> Array:
    """The maximum or sum over each window along one axis of an image."""
    edge: Any = 0
    if maximum:
        edge = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    elif x.dtype.kind in "iu":
        x = x.astype(np.int64)
    last = (window.out - 1) * window.stride + 1
    behind = max(0, last - 1 + window.reach - window.before - window.extent)
    widths = [(0, 0)] * x.ndim
    widths[position] = window.before, behind
    padded = np.moveaxis(np.pad(x, widths, constant_values=edge), position, 0)
    combine = np.maximum if maximum else np.add
    result = padded[: last : window.stride].copy()
    for cell in range(1, window.kernel):
        start = cell * window.dilation
        combine(result, padded[start : start + last : window.stride], out=result)
    return np.moveaxis(result, 0, position)


def _counts(window: Window, counted: bool) -> NDArray[np.float64]:
    """How many cells of each window a mean counts."""
    starts = np.arange(window.out) * window.stride - window.before
    places = starts[:, None] + np.arange(window.kernel) * window.dilation
    low, high = (-window.before, window.extent + window.after) if counted else (0, window.extent)
    return np.asarray(((places >= low) & (places < high)).sum(axis=1), np.float64)
