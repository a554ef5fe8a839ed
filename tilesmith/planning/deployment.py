"""Where a model runs and what is asked of it: degrees of parallelism, precisions, and a load.

A replica is `pipeline` stages of `tensor` cores; there are `data` replicas, and a batch is dealt
over them. Experts of a mixture are dealt over `expert` groups within a stage's `tensor` cores.

Cores are physical ones. Where a mesh joins several physical cores into a logical one
(Trainium2's LNC = 2), degrees may be counted in either: `cores_each` says what was meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tilesmith.search_space.errors import InputError
from tilesmith.search_space.mesh import Mesh

Precision = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

BYTES: dict[str, float] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.5}
"""Bytes of one number of each precision."""


@dataclass(frozen=True)
class Deployment:
    """A mesh, how a model is spread over it, and the precision of what is stored.

    Attributes:
        tensor, pipeline, expert, data: degrees; see the module's docstring.
        weights, cache: precision of weights, and of keys and values kept; sums and activations are
            16 or 32 bits wide, as the cores have it.
        logical: physical cores that work as one of the degrees' cores; 0: as the mesh has it.

    Raises:
        InputError: a degree below one, an unknown precision, or `expert` that does not divide
            `tensor`.
    """

    mesh: Mesh
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1
    weights: Precision = "bf16"
    cache: Precision = "bf16"
    logical: int = 0

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "expert", "data"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)}; degrees are at least 1")
        for name in ("weights", "cache"):
            if getattr(self, name) not in PRECISIONS:
                raise InputError(
                    f"{name} = {getattr(self, name)!r}; one of {', '.join(PRECISIONS)} is expected"
                )
        if self.tensor % self.expert:
            raise InputError(
                f"experts cannot be dealt over {self.expert} groups of {self.tensor} cores; the "
                "expert degree must divide the tensor degree"
            )

    @property
    def cores_each(self) -> int:
        """Physical cores of one of the degrees' cores."""
        return self.logical or 1

    @property
    def degrees(self) -> int:
        """Cores, physical or logical, that the degrees ask for."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True)
class Load:
    """What is asked for: sequences at a time, tokens in and out, and the longest sequence allowed.

    `max_sequence` 0 means as long as input and output are together.

    Raises:
        InputError: a number below one, or a sequence longer than `max_sequence`.
    """

    batch: int = 1
    input_tokens: int = 128
    output_tokens: int = 128
    max_sequence: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "input_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)}; it is at least 1")
        if self.max_sequence and self.max_sequence < self.tokens:
            raise InputError(
                f"{self.input_tokens} tokens in and {self.output_tokens} out are longer than "
                f"the longest sequence, {self.max_sequence}; allow {self.tokens}"
            )

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    @property
    def limit(self) -> int:
        """The longest sequence the caches are made for."""
        return self.max_sequence or self.tokens


SHORTEST_BUCKET = 128


def bucket(tokens: int, limit: int) -> int:
    """The compiled sequence length that serves `tokens`: a power of two from 128, at most `limit`.

    Engines of static graphs (transformers-neuronx, NxD Inference) compile one program for each.
    """
    size = SHORTEST_BUCKET
    while size < tokens:
        size *= 2
    return max(tokens, min(size, limit))
