"""Resizing to the nearest element, any factors.

    y[i, j, ...] = x[near(i), near(j), ...]

near() follows ONNX's Resize: a coordinate (`asymmetric`: i*in/out, `half_pixel`: (i + 1/2)*in/out -
1/2) rounded to an index (`floor`, `ceil`, `round_prefer_floor`, `round_prefer_ceil`) and kept in
range; all of it in integers, so that no factor is ever rounded.
"""

from math import gcd
from typing import Any

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import Expr, ExprLike, as_expr, maximum, minimum
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Parameter, Shaped, Template, templates
from tilesmith.search_space.workloads.workload import Workload

COORDINATES = ("asymmetric", "half_pixel")
ROUNDING = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


@templates.register("resize")
class Resize(Template):
    """See the module's docstring."""

    operator = "resize"
    summary = "resizing to the nearest element"
    parameters = (
        Parameter.shape("shape", "of the input, e.g. 1x64x28x28"),
        Parameter.shape("sizes", "of the output, e.g. 1x64x56x56"),
        Parameter("coordinates", "where an element is looked for", "asymmetric", 1, COORDINATES),
        Parameter("rounding", "of the coordinate to an index", "floor", 1, ROUNDING),
    )
    writes = Shaped("y", "sizes")
    examples = (
        "resize shape=1x19x5x9 sizes=1x19x10x18",
        "resize shape=2x3x7x40 sizes=2x3x7x120 coordinates=half_pixel rounding=round_prefer_floor",
        "resize shape=1x5x7x11 sizes=1x5x3x19 coordinates=half_pixel rounding=ceil",
        "resize shape=13x29 sizes=7x37 rounding=round_prefer_ceil",
        "resize shape=3x20 sizes=3x20 dtype=int64",
    )
    varying = (
        "resize shape=[b]x19x5x9 sizes=[b]x19x10x18",
        "resize shape=[s]x13 sizes=[s]x40 coordinates=half_pixel rounding=ceil",
        "resize shape=1x3x[h]x[w] sizes=1x3x[2*h]x[2*w]",
        "resize shape=[3*h]x[2*w] sizes=[2*h]x[5*w] coordinates=half_pixel "
        "rounding=round_prefer_floor",
    )

    def check(self, workload: Workload) -> None:
        super().check(workload)
        shape, sizes = workload.shape("shape"), workload.shape("sizes")
        if len(shape) != len(sizes) or not shape:
            raise WorkloadError("operator 'resize': shape and sizes need the same number of axes")

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        rounders: dict[str, Any] = {
            "floor": np.floor,
            "ceil": np.ceil,
            "round_prefer_floor": lambda v: np.ceil(v - 0.5),
            "round_prefer_ceil": lambda v: np.floor(v + 0.5),
        }
        result = inputs["x"]
        half = 0.5 if workload.text("coordinates") == "half_pixel" else 0.0
        for position, size in enumerate(workload.shape("sizes")):
            extent = result.shape[position]
            # In exact thirds, fifths, ...: a hair above the true value never changes a floor.
            place = (np.arange(size) + half) * extent / size - half
            place = np.round(place, 9)
            index = rounders[workload.text("rounding")](place).astype(np.int64)
            result = result.take(index.clip(0, extent - 1), axis=position)
        return result

    def _near(self, workload: Workload, i: Expr, extent: ExprLike, size: ExprLike) -> Expr:
        """The source index of output index `i`, as floor((p*i + q) / d) within the axis."""
        if extent == size:
            return i
        end = extent - 1
        extent, size = _ratio(extent, size)
        # The coordinate is (2*extent*i + offset) / (2*size).
        offset = extent - size if workload.text("coordinates") == "half_pixel" else 0
        offset += {
            "floor": 0,
            "ceil": 2 * size - 1,
            "round_prefer_floor": size - 1,
            "round_prefer_ceil": size,
        }[workload.text("rounding")]
        common = gcd(2 * extent, 2 * size)
        # floor((c*a*i + q) / (c*b)) = floor((a*i + floor(q/c)) / b)
        a, b, q = 2 * extent // common, 2 * size // common, offset // common
        nearest = (i * a + q) // b
        if q < 0:
            nearest = maximum(nearest, 0)
        last = ((size - 1) * a + q) // b
        return minimum(nearest, end) if last >= extent else nearest

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over the output's axes d0, d1, ..."""
        shape, sizes = workload.extents("shape"), workload.extents("sizes")
        axes = tuple(axis(f"d{i}", size) for i, size in enumerate(sizes))
        pairs = zip(axes, shape, sizes, strict=True)
        places = [self._near(workload, a.var, extent, size) for a, extent, size in pairs]
        stage = Stage("y", axes, load("x", *places), dtype=workload.dtype)
        return ComputeDefinition(self.operator, (Tensor("x", shape, workload.dtype),), (stage,))


def _ratio(extent: ExprLike, size: ExprLike) -> tuple[int, int]:
    """Numbers in the ratio of two extents: places that are so many elements on repeat themselves.

    Raises:
        WorkloadError: the ratio varies.
    """
    if isinstance(extent, int) and isinstance(size, int):
        return extent, size
    pairs = [as_expr(e).terms for e in (extent, size)]
    if any(len(terms) != 1 for terms in pairs) or pairs[0][0][0] != pairs[1][0][0]:
        raise WorkloadError(
            f"operator 'resize': an axis of {extent} elements cannot become one of {size}; an axis "
            "that varies keeps its size, or a fixed multiple or part of it"
        )
    return pairs[0][0][1], pairs[1][0][1]
