"""Short rows on Trainium-like cores: several beside each other on a partition.

128 rows of 49 elements are a transfer of 128 short runs and a few instructions of 49 elements, as
many as there are blocks of rows. Of `beside` rows to a partition a transfer is of longer runs, and
an instruction does `beside` times as much:

    total[r] = sum_k x[r, k]  -->  total[R, p] = sum_k x[R*beside + p, k]    (R on partitions)

Where a row's scalars enter elementwise work, it takes two inputs instead of one; so this is for
reductions alone.
"""

from tilesmith.families.trainium.schedules.building_blocks.common import CoreScheduler
from tilesmith.families.trainium.schedules.row_algorithms.folded_rows import beside, chosen, longest
from tilesmith.families.trainium.schedules.row_algorithms.followed import ALGORITHM, FollowedSpace
from tilesmith.families.trainium.schedules.row_algorithms.rows import PIECE, RowsSpace
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import loads
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import divisors
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload

KNOB = "beside"


class ShortRowsSpace:
    """Space and schedule of a reduction, each number of rows to a partition as `RowsSpace` has it.

    Args:
        compute: its stages have the rows first.
        dtype: of the result.
    """

    def __init__(self, compute: ComputeDefinition, dtype: str, target: Target) -> None:
        self.followed = FollowedSpace(compute, dtype, target)
        self.target, self.size = target, size_of(dtype)
        self.partitions = target.integer("sbuf.partitions")
        self.length = longest(compute)
        self.rows = compute.output.axes[0].extent.constant or 1
        self.spaces = {
            n: RowsSpace(beside(compute, n), dtype, target) for n in _candidates(compute)
        }

    @property
    def refusal(self) -> str | None:
        """See `Scheduler.refusal`."""
        if self.followed.widths:
            return None
        return next((s.refusal for s in self.spaces.values() if s.refusal is not None), None)

    def space(self) -> SearchSpace:
        """All copies and widths, for every number of rows to a partition; what is reduced along an
        axis that others follow also the other way round."""
        folded = [
            chosen(subspace, KNOB, n)
            for n, space in self.spaces.items()
            if space.refusal is None
            for subspace in space.space().subspaces
        ]
        return SearchSpace((*folded, *self.followed.space().subspaces))

    def default(self) -> Config:
        """The number of rows to a partition for which transfers and one pass of the vector engine
        take least, roughly: a transfer costs its partitions, an instruction what each has."""
        n = min(self.spaces, key=lambda n: (self._cost(n), n))
        if not self.followed.space().empty:
            other = self.followed.default()
            unfit = self.spaces[n].refusal is not None or self.spaces[n].space().empty
            cost = self.followed.cost(other.integer("width"))
            if unfit or self.followed.before == 1 or cost < self._cost(n):
                return other
        return Config.of({**self.spaces[n].default(), KNOB: n})

    def _cost(self, n: int) -> float:
        """ns, roughly, of `n` rows to a partition."""
        number = self.target.number
        bandwidth = number("dma.gbps_practical") * number("dma.engines")
        overhead = number("dma.row_overhead_bytes")
        moved = n * self.length * self.size + 2 * overhead
        groups = self.rows // n
        blocks = -(-groups // self.partitions)
        passed = max(number("vector.min_ii"), n * self.length) / number("vector.ghz")
        return groups * moved / bandwidth + blocks * passed

    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration."""
        if structure.text("algorithm") == ALGORITHM:
            return self.followed.schedule(structure)
        return self.spaces[structure.integer(KNOB)].schedule(structure)


def _candidates(compute: ComputeDefinition) -> list[int]:
    """Numbers of rows to a partition that divide them, as far as one instruction takes their
    elements; 1 where a stage uses the number of its row."""
    rows, *_ = compute.output.axes
    for stage in compute.stages:
        for load in loads(stage.value):
            again = any(rows.name in index.variables() for index in load.indices[1:])
            if load.indices[:1] != (rows.var,) or again:
                return [1]
    return list(divisors(rows.extent.constant or 1, max(1, PIECE // longest(compute))))


@schedules("reduce", on="trainium")
class ReduceOnCore(CoreScheduler):
    """See the module's docstring."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        return super().refusal(workload, target) or self.prepare(workload, target).refusal

    def prepare(self, workload: Workload, target: Target) -> ShortRowsSpace:
        return ShortRowsSpace(compute_of(workload), workload.dtype, target)
