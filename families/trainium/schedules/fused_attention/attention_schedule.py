"""Fused attention on Trainium-like cores: schedules of its stages, and where their tiles stand.

`attention_stages` says what is computed; `attention` which structures there
are. All is attached to loops over groups of heads (`hp`: those turned together, `hi`: those reduced
together) and over blocks of 128 queries (`mo`); in blocks of keys, what is of one block to a loop
over these (`gn`) inside.
"""

from math import gcd

from tilesmith.families.trainium.schedules.building_blocks.common import partitioned
from tilesmith.families.trainium.schedules.fused_attention.attention_stages import AttentionStages
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config

TURNED = 4
"""Turned tiles that share a PSUM bank and one copy out of it."""


class AttentionSchedule(AttentionStages):
    """Schedules of one attention."""

    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration."""
        group, pair = structure.integer("group"), structure.integer("pair")
        schedule = Schedule(self.compute(structure))
        schedule = schedule.split("y", "h", max(group, pair), "hp", "hl")
        schedule = schedule.split("y", "hl", group, "hi", "hj")
        rows = min(self.cols, self.m) if self.block(structure) else self.cols
        schedule = schedule.split("y", "m", rows, "mo", "mi")
        schedule = schedule.reorder("y", ("b", "hp", "hi", "mo", "hj", "mi", "e"))
        schedule = self._features(schedule, structure, "k", "n", "keys")
        schedule = self._features(schedule, structure, "q", "m", "queries")
        schedule = schedule.compute_at("v.ones", *self._held(structure, "hi"), "sbuf")
        schedule = schedule.unroll("v.ones", "h")
        schedule = schedule.set_layout("v.ones", partitioned(4, 2, self.rows, 0, 1, 3))
        schedule = schedule.split("v.ones", "n", self.rows, "v.nt", "v.ni")
        if structure.text("turn") == "scores":
            schedule = self._scores(schedule, structure)
        else:
            schedule = self._softmax(schedule, structure)
            schedule = self._powers(schedule, structure)
        schedule = self._results(schedule, structure).interleave("y", "b")
        heads = structure.integer("heads" if self.block(structure) else "copies")
        schedule = schedule.pipeline("y", "hp", heads).pipeline("y", "hi", heads)
        return schedule.pipeline("y", "mo", structure.integer("copies"))

    def _place(self, structure: Config) -> tuple[str, str]:
        """The stage and loop that all scores made at once are attached to."""
        return ("part", "gn") if self.block(structure) else ("y", "mo")

    def _held(self, structure: Config, loop: str) -> tuple[str, str]:
        """The stage and loop that keys and values are attached to: of whole heads to `loop`."""
        blocks = self.block(structure) and structure.text("hold") == "block"
        return ("part", "gn") if blocks else ("y", loop)

    def _features(
        self, schedule: Schedule, structure: Config, name: str, along: str, engines: str
    ) -> Schedule:
        """Queries or keys of a pair of heads, features on partitions."""
        strip, result = f"{name}.strip", f"{name}t"
        place = self._held(structure, "hp")
        if self.block(structure):
            schedule = schedule.compute_at(strip, result, f"{result}.g", "sbuf")
            place = place if name == "k" else ("y", "mo")
        else:
            schedule = schedule.compute_at(strip, *place, "sbuf")
        fold = gcd(self.fold(structure), self.m if along == "m" else self.n)
        others, loop = ((0, 1, 3), along) if fold == 1 else ((0, 1, 3, 4), f"{along}p")
        schedule = schedule.set_layout(strip, partitioned(1 + len(others), 2, self.rows, *others))
        schedule = schedule.split(strip, loop, self.rows, f"{strip}.t", f"{strip}.i")
        schedule = schedule.compute_at(result, *place, "sbuf")
        schedule = schedule.set_layout(result, partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = schedule.assign_engine(result, structure.text(engines))
        return self._turned(schedule, structure, result, f"{name}.turned", along)

    def _turned(
        self, schedule: Schedule, structure: Config, result: str, turned: str, along: str
    ) -> Schedule:
        """`turned` in PSUM for `TURNED` tiles of `result` at a time."""
        group, inner = f"{result}.g", f"{result}.{along}i"
        schedule = schedule.split(result, "f", self.rows, f"{result}.ft", f"{result}.fi")
        extent = self.m if along == "m" else self.n
        fold, tiles = gcd(self.fold(structure), extent), min(self.cols * TURNED, extent)
        schedule = schedule.split(result, along, tiles, group, inner)
        rest = [inner]
        if fold > 1:
            rest = [f"{result}.{along}o", f"{result}.{along}j"]
            schedule = schedule.split(result, inner, fold, *rest)
        order = ("b", "g", f"{result}.ft", group, f"{result}.fi", *rest)
        schedule = schedule.reorder(result, order)
        schedule = schedule.compute_at(turned, result, group, "psum")
        if fold > 1:
            schedule = schedule.set_layout(turned, _lead(4, 5))
            rows = min(self.rows, tiles // fold)
            schedule = schedule.split(turned, f"{along}p", rows, f"{turned}.t", f"{turned}.i")
            names = "b", "g", f"{turned}.t", f"{along}j", f"{turned}.i", "f"
            schedule = schedule.reorder(turned, names).unroll(turned, f"{along}j")
        else:
            schedule = schedule.set_layout(turned, _lead(3))
            schedule = schedule.split(turned, along, self.rows, f"{turned}.t", f"{turned}.i")
        schedule = schedule.assign_engine(turned, "tensor")
        return schedule.pipeline(result, group, structure.integer("strips"))

    def _product(
        self, schedule: Schedule, structure: Config, name: str, moving: str, width: int
    ) -> Schedule:
        """A product of queries and keys, one head and up to `width` of `moving` at a time."""
        pair, other = structure.integer("pair"), "n" if moving == "m" else "m"
        heads, blocks, inner = ["h"], f"{name}.t", f"{name}.i"
        if structure.integer("group") > 1:
            heads = [f"{name}.hq", f"{name}.hr"]
            schedule = schedule.split(name, "h", pair, *heads)
        schedule = schedule.split(name, "k", self.rows, f"{name}.kt", f"{name}.kk")
        schedule = schedule.split(name, "n", width, blocks, inner)
        order = [*heads, blocks, f"{name}.kt", f"{name}.kk", "b"]
        free = ["m", inner] if other == "m" else [inner, "m"]
        schedule = schedule.reorder(name, (*order, *free))
        return schedule.unroll(name, *heads, blocks).assign_engine(name, "tensor")

    def _scores(self, schedule: Schedule, structure: Config) -> Schedule:
        places, place = structure.integer("places"), self._place(structure)
        schedule = schedule.set_scope("unit", "sbuf")
        schedule = self._greatest(schedule, structure)
        schedule = schedule.split("top", "n", self.wide, "top.t", "top.i")
        schedule = schedule.reorder("top", ("top.t", "top.i", "b", "h", "m"))
        if structure.text("scores") == "sbuf":
            schedule = schedule.compute_at("t", "top", "top.t", "sbuf").set_layout("t", _lead(2))
            schedule = schedule.rotate("t", structure.integer("copies"))
            schedule = schedule.assign_engine("t", structure.text("passing"))
            schedule = schedule.assign_engine("top", structure.text("top"))
            schedule = schedule.compute_at("s", "t", "b", "psum")
        else:
            schedule = schedule.compute_at("s", "top", "top.t", "psum")
        schedule = schedule.set_layout("s", _lead(2)).rotate("s", places)
        schedule = self._product(schedule, structure, "s", "n", self.wide)
        schedule = schedule.compute_at("pt", *place, "sbuf")
        schedule = schedule.set_layout("pt", partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = self._blocks(schedule, structure, "pt")
        for name in ("product", "st"):
            schedule = schedule.compute_at(name, "pt", "pt.g", "psum")
            schedule = schedule.set_layout(name, partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = self._product(schedule, structure, "product", "m", self.rows)
        schedule = schedule.split("st", "n", self.rows, "st.t", "st.i")
        schedule = schedule.reorder("st", ("h", "st.t", "i", "b", "st.i", "m"))
        return schedule.unroll("st", "h", "st.t").assign_engine("st", "tensor")

    def _greatest(self, schedule: Schedule, structure: Config) -> Schedule:
        """Greatest scores: a column, or one a block of keys."""
        order = (3, 0, 1, 2) if self.block(structure) else (2, 0, 1)
        names = ("top", "bound") if self.bounded(self.block(structure)) else ("top",)
        for name in names:
            schedule = schedule.compute_at(name, *self._place(structure), "sbuf")
            schedule = schedule.set_layout(name, Layout.permuted(order))
        return schedule

    def _softmax(self, schedule: Schedule, structure: Config) -> Schedule:
        place = self._place(structure)
        if structure.text("scores") == "sbuf":
            schedule = schedule.compute_at("t", *place, "sbuf").set_layout("t", _lead(2))
            schedule = schedule.split("t", "n", self.wide, "t.nt", "t.ni")
            schedule = schedule.reorder("t", ("b", "t.nt", "h", "m", "t.ni"))
            passing = structure.text("passing") if self.mask in ("none", "row") else "vector"
            schedule = schedule.assign_engine("t", passing)
            schedule = schedule.assign_engine("top", structure.text("top"))
            schedule = schedule.compute_at("s", "t", "t.nt", "psum")
        else:
            schedule = schedule.compute_at("s", *place, "psum")
        schedule = schedule.set_layout("s", _lead(2)).rotate("s", structure.integer("places"))
        schedule = self._product(schedule, structure, "s", "n", self.wide)
        if self.mask == "row":
            schedule = self._row_mask(schedule, structure)
        schedule = self._greatest(schedule, structure).reorder("top", ("n", "b", "h", "m"))
        schedule = schedule.compute_at("p", *place, "sbuf").set_layout("p", _lead(2))
        return schedule.unroll("p", "h")

    def _row_mask(self, schedule: Schedule, structure: Config) -> Schedule:
        """The mask's row on one partition, times ones on to the scores."""
        schedule = schedule.set_scope("ones", "sbuf").compute_at("mask.strip", "y", "b", "sbuf")
        schedule = schedule.set_layout("mask.strip", Layout.permuted((1, 0, 2)))
        host = ("t", "t.nt") if structure.text("scores") == "sbuf" else self._place(structure)
        schedule = schedule.compute_at("s.masked", *host, "psum").set_layout("s.masked", _lead(2))
        schedule = schedule.split("s.masked", "n", self.wide, "s.mt", "s.mi")
        schedule = schedule.reorder("s.masked", ("h", "s.mt", "z", "b", "m", "s.mi"))
        return schedule.unroll("s.masked", "h", "s.mt").assign_engine("s.masked", "tensor")

    def _powers(self, schedule: Schedule, structure: Config) -> Schedule:
        schedule = schedule.compute_at("pt", *self._place(structure), "sbuf")
        schedule = schedule.set_layout("pt", partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = schedule.assign_engine("pt", structure.text("powers"))
        schedule = self._blocks(schedule, structure, "pt")
        schedule = schedule.compute_at("p.turned", "pt", "pt.g", "psum")
        schedule = schedule.set_layout("p.turned", partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = schedule.split("p.turned", "n", self.rows, "p.nt", "p.ni")
        return schedule.assign_engine("p.turned", "tensor")

    def _blocks(self, schedule: Schedule, structure: Config, name: str) -> Schedule:
        """Powers with keys on partitions, as many tiles at a time as share a PSUM bank."""
        tiles, group, inner = f"{name}.nt", f"{name}.g", f"{name}.ni"
        schedule = schedule.split(name, "n", self.rows, tiles, inner)
        together = self.together(structure.integer("group"))
        schedule = schedule.split(name, tiles, together, group, f"{name}.nj")
        order = (group, "b", "h", f"{name}.nj", inner, "m")
        schedule = schedule.reorder(name, order)
        return schedule.pipeline(name, group, structure.integer("turning"))

    def _results(self, schedule: Schedule, structure: Config) -> Schedule:
        blocks = bool(self.block(structure))
        layout = _lead(3, 5) if blocks else _lead(2)
        schedule = schedule.compute_at("o", *self._place(structure), "psum")
        schedule = schedule.set_layout("o", layout)
        schedule = schedule.rotate("o", structure.integer("places"))
        schedule = schedule.split("o", "n", self.rows, "o.nt", "o.ni")
        schedule = schedule.reorder("o", ("h", "o.nt", "o.ni", "b", "m", "e1")).unroll("o", "h")
        schedule = schedule.assign_engine("o", "tensor")
        schedule = self._merged_blocks(schedule, structure) if blocks else schedule
        schedule = schedule.compute_at("row", "y", "mo", "sbuf").set_layout("row", _lead(2))
        return schedule.unroll("row", "h").assign_engine("row", "vector")

    def _merged_blocks(self, schedule: Schedule, structure: Config) -> Schedule:
        """What blocks leave stands beside each other; one instruction a block adds it up."""
        schedule = schedule.compute_at("part", "y", "mo", "sbuf").set_layout("part", _lead(3, 5))
        schedule = schedule.reorder("part", ("gn", "b", "h", "m", "e2"))
        schedule = schedule.assign_engine("part", structure.text("keeping"))
        schedule = schedule.pipeline("part", "gn", structure.integer("ahead"))
        schedule = schedule.compute_at("most", "y", "mo", "sbuf")
        schedule = schedule.set_layout("most", Layout.permuted((2, 0, 1)))
        schedule = schedule.reorder("most", ("gn", "b", "h", "m"))
        schedule = schedule.compute_at("fade", "y", "mo", "sbuf").set_layout("fade", _lead(3))
        schedule = schedule.compute_at("whole", "y", "mo", "sbuf").set_layout("whole", _lead(2))
        schedule = schedule.reorder("whole", ("gn", "b", "h", "m", "e1"))
        return schedule.assign_engine("whole", structure.text("merging"))

    def together(self, group: int) -> int:
        """Tiles of a head's powers that are turned before they are copied."""
        return min(max(1, TURNED // group), -(-self.n // self.cols))


def _lead(position: int, rank: int = 4) -> Layout:
    """Axis `position` of `rank` on partitions, the others in order beside it."""
    order = (position, *(i for i in range(rank) if i != position))
    return Layout(tuple(LayoutDimension(i) for i in order))
