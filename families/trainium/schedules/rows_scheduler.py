"""The schedulers of maps, softmax and normalisations on Trainium-like cores: see `rows`."""

from tilesmith.families.trainium.schedules.building_blocks.common import CoreScheduler
from tilesmith.families.trainium.schedules.building_blocks.flags import not_computed
from tilesmith.families.trainium.schedules.row_algorithms.folded_rows import FoldedRowsSpace
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operators.layer_norm import LayerNorm
from tilesmith.search_space.operators.softmax import Softmax
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of, template_of
from tilesmith.search_space.workloads.workload import Workload


@schedules("elementwise", on="trainium")
class RowsOnCore(CoreScheduler):
    """See the module's docstring."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        return (
            super().refusal(workload, target)
            or not_computed(compute_of(workload), target)
            or self.prepare(workload, target).refusal
        )

    def prepare(self, workload: Workload, target: Target) -> FoldedRowsSpace:
        return FoldedRowsSpace(compute_of(workload), workload.dtype, target)

    def inside(self, workload: Workload, target: Target) -> Config:
        return self.prepare(workload, target).inside()


@schedules("softmax", on="trainium")
class SoftmaxOnCore(RowsOnCore):
    """Powers are computed twice by the scalar engine, which sums them on the way, so that the
    vector engine, the busier one, does not; only sums along a whole partition's run are."""

    def prepare(self, workload: Workload, target: Target) -> FoldedRowsSpace:
        template = template_of(workload.operator)
        assert isinstance(template, Softmax)
        compute = template.compute(workload, again=True)
        if len(compute.output.axes) > 2:
            compute = template.compute(workload)
        return FoldedRowsSpace(compute, workload.dtype, target)


@schedules("layer_norm", "rms_norm", on="trainium")
class NormOnCore(RowsOnCore):
    """What needs no variance comes first: the scale, while sums are reduced."""

    def prepare(self, workload: Workload, target: Target) -> FoldedRowsSpace:
        template = template_of(workload.operator)
        assert isinstance(template, LayerNorm)
        late, early = (template.compute(workload, late=late) for late in (True, False))
        return FoldedRowsSpace(late, workload.dtype, target, early)
