"""The points of a sweep: degrees, precisions, batches and lengths, each with each.

A degree that is left open takes every value that divides what it must; whether the model can be
cut so, and fits, is the estimate's to say.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad, Precision
from tilesmith.search_space.meshes.mesh import Mesh
from tilesmith.search_space.support.errors import InputError

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
    _known: dict[int, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    def deployments(self) -> Iterator[Deployment]:
        """All ways to deploy; combinations that a mesh cannot be cut into are left out.

        Raises:
            InputError: no combination can be; the sentence is of the last of them.
        """
        any_left, refused = False, None
        for mesh in self.meshes:
            for degrees in self._degrees_on(mesh):
                try:
                    deployments = [
                        Deployment(mesh, *degrees, weights, cache)
                        for weights, cache in product(self.weights, self.caches)
                    ]
                except InputError as error:
                    refused = error
                    continue
                any_left = True
                yield from deployments
        if not any_left:
            assert refused is not None, "every mesh has at least one combination of degrees"
            raise refused

    def loads(self) -> Iterator[DeploymentLoad]:
        """All loads.

        Raises:
            InputError: a number below one, or a sequence longer than the longest.
        """
        for batch, inputs, outputs in product(self.batches, self.inputs, self.outputs):
            yield DeploymentLoad(batch, inputs, outputs, self.max_sequence)

    def _degrees_on(self, mesh: Mesh) -> Iterator[tuple[int, int, int, int]]:
        """Tensor, pipeline, expert and data degrees to try."""
        for tensor in self._degrees(self.tensor, mesh.cores):
            yield from product(
                (tensor,),
                self._degrees(self.pipeline, mesh.cores),
                self._degrees(self.expert, tensor),
                self._degrees(self.data, mesh.cores),
            )

    def _degrees(self, given: tuple[int, ...], cores: int) -> tuple[int, ...]:
        if given:
            return given
        if cores not in self._known:
            self._known[cores] = tuple(n for n in range(1, cores + 1) if cores % n == 0)
        return self._known[cores]
