"""Transposes: any permutation of the axes.

    y[i_p0, i_p1, ...] = x[i_0, i_1, ...]            with p = perm, as in numpy.transpose(x, perm)

In memory this is the change from the row-major layout to one with permuted axes, so it is scheduled
as one (`relayout`): neighbours that stay neighbours merge, tiles are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_space import accelerator
from search_space.accelerator_transpose import PermutationSpace
from search_space.compute import ComputeDefinition
from search_space.config import Config
from search_space.errors import WorkloadError
from search_space.flattening import check_extents
from search_space.layout import Layout
from search_space.relayout import Relayout
from search_space.schedule import Schedule
from search_space.space import SearchSpace
from search_space.target import Target
from search_space.template import Operand, Parameter, Template, templates
from search_space.workload import Workload


@templates.register("transpose")
class Transpose(Template):
    """See the module's docstring."""

    operator = "transpose"
    summary = "a permutation of the axes"
    parameters = (
        Parameter("shape", "of the input, e.g. 1x128x12x64", text=True),
        Parameter("perm", "input axis of each output axis, e.g. 0x2x1x3", text=True),
    )
    examples = (
        "transpose shape=37x19 perm=1x0",
        "transpose shape=1x7x3x33 perm=0x2x1x3",
        "transpose shape=2x7x3x5 perm=0x2x3x1",
        "transpose shape=5x2x17x3 perm=3x1x2x0",
        "transpose shape=1009 perm=0",
        "transpose shape=18x1x34 perm=2x1x0 dtype=int64",
        "transpose shape=4x1x5 perm=1x0x2",
    )

    def check(self, workload: Workload) -> None:
        shape, order = workload.shape("shape"), workload.shape("perm")
        check_extents(self.operator, "shape", shape)
        if sorted(order) != list(range(len(shape))):
            raise WorkloadError(
                f"operator 'transpose': perm={workload['perm']} is no permutation of the "
                f"{len(shape)} axes of shape={workload['shape']}"
            )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        return (Operand("x", workload.shape("shape"), workload.dtype),)

    def output(self, workload: Workload) -> Operand:
        shape = workload.shape("shape")
        order = workload.shape("perm")
        return Operand("y", tuple(shape[p] for p in order), workload.dtype, "output")

    def flops(self, workload: Workload) -> int:
        return 0

    def reference(self, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        return np.transpose(inputs["x"], workload.shape("perm"))

    def _relayout(self, workload: Workload) -> Relayout:
        shape = workload.shape("shape")
        target = Layout.permuted(workload.shape("perm"))
        return Relayout.of(shape, Layout.plain(len(shape)), target)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage, a copy over the merged axes of the input."""
        return self._relayout(workload).compute(self.operator, workload.dtype)

    # -- accelerators -------------------------------------------------------------------------
    def _permutation(self, workload: Workload, target: Target) -> PermutationSpace:
        return PermutationSpace(self._relayout(workload), self.operator, workload.dtype, target)

    # -- all targets --------------------------------------------------------------------------
    def space(self, workload: Workload, target: Target) -> SearchSpace:
        if target.family == accelerator.FAMILY:
            return self._permutation(workload, target).space()
        return self._relayout(workload).space(target.integer("vector.lanes"))

    def default(self, workload: Workload, target: Target) -> Config:
        if target.family == accelerator.FAMILY:
            return self._permutation(workload, target).default()
        return self._relayout(workload).default(target.integer("vector.lanes"))

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        if target.family == accelerator.FAMILY:
            return self._permutation(workload, target).schedule(structure)
        lanes = target.integer("vector.lanes")
        return self._relayout(workload).schedule(self.operator, workload.dtype, lanes, structure)
