"""Where a model runs and what is asked of it: degrees of parallelism, precisions, and a load.

A replica is `pipeline` stages of `tensor` cores; there are `data` replicas, and a batch is dealt
over them. Experts of a mixture are dealt over `expert` groups within a stage's `tensor` cores.

Degrees count *logical* cores. Where a mesh joins physical cores into logical ones (Trainium2's
LNC = 2, the mesh's `serving.logical_cores`), degrees that ask for more than there are count
physical ones.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.meshes.mesh import Mesh
from tilesmith.search_space.support.errors import InputError

Precision = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4"]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)

BYTES: dict[str, float] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.5}
"""Bytes of one number of each precision."""

_LOGICAL = "serving.logical_cores"
_FULL_HEADS = "serving.full_heads"


@dataclass(frozen=True)
class Deployment:
    """A mesh, how a model is spread over it, and the precision of what is stored.

    Attributes:
        tensor, pipeline, expert, data: degrees; see the module's docstring.
        weights, cache: precision of weights, and of keys and values kept; sums and activations are
            16 or 32 bits wide, as the cores have it.
        logical: physical cores that work as one; 0: as the mesh has it.
        constants: in place of `constants.toml`, to calibrate.

    Raises:
        InputError: a degree below one, an unknown precision, more cores than the mesh has, or a
            tensor degree that neither divides it nor is a power of two (other cores stay idle).
    """

    mesh: Mesh
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1
    weights: Precision = "bf16"
    cache: Precision = "bf16"
    logical: int = 0
    constants: Target | None = None

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
                f"experts cannot be dealt over {self.expert} groups of {self.tensor} cores; "
                f"{_listed(_divisors(self.tensor))} groups can be made of them"
            )
        cores = self.mesh.cores // (self.logical or 1)
        if self.degrees > cores:
            raise InputError(
                f"tensor x pipeline x data = {self.tensor} x {self.pipeline} x {self.data} = "
                f"{self.degrees} cores are more than mesh '{self.mesh.name}' has: {cores}"
            )
        if cores % self.tensor and self.tensor & (self.tensor - 1):
            raise InputError(
                f"mesh '{self.mesh.name}' has {cores} cores, which groups of {self.tensor} do not "
                f"divide; {_listed(_divisors(cores))} and powers of two below are allowed"
            )

    def says(self, name: str) -> bool:
        """Whether the mesh says that its engine does so."""
        data = self.mesh.data
        return name in data and data.fact(name).value is True

    @property
    def full_heads(self) -> bool:
        """Whether heads of keys that cores do not divide are copied to as many as of queries."""
        return self.says(_FULL_HEADS)

    @property
    def degrees(self) -> int:
        """Cores that the degrees ask for."""
        return self.tensor * self.pipeline * self.data

    @property
    def cores_each(self) -> int:
        """Physical cores of one of the degrees' cores."""
        if self.logical:
            return self.logical
        joined = logical_cores(self.mesh)
        return joined if self.degrees * joined <= self.mesh.cores else 1

    @property
    def cores(self) -> int:
        """Physical cores in use."""
        return self.degrees * self.cores_each

    @property
    def chips(self) -> int:
        """Chips in use."""
        return -(-self.cores // self.mesh.cores_per_chip)


def logical_cores(mesh: Mesh) -> int:
    """Physical cores that work as one, as the mesh has it."""
    return mesh.data.integer(_LOGICAL) if _LOGICAL in mesh.data else 1


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


@dataclass(frozen=True)
class DeploymentLoad:
    """The load on a deployment: sequences at a time, tokens in and out, the longest sequence.

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
                f"{self.input_tokens} tokens in and {self.output_tokens} out are longer than the "
                f"longest sequence allowed, {self.max_sequence}; allow {self.tokens} or ask "
                "for less"
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
