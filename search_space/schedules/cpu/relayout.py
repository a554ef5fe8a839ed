"""Relayout on CPUs: the same elements in another physical order; transposes and layout changes.

Two axes are contiguous, one in the source and one in the target. If they are the same axis, vectors
run along it. If not, tiles of lanes x lanes are transposed in registers, so that memory sees whole
vectors on both sides.
"""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.relayout import relayout_of
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Knob, choice, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import PreparingScheduler, schedules
from tilesmith.search_space.workloads.workload import Workload


class RelayoutSpace:
    """Space and schedule of one change of layout."""

    def __init__(self, workload: Workload, target: Target) -> None:
        self.relayout, self.compute = relayout_of(workload), compute_of(workload)
        self.lanes = vector_width(target)

    @property
    def _inner(self) -> tuple[int, int]:
        """The axes that are contiguous in source and target."""
        return self.relayout.source.dimensions[-1].axis, self.relayout.target.dimensions[-1].axis

    def _factor(self, position: int) -> int:
        """Smallest block that either layout cuts an axis into; 0 where neither does."""
        dimensions = (*self.relayout.source.dimensions, *self.relayout.target.dimensions)
        inner = [
            d.factor.constant or 0 for d in dimensions if d.axis == position and d.part == "inner"
        ]
        return min(inner, default=0)

    def space(self) -> SearchSpace:
        """`unroll` vectors of a copy; which side a transpose walks along."""
        source, target = self._inner
        if source != target:
            walk: tuple[Knob, ...] = (choice("walk", ["source", "target"]),)
            return SearchSpace((Subspace((("algorithm", "transpose"),), walk),))
        vectors = -(-self.relayout.shape[target] // (self._factor(target) or self.lanes))
        counts = tile("unroll", [u for u in (1, 2, 4, 8) if u <= vectors])
        return SearchSpace((Subspace((("algorithm", "copy"),), (counts,)),))

    def default(self) -> Config:
        """Walk along the source (many writes in flight hurt less than reads)."""
        if self._inner[0] != self._inner[1]:
            return Config.of(algorithm="transpose", walk="source")
        counts = [int(u) for u in self.space().describe()["unroll"]]
        return Config.of(algorithm="copy", unroll=max(u for u in counts if u <= 4))

    def schedule(self, structure: Config) -> Schedule:
        """Vectors or tiles inside, the other loops in the target's order around them."""
        schedule = Schedule(self.compute)
        schedule = schedule.set_layout("x", self.relayout.source).set_layout(
            "y", self.relayout.target
        )
        source, target = self._inner
        for position in range(len(self.relayout.extents)):
            factor = self._factor(position)
            if factor or position in self._inner:
                d = f"d{position}"
                schedule = schedule.split("y", d, factor or self.lanes, f"{d}v", f"{d}l")
        outer = self._outer_loops()
        if source == target:
            vectors = f"d{target}v"
            schedule = schedule.split("y", vectors, var("unroll"), "step", "part")
            outer = ["step" if loop == vectors else loop for loop in outer]
            schedule = schedule.reorder("y", (*outer, "part", f"d{target}l"))
            schedule = schedule.unroll("y", "part").vectorize("y", f"d{target}l")
            return schedule.parallel("y", *outer)
        last = f"d{source if structure.text('walk') == 'source' else target}v"
        outer = [*(loop for loop in outer if loop != last), last]
        schedule = schedule.reorder("y", (*outer, f"d{source}l", f"d{target}l"))
        schedule = schedule.unroll("y", f"d{source}l").vectorize("y", f"d{target}l")
        schedule = schedule.tensorize("y", f"d{source}l", "transpose")
        return schedule.parallel("y", *outer)

    def _outer_loops(self) -> list[str]:
        """Every loop but the innermost of source and target, in the target's order."""
        loops: list[str] = []
        for dimension in self.relayout.target.dimensions:
            d = f"d{dimension.axis}"
            if not self._factor(dimension.axis):
                loops.append(f"{d}v" if dimension.axis in self._inner else d)
                continue
            if dimension.part != "inner":
                loops.append(f"{d}v")
            if dimension.part != "outer" and dimension.axis not in self._inner:
                loops.append(f"{d}l")
        return loops


@schedules("layout_transform", "transpose", on="cpu")
class CpuRelayout(PreparingScheduler):
    """See the module's docstring."""

    def prepare(self, workload: Workload, target: Target) -> RelayoutSpace:
        return RelayoutSpace(workload, target)
