"""One step of an engine on one replica, part by part.

The cores of a tensor group share products as Megatron does (Shoeybi et al., 2019): outputs of the
first, inputs of the second, a sum over the group behind it; heads and vocabularies that do not
divide are padded. Stages of a pipeline follow each other; a step passes all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tilesmith.planning.architecture import (
    Architecture,
    Attention,
    Experts,
    Layer,
    Lookup,
    Pointwise,
    Product,
)
from tilesmith.planning.constants import constant
from tilesmith.planning.deployment import BYTES, Deployment
from tilesmith.planning.kernels import rates_of
from tilesmith.simulator.collectives import collective_cost

ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class Parts:
    """Seconds of a step by what they go to: weights, arithmetic, attention, norms, collectives,
    layers, step."""

    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def milliseconds(self) -> dict[str, float]:
        return {name: value * 1e3 for name, value in self.parts.items()}

    @property
    def bound(self) -> str:
        """The largest part."""
        return max(self.parts, key=lambda name: self.parts[name])


def step_parts(
    architecture: Architecture,
    deployment: Deployment,
    sequences: int,
    new_tokens: int,
    context: int,
    prompt: bool = False,
) -> Parts:
    """One step; arguments as `estimate.step_seconds` has them."""
    step = _Step(architecture, deployment, sequences, new_tokens, context, prompt)
    for layer in architecture.layers:
        step.add(layer)
    step.parts["step"] += constant(deployment.mesh, "step.fixed_us") * 1e-6
    return Parts(dict(step.parts))


class _Step:
    """A step as it is added up."""

    def __init__(
        self, architecture: Architecture, deployment: Deployment, sequences: int,
        new_tokens: int, context: int, prompt: bool,
    ) -> None:  # fmt: skip
        self.architecture, self.deployment = architecture, deployment
        self.sequences, self.new_tokens, self.context = sequences, new_tokens, context
        self.prompt = prompt
        self.rates = rates_of(deployment.mesh.target)
        self.each = deployment.cores_each
        self.group = tuple(range(deployment.tensor * self.each))
        self.parts: defaultdict[str, float] = defaultdict(float)

    def add(self, layer: Layer) -> None:
        """All repetitions of a layer."""
        rows = self.sequences * (1 if layer.last else layer.rows or self.new_tokens)
        before = dict(self.parts)
        for operator in layer.operators:
            match operator:
                case Product():
                    self._product(operator, rows)
                case Experts():
                    self._experts(operator, rows)
                case Attention():
                    self._attention(operator, rows)
                    self.parts["layers"] += constant(self.deployment.mesh, "layer.fixed_us") * 1e-6
                case Pointwise():
                    self._pointwise(operator, rows)
                case Lookup():
                    pass
        for name, value in self.parts.items():
            self.parts[name] = (
                before.get(name, 0.0) + (value - before.get(name, 0.0)) * layer.repeats
            )

    def _product(self, product: Product, rows: float) -> None:
        tensor = self.deployment.tensor
        share = product.times * product.k * product.n / (1 if product.split == "none" else tensor)
        quantised = product.name != "head" and product.split != "none"
        width = BYTES[self.deployment.weights if quantised else "bf16"]
        efficiency = constant(self.deployment.mesh, "weights.efficiency")
        self.parts["weights"] += share * width / self.each / (self.rates.stream * efficiency)
        self.parts["products"] += 2 * rows * share / self.each / self.rates.multiply
        if product.split == "rows":
            self._all_reduce(rows * product.n * ACTIVATION_BYTES)

    def _experts(self, experts: Experts, rows: float) -> None:
        visited = experts.count * (1 - (1 - experts.active / experts.count) ** rows)
        tensor = self.deployment.tensor
        for product in experts.products:
            share = product.times * product.k * product.n / tensor
            width = BYTES[self.deployment.weights]
            self.parts["weights"] += visited * share * width / self.each / self.rates.stream
            self.parts["products"] += (
                2 * rows * experts.active * share / self.rates.multiply / self.each
            )
        self._all_reduce(rows * self.architecture.width * ACTIVATION_BYTES)

    def _attention(self, attention: Attention, rows: float) -> None:
        heads = -(-attention.heads // self.deployment.tensor)
        groups = max(1, -(-attention.key_heads // self.deployment.tensor))
        keys = min(self.context, attention.window or self.context)
        if attention.keys:
            keys = attention.keys
        if self.new_tokens == 1 and self.architecture.kind == "decoder":
            cached = attention.latent or groups * (attention.width + attention.value_width)
            data = self.sequences * keys * cached * BYTES[self.deployment.cache]
            passes = constant(self.deployment.mesh, "attention.passes")
            self.parts["attention"] += (
                data / self.rates.stream + passes * self.rates.softmax.seconds(rows * heads, keys)
            ) / self.each
            return
        scores = rows * heads * keys * (0.5 if attention.causal else 1)
        self.parts["attention"] += (
            2 * scores * (attention.width + attention.value_width) / self.rates.attend / self.each
        )

    def _pointwise(self, operator: Pointwise, rows: float) -> None:
        if "norm" in operator.name:
            self.parts["norms"] += self.rates.norm.seconds(rows / self.each, operator.width)

    def _all_reduce(self, size: float) -> None:
        if len(self.group) > 1:
            mesh = self.deployment.mesh
            cost = collective_cost(mesh, "all_reduce", size, self.group)
            self.parts["collectives"] += cost.seconds + constant(mesh, "collective.wait_us") * 1e-6
