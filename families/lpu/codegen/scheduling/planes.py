"""MXM's planes while a program is placed: when each is free, and with which weights.

A product waits for a plane that holds its weights. A plane takes new weights into a buffer while it
still multiplies by the old ones, and then installs them; loads are appended to what a plane does,
never put in between.
"""

from dataclasses import dataclass

from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.scheduling.emission import BurstEmitter
from tilesmith.families.lpu.codegen.scheduling.readiness import earliest
from tilesmith.families.lpu.codegen.scheduling.requests import load_request
from tilesmith.families.lpu.codegen.scheduling.resources.board import Board, Plane
from tilesmith.families.lpu.codegen.scheduling.rigid import Rigid
from tilesmith.families.lpu.codegen.scheduling.settling import commit, settle
from tilesmith.families.lpu.codegen.scheduling.units import When, weights_key

LOADING = 24
"""Cycles that a load of weights takes, about."""


@dataclass(frozen=True)
class ProgramPlanes:
    """The planes of a board; loads of weights become bursts of the emitter."""

    board: Board
    emitter: BurstEmitter

    def when(self, chain: dataflow.Chain, types: dict[dataflow.ChainValue, str]) -> When:
        """About when a chain's products may begin on planes, once its rows are there."""
        rows = 0
        for step in chain.steps:
            if isinstance(step, dataflow.Read) and step.rows.tensor in self.board.ready:
                ready = self.board.ready[step.rows.tensor][step.rows.numbers]
                rows = max(rows, int(ready[0]), int(ready.max()) - chain.count)

        def beginning(step: dataflow.Product, first: int) -> tuple[int, bool]:
            key, planes = weights_key(step), self.of(first, types[step.moving])
            held = all(plane.installed and plane.installed[0] == key for plane in planes)
            return max(rows, *(self.ready(plane, key) for plane in planes)), not held

        return beginning

    def ready(self, plane: Plane, key: object) -> int:
        """About when a plane is free with some weights."""
        if plane.installed and plane.installed[0] == key:
            return plane.free
        return max(plane.buffer_free + LOADING, plane.free) + self.board.chip.install

    def free(self, plan: Rigid, types: dict[dataflow.ChainValue, str]) -> list[int]:
        """About when each plane of a chain is free, with its weights, as a start of the chain."""
        cycles = []
        for number, step in enumerate(plan.chain.steps):
            if not isinstance(step, dataflow.Product):
                continue
            key = weights_key(step)
            for plane in self.of(plan.choice.planes[number], types[step.moving]):
                cycles.append(max(0, self.ready(plane, key) - (plan.times[number] or 0)))
        return cycles or [0]

    def of(self, first: int, dtype: str) -> list[Plane]:
        """Planes of a product: both of a hemisphere in float16."""
        return self.board.planes[first : first + (2 if dtype == "float16" else 1)]

    def install(self, plan: Rigid, number: int, step: dataflow.Product, dtype: str) -> int:
        """Have a product's weights in its planes; gives the cycle from which it may begin."""
        planes = self.of(plan.choice.planes[number], dtype)
        key = (weights_key(step), dtype, self._version(step))
        if all(plane.installed == key for plane in planes):
            return max(plane.free for plane in planes)
        request = load_request(self.board, plan, number, dtype)
        start = max(earliest(self.board, request), *(plane.buffer_free for plane in planes))
        settled = settle(self.board, request, start)
        commit(self.board, request, settled)
        install = max(settled.start + request.count, *(plane.free for plane in planes))
        self.emitter.load(request, settled, step.k, install)
        for plane in planes:
            plane.free = plane.buffer_free = install + self.board.chip.install
            plane.installed = key
        return install + self.board.chip.install

    def _version(self, step: dataflow.Product) -> int:
        """Weights that were written anew are others."""
        ready = self.board.ready.get(step.weights.tensor)
        return 0 if ready is None else int(ready[step.weights.numbers].max())
