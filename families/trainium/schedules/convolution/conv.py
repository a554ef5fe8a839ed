"""Convolution on Trainium-like cores, as shifted matrix products.

Channels stand on partitions. The image lies padded in SBUF, so that a tap of the kernel is the same
image seen through a shifted window: each tap and each 128 input channels are one matmul whose
moving operand is that window, all accumulating into one PSUM tile of output channels x pixels. A
residual can be where these sums begin (`sums`).

    for images and blocks of output channels (either outside), 128 of them, blocks of output rows:
      image (or the block's rows with their halo) and weights in SBUF
      for tiles of rows that fill a PSUM bank:  psum += weight[c, r, s, o].T @ window[c, rows, x]
      row[o, rows, x] = epilogue(psum);  store the block

Constant weights are laid out [c, r, s, o] at compile time, so that they load in long rows; where
128 output channels would make short ones, a block brings more of them at once.
"""

from itertools import product
from typing import ClassVar

from tilesmith.families.trainium.schedules.building_blocks.common import partitioned, with_store
from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.families.trainium.schedules.matrix_products.sums import leading, with_residual
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr, ceildiv, const, var
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.workload import Workload

EVACUATION = ("scalar", "vector")
"""Engines that may carry results out of PSUM, the default first."""

ADDERS = ("tensor", "vector")
"""Engines that may add a residual: before the sums, or on their way out of PSUM."""

LONG_ROW = 4096
"""Bytes of a row that DMA moves at full rate."""

ROW_TILES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 28)
"""Candidate numbers of row tiles in a block of output rows."""


class ConvSpace:
    """Space and schedule of a convolution.

    Args:
        g: a view (`Geometry.view`).
        compute: stages `padded` (if there is padding), `conv`, and `out` with an epilogue.
    """

    algorithm: ClassVar[str] = "shifted"

    def __init__(
        self, workload: Workload, target: Target, g: Geometry, compute: ComputeDefinition
    ) -> None:
        self.workload, self.target, self.g = workload, target, g
        self.compute = with_store(_converted(compute, workload.dtype), workload.dtype)
        self.rows, self.cols = target.integer("tensor.rows"), target.integer("tensor.cols")
        bank = memories(target)["psum"].bank // 4
        self.wide = min(target.integer("tensor.moving_free"), bank)
        self.capacity = memories(target)["sbuf"].bytes
        self.size = size_of(workload.dtype)
        self.columns = min(g.out_width, self.wide)
        self.padded = any(g.pads)

    # -- space --------------------------------------------------------------------------------
    def space(self) -> SearchSpace:
        """Order of images and output channels, what stays in SBUF, rows, copies."""
        most = min(max(1, self.wide // self.columns), self.g.out_height)
        rows = sorted({most, *range(1, min(most, 16) + 1)})
        blocks = sorted({min(self.g.out_height, b) for b in ROW_TILES})
        whole = Constraint(
            (var("row_tiles") - 1) * var("rows"),
            self.g.out_height - 1,
            "rows of a block before its last tile",
        )
        spaces = []
        for outer, keep, copies, engine, adder in product(
            ("n",) if self.g.groups > 1 else ("n", "o"), self.keeps(), (1, 2), EVACUATION,
            self.adders(),
        ):  # fmt: skip
            limit = Constraint(
                self.bytes(keep, copies) + self._residual(adder, copies),
                self.capacity,
                "bytes of SBUF a partition that the tiles take",
            )
            fixed = (
                ("algorithm", self.algorithm), ("copies", copies), ("evacuate", engine),
                ("keep", keep), ("outer", outer), *((("residual", adder),) if adder else ()),
            )  # fmt: skip
            knobs = (
                tile("rows", rows), tile("row_tiles", blocks), tile("o_tiles", self.o_tiles()),
            )  # fmt: skip
            spaces.append(Subspace(fixed, knobs, (limit, whole)))
        kept = tuple(s for s in spaces if s.size)
        return SearchSpace(kept or (spaces[0],))

    def o_tiles(self) -> list[int]:
        """Candidate numbers of 128 output channels whose weights load together."""
        most = -(-self.g.out_channels // self.cols) if self.g.groups == 1 else 1
        counts = [1 << e for e in range(most.bit_length())]
        return [n for n in counts if n == 1 or n * self._weight_row() <= LONG_ROW]

    def _weight_row(self) -> int:
        """Bytes a partition of the weights of 128 output channels."""
        depth = -(-self.g.channels // self.rows)
        return depth * self.g.taps() * min(self.g.out_channels, self.cols) * self.size

    def keeps(self) -> tuple[str, ...]:
        """What of the input may stay in SBUF: the whole image, or the rows of one block."""
        return ("image", "rows")

    def adders(self) -> tuple[str, ...]:
        """Engines that may add the residual; one without a name where that is no choice.

        Sums begin with whole blocks of it only: the last of a ragged number of channels would be
        multiplied with what the partitions below it held before.
        """
        whole = self.g.out_channels <= self.cols or self.g.out_channels % self.cols == 0
        free = self.g.groups == 1 and leading(self.workload, "residual") is not None
        return ADDERS if free and whole else ("",)

    def _residual(self, adder: str, copies: int) -> Expr:
        """Bytes a partition of a residual that sums begin with, and of ones."""
        if adder != "tensor":
            return const(0)
        wide = -(-self.g.out_width // self.columns) * self.columns
        block = var("rows") * var("row_tiles") * (wide * self.size * copies)
        return block + self.cols * self.size

    def bytes(self, keep: str, copies: int) -> Expr:
        """Bytes a partition of everything in SBUF at once."""
        g = self.g
        depth = -(-g.channels // self.rows)
        block = var("rows") * var("row_tiles")
        tall = block if keep == "rows" else ceildiv(g.out_height, block) * block
        wide = -(-g.out_width // self.columns) * self.columns
        height = self._span(tall, 0)
        width = self._span(const(wide), 1).constant or 1
        image = height * (depth * width * self.size * copies)
        operands = sum(1 for s in self.workload.epilogue if s.kind.operand == "full")
        result = block * (wide * self.size * copies)
        staged = self.wide * self.size * 8 * operands
        weights = var("o_tiles") * (2 * self._weight_row())
        return image + result + weights + staged + self.wide * 4 * 8 + self.size * 8

    def _span(self, count: Expr, direction: int) -> Expr:
        """Input extent that `count` outputs in a row or column read."""
        g = self.g
        return (
            (count - 1) * g.stride[direction]
            + g.dilation[direction] * (g.kernel[direction] - 1)
            + 1
        )

    def default(self) -> Config:
        """Images outside, whole ones in SBUF if they fit, full PSUM banks, two copies, long rows of
        weights."""
        space = self.space()
        wanted = {"outer": "n" if self.g.batch == 1 or self.g.groups > 1 else "o", "keep": "image"}
        adder = ADDERS[0 if self.size < 4 else 1]  # four passes of fp32 are no gain

        def promise(subspace: Subspace) -> tuple[float, ...]:
            """What ranks a configuration first, and is the same in all of its subspace."""
            fixed = dict(subspace.fixed)
            return (
                sum(fixed[name] == value for name, value in wanted.items()),
                fixed["evacuate"] == EVACUATION[0], fixed.get("residual", "") in ("", adder),
            )  # fmt: skip

        subspaces = [one for one in space.subspaces if one.size]
        if not subspaces:
            space.validate(space.subspaces[0].config(space.subspaces[0].rows(0, 1)[0]))
        most = max(map(promise, subspaces))
        return max(
            SearchSpace(tuple(one for one in subspaces if promise(one) == most)),
            key=lambda c: (
                c.integer("rows"), c.integer("copies"), min(c.integer("row_tiles"), 4),
                c.integer("o_tiles"), c.key,
            ),
        )  # fmt: skip

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration; `rows`, `row_tiles` and `o_tiles` stay
        symbols."""
        seeded = structure.get("residual", "") == "tensor"
        compute = self.compute
        if seeded:
            compute = with_residual(compute, self.workload, "conv", 1, self.cols)
        schedule = Schedule(compute)
        schedule = schedule.split("result", "o", self.cols, "ob", "oi")
        schedule = schedule.split("result", "ob", var("o_tiles"), "oo", "om")
        block = var("rows") * var("row_tiles")
        schedule = schedule.split("result", "y", block, "yo", "yi")
        outer = ("n", "oo", "om") if structure.text("outer") == "n" else ("oo", "om", "n")
        schedule = schedule.reorder("result", (*outer, "yo", "oi", "yi", "x"))
        copies = structure.integer("copies")
        schedule = schedule.compute_at("row", "result", "yo", "sbuf")
        schedule = schedule.set_layout("row", Layout.permuted((1, 0, 2, 3)))
        schedule = schedule.split("row", "y", var("rows"), "yt", "yr")
        schedule = schedule.split("row", "x", self.columns, "xt", "xr")
        schedule = schedule.reorder("row", ("n", "yt", "xt", "o", "yr", "xr"))
        schedule = schedule.assign_engine("row", structure.text("evacuate"))
        schedule = schedule.compute_at("conv", "row", "xt", "psum").pipeline("row", "xt", 4)
        schedule = schedule.set_layout("conv", Layout.permuted((1, 0, 2, 3)))
        schedule = self._reduction(schedule).assign_engine("conv", "tensor")
        schedule = self._seeded(schedule) if seeded else schedule
        where = "yo" if structure.text("keep") == "rows" else "n"
        schedule = self._image(schedule, "conv", ("result", where))
        schedule = self._weights(schedule, "conv", ("result", "oo"))
        schedule = schedule.pipeline("result", "yo", copies)
        return schedule.pipeline("result", "n", copies).pipeline("result", "oo", 2)

    def _seeded(self, schedule: Schedule) -> Schedule:
        """The block's residual in SBUF, times a diagonal of ones, where sums begin."""
        residual, strip = leading(self.workload, "residual"), "residual.strip"
        assert residual is not None
        schedule = schedule.set_scope("unit", "sbuf").cache_read(residual, "seed", strip, "sbuf")
        schedule = schedule.compute_at(strip, "result", "yo", "sbuf")
        schedule = schedule.set_layout(strip, partitioned(4, 1, self.rows, 0, 2, 3))
        schedule = schedule.compute_at("seed", "row", "xt", "psum")
        schedule = schedule.set_layout("seed", Layout.permuted((1, 0, 2, 3)))
        schedule = schedule.reorder("seed", ("u", "n", "o", "y", "x"))
        return schedule.assign_engine("seed", "tensor")

    def _reduction(self, schedule: Schedule) -> Schedule:
        """Taps and 128 channels at a time, one matmul each."""
        schedule = schedule.split("conv", "c", self.rows, "ct", "cc")
        return schedule.reorder("conv", ("ct", "r", "s", "cc", "n", "o", "y", "x"))

    def _image(self, schedule: Schedule, reader: str, place: tuple[str, str]) -> Schedule:
        """The padded image in SBUF, channels on partitions."""
        name, channel = "padded", "pc"
        if not self.padded:
            name, channel = "image", "image.1"
            schedule = schedule.cache_read("data", reader, name, "sbuf")
        schedule = schedule.compute_at(name, *place, "sbuf")
        schedule = schedule.set_layout(name, partitioned(4, 1, self.rows, 0, 2, 3))
        return schedule.split(name, channel, self.rows, f"{name}.ct", f"{name}.cc")

    def _weights(self, schedule: Schedule, reader: str, place: tuple[str, str]) -> Schedule:
        """Weights of 128 output channels in SBUF as [c, r, s, o]."""
        lead = 1 if self.g.groups > 1 else 0
        o, c, r, s = range(lead, lead + 4)
        source = "weight"
        block = "weight.block"
        schedule = schedule.cache_read("weight", reader, block, "sbuf")
        if self.workload.is_constant("weight"):
            source = "weight.packed"
            schedule = schedule.cache_read("weight", block, source)
            schedule = schedule.set_layout(source, Layout.permuted((*range(lead), c, r, s, o)))
            schedule = schedule.compile_time(source)
        schedule = schedule.set_layout(
            block, partitioned(4 + lead, c, self.rows, *range(lead), r, s, o)
        )
        schedule = schedule.compute_at(block, *place, "sbuf")
        return schedule.split(block, f"{block}.{c}", self.rows, f"{block}.ct", f"{block}.cc")


def _converted(compute: ComputeDefinition, dtype: str) -> ComputeDefinition:
    """The padded image keeps the data's dtype."""
    stages = tuple(
        Stage(s.name, s.axes, s.value, dtype=dtype) if s.name == "padded" else s
        for s in compute.stages
    )
    return ComputeDefinition(compute.name, compute.inputs, stages)
