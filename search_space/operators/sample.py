"""Weighted samples of images at places that are known at run time.

    y[r, c, p] = sum over t of weight[r, t, p] * x[image[r], c, index[r, t, p]]

or the largest of those products. An index counts pixels of an image row by row: t runs over the
pixels that one sample is made of, p over the samples of a region. Regions are of one image each, by
default of the image of the same number. Grid sampling, regions of interest and deformable
convolutions are this, once places and weights are computed.

A pixel of weight 0 has no part in a sample, whatever its value: so are those read that lie outside.
Negative indices count from the end, others out of range are clipped to it, so that no index reads
outside x; image numbers are refused before a compiled model gets here.
"""

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import element
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload

_GATHERED = 1 << 22
"""Elements that the reference gathers at once."""


@templates.register("sample")
class _Sample(Template):
    """See the module's docstring."""

    operator = "sample"
    summary = "weighted samples of images at places known at run time"
    parameters = (
        Parameter("kind", "what becomes of a sample's products", "sum", choices=("sum", "max")),
        Parameter("n", "images", 1),
        Parameter("c", "channels"),
        Parameter("h", "height of an image"),
        Parameter("w", "width of an image"),
        Parameter("regions", "with an image number each; 0: one for each image", 0, minimum=0),
        Parameter("taps", "pixels that a sample is made of", 1),
        Parameter("oh", "rows of samples"),
        Parameter("ow", "samples in a row"),
    )
    examples = (
        "sample n=2 c=3 h=7 w=5 taps=4 oh=3 ow=13",
        "sample c=19 h=5 w=6 taps=4 oh=4 ow=5",
        "sample kind=max n=3 c=17 h=4 w=5 regions=5 taps=3 oh=2 ow=3",
        "sample c=1 h=3 w=3 taps=1 oh=1 ow=1",
    )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        shape = tuple(workload.integer(name) for name in "nchw")
        regions, taps, samples = self._extents(workload)
        images = (Operand("image", (regions,), "int64"),) if workload.integer("regions") else ()
        places = (regions, taps, samples)
        return (
            Operand("x", shape, workload.dtype),
            *images,
            Operand("index", places, "int32"),
            Operand("weight", places, workload.dtype),
        )

    def _extents(self, workload: Workload) -> tuple[int, int, int]:
        """Regions, taps and samples of a region."""
        number = workload.integer
        return (number("regions") or number("n"), number("taps"), number("oh") * number("ow"))

    def output(self, workload: Workload) -> Operand:
        number = workload.integer
        shape = (number("regions") or number("n"), number("c"), number("oh"), number("ow"))
        return Operand("y", shape, workload.dtype, "output")

    def index_extents(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"image": (workload.integer("n"),)} if workload.integer("regions") else {}

    def channel_axis(self, workload: Workload) -> int:
        return 1

    def flops(self, workload: Workload) -> int:
        regions, taps, samples = self._extents(workload)
        return 2 * regions * taps * samples * workload.integer("c")

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        x = inputs["x"].reshape(*inputs["x"].shape[:2], -1)
        pixels = x.shape[2]
        index = inputs["index"].astype(np.int64)
        index = np.where(index < 0, index + pixels, index).clip(0, pixels - 1)
        images = np.arange(len(index))
        if "image" in inputs:
            images = inputs["image"] % x.shape[0]
        regions, taps, samples = self._extents(workload)
        y = np.empty((regions, x.shape[1], samples), x.dtype)
        reduce = np.max if workload.text("kind") == "max" else np.sum
        some = max(1, _GATHERED // max(1, x.shape[1] * taps * samples))
        for first in range(0, regions, some):
            part = slice(first, first + some)
            image, pixel = images[part, None, None, None], index[part, None]
            cells = x[image, np.arange(x.shape[1])[:, None, None], pixel]
            weight = inputs["weight"][part, None]
            y[part] = reduce(np.where(weight == 0, 0, weight * cells), axis=2)
        return y.reshape(self.output(workload).shape)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over r, c, p, reduced over t; rows of pixels are one axis."""
        n, c, h, w = (workload.integer(name) for name in "nchw")
        regions, taps, samples = self._extents(workload)
        r, channel, p, t = (
            axis(name, extent)
            for name, extent in (("r", regions), ("c", c), ("p", samples), ("t", taps))
        )
        place = (r.var * taps + t.var) * samples + p.var
        chosen = workload.integer("regions") > 0
        image = element("image", r.var, n) if chosen else r.var
        pixel = load("x", image, channel.var, element("index", place, h * w))
        weight = load("weight", r.var, t.var, p.var)
        value = call("where", call("equal", weight, 0), 0, call("multiply", weight, pixel))
        reducer = "max" if workload.text("kind") == "max" else "sum"
        tensors = (
            Tensor("x", (n, c, h * w), workload.dtype),
            *((Tensor("image", (regions,), "int64"),) if chosen else ()),
            Tensor("index", (regions * taps * samples,), "int32"),
            Tensor("weight", (regions, taps, samples), workload.dtype),
        )
        stage = Stage("y", (r, channel, p), value, (t,), reducer, dtype=workload.dtype)
        return ComputeDefinition(self.operator, tensors, (stage,))
