"""What one point costs: an architecture, deployed on a mesh, under a load.

A step of an engine works on `sequences` sequences, `new_tokens` rows of each, over a cache of
`context` tokens. Decoding is a step of one row; a prompt is a step of as many rows as it has
tokens. What a step costs is put together from kernels of one core (`kernels.py`: rates of the
house's simulator), collectives (`simulator/collectives`) and a few constants that calibration may
change (`constants.toml`).

Definitions are those of published measurements: TTFT is the time to the first token of the whole
batch; TPOT is the median over the tokens after it (engines serve each by the program of its bucket
of sequence lengths); tokens a second are the batch's output over the time from its start to its
last token, `batch x output / (TTFT + (output - 1) x mean TPOT)`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilesmith.capabilities.planning.architecture import Architecture, Layer
from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad, bucket
from tilesmith.capabilities.planning.estimates.limits import check_possible
from tilesmith.capabilities.planning.estimates.memory import MemoryUse, check_fits, memory_of
from tilesmith.capabilities.planning.estimates.steps import (
    ACTIVATION_BYTES,
    StepParts,
    between_stages,
    stage_parts,
    step_parts,
)


@dataclass(frozen=True)
class Estimate:
    """The cost of one deployment under one load.

    Attributes:
        ttft_ms, tpot_ms, tokens_per_s: see the module's docstring; of a model that makes no tokens
            the first two are 0 and the third counts passes.
        latency_ms: one pass, for models that make no tokens; else the whole answer.
        memory: GiB.
        bound: the largest part of a token's (else a pass's) time.
        parts: milliseconds by part, of `token` and `prompt` (or of `pass`).
    """

    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float
    latency_ms: float
    memory: MemoryUse
    bound: str
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What `tilesmith plan --json` prints of a point."""
        tokens = {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms} if self.tpot_ms else {}
        return {
            **tokens,
            "latency_ms": self.latency_ms,
            "tokens_per_s" if self.tpot_ms else "passes_per_s": self.tokens_per_s,
            "memory_gib": self.memory.total,
            "bound": self.bound,
            "memory": self.memory.to_json(),
            "parts_ms": {name: dict(parts) for name, parts in self.parts.items()},
        }


def estimate(architecture: Architecture, deployment: Deployment, load: DeploymentLoad) -> Estimate:
    """The cost of a load on a deployment.

    Raises:
        InputError: the mesh does not divide so, or the model does not fit it.
    """
    check_possible(architecture, deployment, load)
    memory = memory_of(architecture, deployment, load)
    check_fits(architecture, deployment, load, memory)
    if architecture.kind == "pass":
        return _pass(architecture, deployment, load, memory)
    sequences = -(-load.batch // deployment.data)
    rows = prompt_bucket(load)
    prompt = step_parts(architecture, deployment, sequences, rows, rows, cache=load.limit)
    counts = _buckets(load)
    steps = {size: step_parts(architecture, deployment, sequences, 1, size) for size in counts}
    median = steps[_median(counts)]
    answer = prompt.seconds + sum(steps[size].seconds * n for size, n in counts.items())
    return Estimate(
        ttft_ms=prompt.seconds * 1e3,
        tpot_ms=median.seconds * 1e3,
        tokens_per_s=load.batch * load.output_tokens / answer,
        latency_ms=answer * 1e3,
        memory=memory,
        bound=median.bound,
        parts={"token": median.milliseconds, "prompt": prompt.milliseconds},
    )


def step_seconds(
    architecture: Architecture,
    deployment: Deployment,
    sequences: int,
    new_tokens: int,
    context: int,
) -> float:
    """One step of one replica.

    Args:
        sequences: in this replica.
        new_tokens: rows of each: 1 when decoding, a prompt's (or its chunk's) length else.
        context: tokens in the cache that are attended to, the new ones included.
    """
    whole = max(context, new_tokens)
    cache = whole if new_tokens > 1 else 0
    return step_parts(architecture, deployment, sequences, new_tokens, whole, cache).seconds


def stage_seconds(
    architecture: Architecture,
    deployment: Deployment,
    number: int,
    layers: Sequence[tuple[Layer, int]],
    sequences: int,
    new_tokens: int,
    before: int,
) -> float:
    """One step of one stage of a pipeline, with what comes from the stage before.

    Args:
        number, layers: of the stage, counted from 0, and how many of each it has.
        before: tokens that each sequence has in the cache.
    """
    whole = before + new_tokens
    cache = whole if new_tokens > 1 else 0
    parts = stage_parts(architecture, deployment, layers, sequences, new_tokens, whole, cache)
    if not number:
        return parts.seconds
    size = sequences * new_tokens * architecture.width * ACTIVATION_BYTES
    return parts.seconds + between_stages(deployment, size, number)


def prompt_bucket(load: DeploymentLoad) -> int:
    """Rows of the program that works on the prompt: a power of two, at most what leaves a token."""
    return bucket(load.input_tokens, max(load.input_tokens, load.limit - 1))


def _buckets(load: DeploymentLoad) -> dict[int, int]:
    """How many tokens after the first are served by the program of each bucket of lengths."""
    counts: dict[int, int] = {}
    position, last = load.input_tokens + 1, load.tokens - 1
    while position <= last:
        size = bucket(position, load.limit)
        end = min(size, last)
        counts[size] = end - position + 1
        position = end + 1
    return counts or {bucket(load.tokens, load.limit): 0}


def _median(counts: Mapping[int, int]) -> int:
    half, seen = sum(counts.values()) / 2, 0
    for size in sorted(counts):
        seen += counts[size]
        if seen >= half:
            return size
    raise AssertionError("there is a token")


def _pass(
    architecture: Architecture, deployment: Deployment, load: DeploymentLoad, memory: MemoryUse
) -> Estimate:
    sequences = -(-load.batch // deployment.data)
    parts: StepParts = step_parts(
        architecture, deployment, sequences, load.input_tokens, load.input_tokens
    )
    seconds = parts.seconds
    return Estimate(
        ttft_ms=0.0,
        tpot_ms=0.0,
        tokens_per_s=load.batch / seconds,
        latency_ms=seconds * 1e3,
        memory=memory,
        bound=parts.bound,
        parts={"pass": parts.milliseconds},
    )
