"""The points of a sweep: degrees, precisions, batches and lengths, each with each.

A degree that is left open takes every value that divides what it must; whether the model can be
cut so, and fits, is the estimate's to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from tilesmith.planning.deployment import Deployment, Load, Precision
from tilesmith.search_space.errors import InputError
from tilesmith.search_space.mesh import Mesh

ALL: tuple[int, ...] = ()
"""Stands for every degree that divides."""


@dataclass(frozen=True)
class Grid:
    """Values to go through; an empty tuple of degrees means all that divide.

    Attributes:
        meshes: machines.
        tensor, pipeline, expert, data: degrees.
        weights, caches: precisions.
        batches, inputs, outputs: sequences, tokens of prompts and answers.
        max_sequence: longest sequence; 0: as long as input and output.
    """

    meshes: tuple[Mesh, ...]
    tensor: tuple[int, ...] = ALL
    pipeline: tuple[int, ...] = (1,)
    expert: tuple[int, ...] = (1,)
    data: tuple[int, ...] = (1,)
    weights: tuple[Precision, ...] = ("bf16",)
    caches: tuple[Precision, ...] = ("bf16",)
    batches: tuple[int, ...] = (1,)
    inputs: tuple[int, ...] = (128,)
    outputs: tuple[int, ...] = (128,)
    max_sequence: int = 0
    logical: int = 0
    _known: dict[int, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    def deployments(self) -> Iterator[Deployment]:
        """All ways to deploy; those that ask for more cores than there are are left out, unless
        nothing else was asked for.

        Raises:
            InputError: no combination of degrees has room on a mesh.
        """
        found = False
        for mesh in self.meshes:
            for deployment in self._on(mesh):
                found = True
                yield deployment
        if not found:
            names = ", ".join(mesh.name for mesh in self.meshes)
            raise InputError(
                f"no combination of the degrees asked for has room on {names}; the product of "
                "tensor, pipeline and data degrees is at most the cores of the mesh"
            )

    def loads(self) -> Iterator[Load]:
        """All loads.

        Raises:
            InputError: a number below one, or a sequence longer than the longest.
        """
        for batch, inputs, outputs in product(self.batches, self.inputs, self.outputs):
            yield Load(batch, inputs, outputs, self.max_sequence)

    def _on(self, mesh: Mesh) -> Iterator[Deployment]:
        for tensor in self._degrees(self.tensor, mesh.cores):
            for pipeline in self._degrees(self.pipeline, mesh.cores):
                for data, expert in product(
                    self._degrees(self.data, mesh.cores), self._degrees(self.expert, tensor)
                ):
                    if tensor * pipeline * data > mesh.cores or tensor % expert:
                        continue
                    for weights, cache in product(self.weights, self.caches):
                        yield Deployment(
                            mesh, tensor, pipeline, expert, data, weights, cache, self.logical
                        )

    def _degrees(self, given: tuple[int, ...], cores: int) -> tuple[int, ...]:
        if given:
            return given
        if cores not in self._known:
            self._known[cores] = tuple(n for n in range(1, cores + 1) if cores % n == 0)
        return self._known[cores]
