"""One step of an engine on one replica, part by part.

Every part is a rate of the house's simulator (`kernels.py`), a collective's cost on the mesh, or
one of the fitted constants (`constants.toml`); which is said where it is added. Stages of a
pipeline work on parts of the batch, one behind the other.

A pass of a model that makes no tokens is one program, compiled whole: weights stream while others
are multiplied by, and whatever is not a product goes through memory as the simulated kernels do.
What engines of models that make tokens fuse instead is in the constants, fitted on their times
(decision 0100).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilesmith.capabilities.planning.architecture import (
    Architecture,
    AttentionOperator,
    Experts,
    Layer,
    PointwiseOperator,
    ProductOperator,
)
from tilesmith.capabilities.planning.deployment import BYTES, Deployment, Precision
from tilesmith.capabilities.planning.estimates import shares
from tilesmith.capabilities.planning.estimates.constants import constant
from tilesmith.capabilities.planning.estimates.experts import FETCHES, expert_work, row_efficiency
from tilesmith.capabilities.planning.estimates.kernels import (
    pointwise_rates,
    rates_of,
    softmax_rate,
)
from tilesmith.capabilities.planning.estimates.prompts import (
    LONGEST_WITHOUT,
    has_long_kernel,
    stays_on_chip,
)
from tilesmith.search_space.meshes.mesh import CollectiveKind
from tilesmith.simulator.collectives import collective_cost

ACTIVATION_BYTES = 2
TOPS_BYTES = 256 * 8
"""What a core tells the others of its part of the vocabulary: its best 256 scores and tokens (NxD
Inference's `global_topk`). Whole distributions are not gathered within an instance."""
_LIVE_BYTES = 12
"""Of a score where attention is not fused: itself and its exponential in float32, mask and weight
in 16 bits. Scores of all sequences and heads are one tensor (transformers-neuronx, attention.py:
score, mask, softmax and context one after another)."""
_INTEGERS = ("int8", "int4")


@dataclass(frozen=True)
class StepParts:
    """Seconds of a step by what they go to.

    `weights`: streams of weights; `products`: their arithmetic; `attention`: scores, softmax and
    the cache; `norms`; `pointwise`: activations and residuals of a pass; `routing`: rows on their
    way to experts and back; `collectives`; `cache`: what a prompt writes; `layers`, `step`: fixed
    for each layer and step.
    """

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
    cache: int = 0,
) -> StepParts:
    """Seconds of one step, by part.

    Args:
        sequences: of this replica.
        new_tokens: rows of each.
        context: tokens attended to, the new ones included.
        cache: tokens that the caches have room for, where a prompt fills them; else 0.
    """
    stages = min(deployment.pipeline, sequences)
    step = _Step(architecture, deployment, -(-sequences // stages), new_tokens, context, cache)
    for layer in architecture.layers:
        step.add(layer)
    step.hand_over()
    parts = step.parts
    if cache:  # the last part of the batch leaves when all have passed the first stage
        behind = 1 + (stages - 1) / deployment.pipeline
        parts = defaultdict(float, {name: value * behind for name, value in parts.items()})
        parts["step"] += step.constant("prompt.fixed_us") * 1e-6
    if architecture.kind == "decoder":  # what makes no tokens samples none
        parts["step"] += step.constant("step.fixed_us") * 1e-6
    return StepParts(dict(parts))


def stage_parts(
    architecture: Architecture,
    deployment: Deployment,
    layers: Iterable[tuple[Layer, int]],
    sequences: int,
    new_tokens: int,
    context: int,
    cache: int = 0,
) -> StepParts:
    """One step of one stage of a pipeline, without the host; see `step_parts`.

    All stages together, with what hands over between them, are a step of as many sequences.

    Args:
        layers: of the stage, and how many of each.
    """
    step = _Step(architecture, deployment, sequences, new_tokens, context, cache)
    for layer, count in layers:
        step.add(replace(layer, repeats=count))
    return StepParts(dict(step.parts))


def between_stages(deployment: Deployment, size: float, stage: int) -> float:
    """Seconds to send so many bytes, of all cores, from a stage to the next."""
    group = deployment.tensor * deployment.cores_each
    ends = (stage * group - 1, stage * group)
    cost = collective_cost(deployment.mesh, "send", size / group, ends)
    return cost.seconds + constant(deployment, "collective.wait_us") * 1e-6


class _Step:
    """Adds up one step, for one part of the batch."""

    def __init__(
        self, architecture: Architecture, deployment: Deployment, sequences: int,
        new_tokens: int, context: int, cache: int,
    ) -> None:  # fmt: skip
        self.architecture, self.deployment = architecture, deployment
        self.sequences, self.new_tokens, self.context = sequences, new_tokens, context
        self.cache = cache
        self.passes = architecture.kind == "pass"
        self.decodes = architecture.kind == "decoder" and new_tokens == 1
        self.tensor, self.each = deployment.tensor, deployment.cores_each
        self.rates = rates_of(deployment.mesh.target)
        self.stream = self._streamed("weights.efficiency")
        self.group = tuple(range(self.tensor * self.each))
        self.parts: defaultdict[str, float] = defaultdict(float)

    def constant(self, name: str) -> float:
        """A fitted constant."""
        return constant(self.deployment, name)

    def _streamed(self, efficiency: str) -> float:
        """Bytes a second of one core: as simulated and fitted, at most its share of the memory."""
        mesh = self.deployment.mesh
        share = mesh.chip_gbps * 1e9 / mesh.cores_per_chip * self.constant("memory.efficiency")
        return min(self.rates.stream * self.constant(efficiency), share)

    def add(self, layer: Layer) -> None:
        """Add all repetitions of a layer."""
        if layer.once and self.decodes:
            return
        rows = self.sequences * (1 if layer.last else layer.rows or self.new_tokens)
        before = dict(self.parts)
        for operator in layer.operators:
            match operator:
                case ProductOperator():
                    self._product(operator, rows)
                case Experts():
                    self._experts(operator, rows)
                case AttentionOperator():
                    self._attention(operator, layer, rows)
                    if operator.width:  # of one that was split up, scores alone
                        self.parts["layers"] += self.constant("layer.fixed_us") * 1e-6
                case PointwiseOperator():
                    self._pointwise(operator, rows)
        for name, value in self.parts.items():
            once = value - before.get(name, 0.0)
            self.parts[name] = before.get(name, 0.0) + once * layer.repeats * layer.runs

    def hand_over(self) -> None:
        """What a stage of the pipeline sends to the next."""
        size = self.sequences * self.new_tokens * self.architecture.width * ACTIVATION_BYTES
        for stage in range(1, self.deployment.pipeline):
            self.parts["collectives"] += between_stages(self.deployment, size, stage)

    def _product(self, product: ProductOperator, rows: float) -> None:
        share = shares.product_share(product, self.tensor, self.deployment.full_heads)
        rows = self.sequences * product.rows if product.rows else rows
        precision: Precision = self.deployment.weights if shares.is_narrow(product) else "bf16"
        self._multiply(share, precision, rows * share)
        if product.split == "rows":
            self._all_reduce(rows * product.n * ACTIVATION_BYTES)
        if product.name == "head" and self.architecture.kind == "decoder":
            self._collective("all_gather", rows * self.tensor * TOPS_BYTES)

    def _pace(self, precision: Precision) -> float:
        """Additions and multiplications a second; activations are as narrow as fp8 weights."""
        return self.rates.narrow if precision == "fp8" else self.rates.multiply

    def _multiply(
        self, numbers: float, precision: Precision, terms: float, reached: float = 1.0
    ) -> None:
        """Stream weights and multiply by them; integers are converted on the way, which goes on
        beside the stream. Of a pass, the longer of both counts.

        Args:
            numbers: of the weights.
            terms: products of two numbers that are added up.
            reached: the share of the stream's rate that their rows reach.
        """
        streamed = numbers * BYTES[precision] / (self.stream * reached)
        converted = numbers * self.rates.convert if precision in _INTEGERS else 0.0
        moved, worked = max(streamed, converted), 2 * terms / self._pace(precision)
        if not self.passes or moved >= worked:
            self.parts["weights"] += moved / self.each
        if not self.passes or moved < worked:
            self.parts["products"] += worked / self.each

    def _experts(self, experts: Experts, rows: float) -> None:
        """Weights of the experts that are loaded, what is multiplied by them, and what each core
        fetches of it."""
        groups, precision = self.deployment.expert, self.deployment.weights
        target = self.deployment.mesh.target
        work = expert_work(experts, int(rows), groups, decodes=self.decodes)
        for product in experts.products:
            share = shares.product_share(product, self.tensor // groups)
            width = product.n if product.split == "rows" else share // product.k
            reached = row_efficiency(target, width * BYTES[precision])
            self._multiply(work.loaded * share, precision, work.rows * share, reached)
        if work.fetched:
            row = self.architecture.width * ACTIVATION_BYTES
            reached = self.stream * row_efficiency(target, row)
            self.parts["routing"] += FETCHES * work.fetched * row / reached / self.each
        self._all_reduce(rows * self.architecture.width * ACTIVATION_BYTES)

    def _attention(self, attention: AttentionOperator, layer: Layer, rows: float) -> None:
        heads = shares.heads_share(attention, self.tensor)
        length = layer.rows or self.context
        keys = attention.keys or shares.kept(attention, length)
        if self.decodes:
            self._cached(attention, heads, keys)
        else:
            each = 1 if layer.last else layer.rows or self.new_tokens
            pairs = each * keys if attention.keys else shares.seen_pairs(attention, each, length)
            self._prompted(attention, heads * rows, keys, pairs / (each * keys))
        if self.cache and not (attention.keys or layer.once):
            room = shares.kept(attention, self.cache) * self.sequences * self._kept_of(attention)
            written = 2 * room * BYTES[self.deployment.cache]  # scattered into a copy
            self.parts["cache"] += written / self.stream / self.each

    def _kept_of(self, attention: AttentionOperator) -> int:
        """Numbers of a token in one core's cache."""
        return shares.cached_share(attention, self.tensor, self.deployment.full_heads)

    def _cached(self, attention: AttentionOperator, heads: int, keys: int) -> None:
        """One query a sequence: the cache is read, and softmax goes over rows of scores."""
        numbers = self.sequences * keys * self._kept_of(attention)
        read = numbers * BYTES[self.deployment.cache] / self._streamed("cache.efficiency")
        width = 2 * attention.latent or attention.width + attention.value_width
        work = 2 * self.sequences * heads * keys * width / self.rates.multiply
        scores = self.rates.softmax.seconds(self.sequences * heads, keys)
        scores *= self.constant("attention.passes")
        self.parts["attention"] += (max(read, work) + scores) / self.each

    def _prompted(
        self, attention: AttentionOperator, queries: float, keys: int, seen: float
    ) -> None:
        """Many queries: by one kernel, which passes over what no query sees, or as graphs have it.

        Args:
            seen: the share of scores that are not masked.
        """
        if self.deployment.says("serving.fused"):
            work = self._score_work(attention, queries, keys)
            self.parts["attention"] += seen * work / self.rates.attend / self.each
        elif self.passes:  # of one that was split up, its first product alone counts the softmax
            rows = queries if attention.width else 0
            softmax = rows * keys * softmax_rate(self.deployment.mesh.target, keys)
            work = self._score_work(attention, queries, keys) / self.rates.multiply
            self.parts["attention"] += (work + softmax) / self.each
        else:
            self.parts["attention"] += self._graph_attends(attention, queries, keys) / self.each

    def _graph_attends(self, attention: AttentionOperator, queries: float, keys: int) -> float:
        """Seconds of a prompt without a kernel of the engine's own, by what its compiler does.

        What a compiler's kernel for long prompts takes is not published. It is taken to keep scores
        on chip, and no prompt to take less than a shorter one, nor a batch than one prompt of it.
        """
        architecture, alone = self.architecture, self.sequences == 1
        own = self.deployment.says("serving.fused_alone")
        if not attention.causal or stays_on_chip(architecture, alone and own):
            return self._scored(attention, queries, keys, spills=False)
        if alone or not has_long_kernel(architecture, keys):
            return self._scored(attention, queries, keys, spills=True)
        each = queries / shares.heads_share(attention, self.tensor) / self.sequences
        shorter = queries * min(1.0, LONGEST_WITHOUT / each)
        bounds = [(shorter, LONGEST_WITHOUT, True), (queries, keys, False)]
        if not own:
            bounds.append((queries / self.sequences, keys, True))
        return max(self._scored(attention, q, k, spills=spills) for q, k, spills in bounds)

    def _scored(
        self, attention: AttentionOperator, queries: float, keys: int, *, spills: bool
    ) -> float:
        """Seconds of all scores, masked ones, too, as the mask is an input of the graph: products,
        the simulated softmax, and what passes memory as far as scores do not fit."""
        scores = queries * keys
        seconds = self._score_work(attention, queries, keys) / self.rates.multiply
        seconds += self.rates.softmax.spread(queries, keys)
        if spills:
            spilled = scores * self._spilled(scores) * self.constant("attention.spilled_bytes")
            seconds += spilled / self.stream
        return seconds

    @staticmethod
    def _score_work(attention: AttentionOperator, queries: float, keys: int) -> float:
        """Additions and multiplications of scores and what they weigh."""
        return 2 * queries * keys * (attention.width + attention.value_width)

    def _spilled(self, scores: float) -> float:
        """The share of scores that is too much for the core's memory."""
        target, name = self.deployment.mesh.target, "sbuf.mib"
        room = target.number(name) * 2**20 if name in target else 0.0
        return max(0.0, 1 - room / (_LIVE_BYTES * scores))

    def _pointwise(self, operator: PointwiseOperator, rows: float) -> None:
        if "norm" in operator.name:
            width = shares.width_share(operator, self.tensor)
            if not (self.decodes or operator.split) and self.deployment.says(
                "serving.sequence_parallel"
            ):
                rows = -(-rows // self.tensor)
            self.parts["norms"] += self.rates.norm.spread(rows, width) / self.each
        elif self.passes:
            one, two = pointwise_rates(self.deployment.mesh.target)
            numbers = rows * shares.width_share(operator, self.tensor) / self.each
            self.parts["pointwise"] += numbers * (one if operator.operands == 1 else two)

    def _all_reduce(self, size: float) -> None:
        """A sum over the group."""
        self._collective("all_reduce", size)

    def _collective(self, kind: CollectiveKind, size: float) -> None:
        """What does not depend on its size, and what does: links as costed, and the engines of a
        core, of which a runtime lends a few to collectives. Physical cores alone in a logical one
        need none: they are one to the engine."""
        if self.tensor > 1:
            mesh, members = self.deployment.mesh, len(self.group)
            cost = collective_cost(mesh, kind, size, self.group)
            sent = (2 if kind == "all_reduce" else 1) * (members - 1) / members * size
            engines = mesh.levels[0].gbps * 1e9 * self.each * self.constant("collective.bandwidth")
            moving = cost.seconds - cost.latency_s + sent / engines
            waiting = cost.latency_s + self.constant("collective.wait_us") * 1e-6
            self.parts["collectives"] += waiting + moving
