"""Convolution of very many channels on Trainium-like cores: sums in parts.

Where weights and image rows of all channels do not fit SBUF, a block of channels at a time does:

    for images, blocks of 128 output channels, blocks of output rows:
      for blocks of input channels:
        the rows with their halo, and the weights, of these channels in SBUF
        for tiles of rows:  psum = the channels' part of the sum;  sum[o, rows, x] += psum
      row[o, rows, x] = epilogue(sum);  store the block

The last block of channels may be smaller than the others.
"""

from itertools import product

from tilesmith.families.trainium.schedules.building_blocks.common import in_parts
from tilesmith.families.trainium.schedules.convolution.conv import EVACUATION, ROW_TILES, ConvSpace
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.expressions.expression import Expr, ceildiv, const, minimum, var
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace

LONGEST_PIECE = 2048
"""Elements a partition that an epilogue takes at once."""

STAGED, TEMPORARIES = 8, 6
"""Pieces of a tensor that an epilogue reads that stay in SBUF, and fp32 ones between its steps."""


def many(g: Geometry, target: Target) -> bool:
    """Whether there are channels for more than one block."""
    return g.channels > target.integer("tensor.rows")


class PartsSpace(ConvSpace):
    """Space and schedule of sums in parts; knobs beside `ConvSpace`'s: channels of a block."""

    algorithm = "parts"

    def space(self) -> SearchSpace:
        """Channels of a block, rows, copies, engine."""
        most = min(max(1, self.wide // self.columns), self.g.out_height)
        rows = sorted({most, *range(1, min(most, 8) + 1)})
        blocks = sorted({min(self.g.out_height, b) for b in ROW_TILES})
        whole = Constraint(
            (var("row_tiles") - 1) * var("rows"),
            self.g.out_height - 1,
            "rows of a block before its last tile",
        )
        knobs = (tile("rows", rows), tile("row_tiles", blocks), tile("c_block", self.c_blocks))
        spaces = []
        for copies, engine in product((2, 1), EVACUATION):
            fixed = (("algorithm", self.algorithm), ("copies", copies), ("evacuate", engine))
            limit = Constraint(
                self.parts_bytes(copies),
                self.capacity,
                "bytes of SBUF a partition that the tiles take",
            )
            spaces.append(Subspace(fixed, knobs, (limit, whole)))
        return SearchSpace(tuple(s for s in spaces if s.size) or (spaces[-1],))

    @property
    def c_blocks(self) -> list[int]:
        """Candidate channels of a block: powers of two of the array's rows, and half of all."""
        depth = -(-self.g.channels // self.rows)
        powers = [1 << e for e in range(depth.bit_length()) if 1 << e < depth]
        return [tiles * self.rows for tiles in sorted({*powers, -(-depth // 2)})]

    def parts_bytes(self, copies: int) -> Expr:
        """Bytes a partition of everything in SBUF at once."""
        g = self.g
        depth = ceildiv(var("c_block"), self.rows)
        weights = depth * (g.taps() * min(g.out_channels, self.cols) * self.size * copies)
        block = var("rows") * var("row_tiles")
        wide = -(-g.out_width // self.columns) * self.columns
        width = self._span(const(wide), 1).constant or 1
        image = self._span(block, 0) * depth * (width * self.size * copies)
        result = block * (wide * (4 + self.size) * copies)
        operands = sum(1 for s in self.workload.epilogue if s.kind.operand == "full")
        epilogue = self.size * STAGED * operands + (
            4 * TEMPORARIES if self.workload.epilogue else 0
        )
        return image + weights + result + minimum(block * wide, LONGEST_PIECE) * epilogue

    def default(self) -> Config:
        """As many channels and rows as fit, two copies where they do."""
        space = self.space()
        configs = list(space)
        if not configs:
            space.validate(space.subspaces[0].config(space.subspaces[0].rows(0, 1)[0]))
        return max(
            configs,
            key=lambda c: (
                c["evacuate"] == EVACUATION[0], c.integer("rows"),
                c.integer("copies"), min(c.integer("row_tiles"), 8), c.integer("c_block"), c.key,
            ),
        )  # fmt: skip

    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration; rows and channels stay symbols."""
        engine, copies = structure.text("evacuate"), structure.integer("copies")
        schedule = Schedule(in_parts(self.compute, "conv", "c", var("c_block")))
        schedule = schedule.split("result", "o", self.cols, "oo", "oi")
        block = var("rows") * var("row_tiles")
        schedule = schedule.split("result", "y", block, "yo", "yi")
        schedule = schedule.reorder("result", ("n", "oo", "yo", "oi", "yi", "x"))
        schedule = schedule.compute_at("row", "result", "yo", "sbuf")
        schedule = schedule.set_layout("row", Layout.permuted((1, 0, 2, 3)))
        schedule = schedule.assign_engine("row", engine)
        schedule = schedule.compute_at("conv", "result", "yo", "sbuf")
        schedule = schedule.set_layout("conv", Layout.permuted((1, 0, 2, 3)))
        schedule = schedule.split("conv", "y", var("rows"), "yt", "yr")
        schedule = schedule.split("conv", "x", self.columns, "xt", "xr")
        schedule = schedule.reorder("conv", ("g", "yt", "xt", "n", "o", "yr", "xr"))
        schedule = schedule.compute_at("part", "conv", "xt", "psum").pipeline("conv", "xt", 4)
        schedule = schedule.set_layout("part", Layout.permuted((2, 0, 1, 3, 4)))
        schedule = schedule.split("part", "ci", self.rows, "ct", "cc")
        schedule = schedule.reorder("part", ("ct", "r", "s", "cc", "g", "n", "o", "y", "x"))
        schedule = schedule.assign_engine("part", "tensor")
        schedule = self._image(schedule, "part", ("conv", "g"))
        schedule = self._weights(schedule, "part", ("conv", "g"))
        return schedule.pipeline("conv", "g", copies).pipeline("result", "yo", copies)
