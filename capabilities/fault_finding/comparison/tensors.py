"""Compares every tensor of a compiled model with a reference, and says where errors arise.

A tensor beyond tolerance is looked at more closely: computed by the reference *from the compiled
model's own tensors before it*. If that agrees, the error is inherited; if the reference itself is
as far from its own result in float64, the tensor is sensitive to rounding and nobody's fault; else
the error arises here. So quantised models, in which a rounding the other way is a whole step and
spreads, and models that amplify roundings have no bad tensors, and a wrong kernel has one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.references.cones import between, nearest
from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.capabilities.fault_finding.references.float64 import in_float64, wide
from tilesmith.capabilities.fault_finding.references.left_open import left_open, opens
from tilesmith.capabilities.fault_finding.references.quantised import Scale, scales_of
from tilesmith.capabilities.fault_finding.stepping.errors import distance, tensor_error
from tilesmith.capabilities.fault_finding.stepping.report import TensorRow, Verdict
from tilesmith.capabilities.fault_finding.stepping.steps import ends
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.recipe.program import HeldTensor, HostStep, KernelStep, Recipe
from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy
from tilesmith.search_space.support.errors import JobError

Arrays = Mapping[str, NDArray[Any]]

TOLERANCE = 1e-3
"""Largest relative error of a float32 tensor: roundings of deep models stay a tenth of it below."""

WIDER = {"float16": 20.0, "bfloat16": 150.0}
"""How much larger the tolerance is than float32's: some forty roundings of the type."""

NOISE = 10.0
"""An error up to so many times what the reference is away from itself in float64 is rounding."""


def comparable(recipe: Recipe, graph: Graph) -> list[HeldTensor]:
    """The tensors of a compiled model that the model has, in order: inputs are left out, and
    constants that are no outputs."""
    inputs = {info.name for info in graph.inputs}
    last = ends(recipe)
    left_out = inputs | (graph.constants.keys() - {tensor.name for tensor in last})
    tensors = []
    for tensor in (*recipe.tensors, *last):
        info = graph.tensors.get(tensor.name)
        if info is None or tensor.name in left_out:
            continue
        if tensor.shape is None or info.shape in (None, tensor.shape):
            tensors.append(tensor)
    return tensors


def row_of(
    tensor: HeldTensor,
    recipe: Recipe,
    graph: Graph,
    ours: NDArray[Any],
    wanted: NDArray[Any],
) -> TensorRow:
    """A tensor beside its reference, without a verdict."""
    node = graph.producers.get(tensor.name)
    step = recipe.steps[tensor.step] if tensor.step >= 0 else None
    named = step.name if isinstance(step, KernelStep | HostStep) else getattr(step, "name", "")
    return TensorRow(
        tensor.name,
        "" if node is None else node.name or node.writes[0],
        "" if node is None else node.operator,
        named,
        tuple(getattr(step, "sources", ())),
        tensor.dtype,
        tensor.layout,
        tuple(np.shape(wanted)),
        tensor_error(ours, wanted),
    )


@dataclass(frozen=True)
class Judge:
    """Gives verdicts on tensors of one run.

    Attributes:
        graph: the model as imported.
        inputs: of the run.
        ours: the compiled model's tensors.
        wanted: the reference's.
        tolerance: of float32 tensors.
    """

    graph: Graph
    inputs: Arrays
    ours: Arrays
    wanted: Arrays
    tolerance: float = TOLERANCE

    @cached_property
    def _reference(self) -> Evaluator:
        return Evaluator(self.graph)

    @cached_property
    def _exact(self) -> Evaluator:
        return Evaluator(in_float64(self.graph), sessions=False)

    def verdicts(self, rows: Sequence[TensorRow]) -> list[TensorRow]:
        """The rows with verdicts."""
        return [self.judged(row) for row in rows]

    def first_bad(self, rows: Sequence[TensorRow]) -> str | None:
        """The first tensor at which an error arises.

        Where errors too small to be anybody's add up to one beyond tolerance, and float64 shows
        that they are more than rounding, it is the first tensor beyond it.
        """
        first = next((row.name for row in rows if row.verdict == "bad"), None)
        if first is not None:
            return first
        beyond = next((row for row in rows if row.verdict == "inherited"), None)
        if beyond is None or self._has_steps or self._is_rounding(beyond.name):
            return None
        return beyond.name

    def contradicted(self, rows: Sequence[TensorRow]) -> set[str]:
        """Tensors on which references may contradict each other: what they are computed from is
        exactly the reference's, and node by node it becomes what ours is."""
        exact = {row.name for row in rows if row.error.distance == 0.0}
        among = {row.name for row in rows}
        inherited = (row.name for row in rows if row.verdict == "inherited")
        return {name for name in inherited if exact.issuperset(nearest(self.graph, name, among))}

    def agrees(self, name: str, other: NDArray[Any]) -> bool:
        """Whether our tensor is within tolerance of another reference's."""
        ours = self.ours[name]
        return np.shape(ours) == np.shape(other) and self._is_close(name, ours, other)

    @cached_property
    def _has_steps(self) -> bool:
        """Whether the model rounds to whole steps, which a rounding may make another one."""
        written = (self.graph.info(name) for node in self.graph.nodes for name in node.writes)
        rounds = any(node.is_onnx("Round", "Floor", "Ceil") for node in self.graph.nodes)
        return rounds or any(info.dtype in ("int8", "uint8") for info in written)

    def judged(self, row: TensorRow) -> TensorRow:
        """A row with its verdict."""
        if self._is_close(row.name, self.ours[row.name], self.wanted[row.name]):
            return row
        verdict: Verdict = "bad"
        local = None
        if self._is_left_open(row.name):
            return replace(row, verdict="sensitive")
        try:
            wanted = self._here(row.name)
        except JobError:  # the compiled model's tensors are nothing that it can be computed of
            return replace(row, verdict=verdict)
        local = tensor_error(self.ours[row.name], wanted)
        steps = 1.0 + self._steps_before(row.name)
        if self._is_close(row.name, self.ours[row.name], wanted, steps):
            verdict = "inherited"
        elif local.nan == local.inf == 0 and self._is_rounding_here(row.name, wanted):
            verdict = "sensitive"
        return replace(row, verdict=verdict, local=local.max_rel)

    def _is_left_open(self, name: str) -> bool:
        """Whether all that differs is what ONNX says nothing of (`left_open`)."""
        node, dtype = self.graph.producers.get(name), self.graph.info(name).dtype
        if node is None or not opens(node):
            return False
        try:
            read = [
                np.asarray(self.ours[source] if source in self.ours else self._here(source))
                for source in node.inputs[:2]
                if source
            ]
        except JobError:
            return False
        ours, wanted = self.ours[name], self.wanted[name]
        try:
            held = np.broadcast_to(~left_open(node, read, dtype), np.shape(wanted))
        except ValueError:  # shapes that do not belong together
            return False
        return self._is_close(name, np.where(held, ours, wanted), wanted)

    def _steps_before(self, name: str) -> float:
        """Steps that bytes are moved by where one rounding before them, which our kernel does
        itself, falls the other way: as where a residual is added to bytes of another scale."""
        own = self._scales.get(name)
        if own is None:
            return 0.0
        given = {*self.inputs, *self.ours} - {name}
        within = between(self.graph, name, given) & self._scales.keys()
        scales = [float(np.max(self._scales[other].scale)) for other in within]
        return math.ceil(max(scales, default=0.0) / float(np.min(own.scale)))

    @cached_property
    def _scales(self) -> dict[str, Scale]:
        return scales_of(self.graph)

    def _is_close(
        self, name: str, ours: NDArray[Any], wanted: NDArray[Any], steps: float = 1.0
    ) -> bool:
        """Whether a tensor is within tolerance; bytes so many steps."""
        dtype = self.graph.info(name).dtype
        if not is_floating(dtype):
            most = steps if dtype in ("int8", "uint8") else 0.0
            return tensor_error(ours, wanted).max_abs <= most
        narrow = tensor_error(ours, wanted).max_rel
        return narrow <= self.tolerance * WIDER.get(dtype, 1.0)

    def _here(self, name: str, evaluator: Evaluator | None = None) -> NDArray[Any]:
        """A tensor computed from the compiled model's own before it, by the reference unless
        another is named."""
        evaluator = evaluator or self._reference
        exact = evaluator is self._exact
        given: dict[str, Any] = dict(self.inputs)
        for other, value in self.ours.items():
            if other != name:
                given[other] = np.asarray(value).astype(to_numpy(self.graph.info(other).dtype))
        if exact:
            given = {other: wide(value) for other, value in given.items()}
        return np.asarray(evaluator.between(given, [name])[name])

    def _is_rounding_here(self, name: str, wanted: NDArray[Any]) -> bool:
        try:
            exact = self._here(name, self._exact)
        except JobError:
            return False
        return _is_noise(self.ours[name], wanted, exact)

    def _is_rounding(self, name: str) -> bool:
        """Whether the imported model is as far from itself in float64 as ours and the reference's
        are: what the reference has of the model's file may be another model."""
        try:
            inputs = {other: wide(value) for other, value in self.inputs.items()}
            exact = np.asarray(self._exact.values(inputs, [name])[name])
            narrow = np.asarray(self._reference.values(self.inputs, [name])[name])
        except JobError:
            return False
        both = (self.ours[name], self.wanted[name])
        return all(_is_noise(one, narrow, exact) for one in both)


def _is_noise(ours: NDArray[Any], wanted: NDArray[Any], exact: NDArray[Any]) -> bool:
    noise = distance(wanted, exact)
    return 0.0 < distance(ours, exact) <= NOISE * noise
