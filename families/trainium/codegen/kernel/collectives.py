"""Instructions between cores: what several kernels of a mesh do together, tensor to tensor in HBM.

    fabric = many_cores.fabric(load_mesh("trn1.32xlarge"), core=3)
    kernel = Kernel("mlp", Core.of(fabric.mesh.target), fabric)
    kernel.all_reduce(out, partial, group=(0, 1, 2, 3))

Each core of a group has a stream of its own, in which the same collective stands. They go on in a
queue of their own, one after the other, beside engines and DMA; semaphores order them with what
they read and write as everything else. Elements run in row-major order of the view: gathered parts
stand in the order of the group, and of what is scattered or exchanged member i's part is the i-th.
"""

from tilesmith.families.trainium.codegen.isa.core import COLLECTIVE_QUEUE
from tilesmith.families.trainium.codegen.isa.fabric import CoreFabric
from tilesmith.families.trainium.codegen.isa.instructions import (
    COLLECTIVES,
    OPERATIONS,
    REDUCTIONS,
    Opcode,
)
from tilesmith.families.trainium.codegen.isa.lines import KernelError
from tilesmith.families.trainium.codegen.isa.memory import HbmView
from tilesmith.families.trainium.codegen.kernel.emitter import StreamEmitter
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.meshes.mesh import COLLECTIVE_KINDS, CollectiveKind
from tilesmith.search_space.support.errors import TargetError


class CollectiveInstructions(StreamEmitter):
    """See the module's docstring. `group`: core numbers of the mesh, this core among them."""

    def all_reduce(
        self, out: HbmView, source: HbmView, group: tuple[int, ...], op: str = "add"
    ) -> None:
        """`out` = the sum of all members' `source`, the same bits on each; may be the same view."""
        self._collective("all_reduce", out, source, group, op)

    def reduce_scatter(
        self, out: HbmView, source: HbmView, group: tuple[int, ...], op: str = "add"
    ) -> None:
        """`out` = this member's part of the sum of all members' `source`."""
        self._collective("reduce_scatter", out, source, group, op)

    def all_gather(self, out: HbmView, source: HbmView, group: tuple[int, ...]) -> None:
        """`out` = all members' `source`, one after the other."""
        self._collective("all_gather", out, source, group)

    def all_to_all(self, out: HbmView, source: HbmView, group: tuple[int, ...]) -> None:
        """`out` = this member's part of each member's `source`, one after the other."""
        self._collective("all_to_all", out, source, group)

    def send(self, source: HbmView, to: int) -> None:
        """Send a tensor to a core, which has to `receive` it."""
        self._collective("send", None, source, (self._known().core, to))

    def receive(self, out: HbmView, sender: int) -> None:
        """Receive what a core sends."""
        self._collective("receive", out, None, (sender, self._known().core))

    # -- inside -------------------------------------------------------------------------------
    def _known(self) -> CoreFabric:
        if self._fabric is None:
            raise KernelError(
                f"kernel '{self.name}' belongs to no mesh, so there is nobody to communicate with; "
                "give Kernel(...) the fabric of one"
            )
        return self._fabric

    def _collective(
        self,
        kind: str,
        out: HbmView | None,
        source: HbmView | None,
        group: tuple[int, ...],
        op: str = "add",
    ) -> None:
        fabric = self._known()
        if op not in REDUCTIONS:
            raise KernelError(f"'{op}' sums nothing; one of {', '.join(REDUCTIONS)} is expected")
        try:
            members = fabric.mesh.check_group(group)
        except TargetError as error:
            raise KernelError(f"kernel '{self.name}', {kind}: {error}") from error
        if fabric.core not in members or (kind in ("send", "receive") and len(members) != 2):
            raise KernelError(
                f"kernel '{self.name}' runs on core {fabric.core}, which is not in the group "
                f"{members} of its {kind}"
            )
        whole = out if kind in ("all_gather", "receive") else source
        assert whole is not None
        size = size_of(whole.dtype)
        for count, _ in whole.dims:
            size *= count
        costed: CollectiveKind = next((k for k in COLLECTIVE_KINDS if k == kind), "send")
        time, engines = fabric.nanoseconds(costed, size, members)
        number = self._groups.setdefault(members, len(self._groups))
        slots = [-1 if view is None else self._whole(view) for view in (out, source)]
        row = (
            int(Opcode.COLLECTIVE), COLLECTIVE_QUEUE, COLLECTIVES.index(kind), number,
            OPERATIONS.index(op), *slots, -1, -1, -1, 0, 0,
        )  # fmt: skip
        self._append(row, (time, engines, 0.0))

    def _whole(self, view: HbmView) -> int:
        return self._hbm_access(view, (*view.dims, *[(1, 1)] * (2 - len(view.dims))))
